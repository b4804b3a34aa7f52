"""A peer's home: which directory it is, what lies in it, and the configuration that holds there.

    HOME/
      network.json      name of the network, whether this host founded it, where it was told to dial first
      run.toml          the configuration, as the operator wrote it or as the invite brought it
      identity.key      this peer's key (0600)             incarnation    how often it was started
      network.secret    what lets hosts in (0600)          invite         both of those for others, one word (0600)
      run, members.json, checkpoints/, control.sock, and compiled/ where numba has no other place

Which home is meant: ``--home``, else ``GOSSIPDP_HOME``, else ``~/.gossipdp/NETWORK``, where NETWORK is the network's
name if the command knows it (from RUN.toml, an invite or ``GOSSIPDP_NETWORK_NAME``), else the only home there is, or
the only one whose daemon runs.
Nothing here may start a process or open a socket.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gossipdp import config as configuration
from gossipdp.config import Config
from gossipdp.config_loading import load
from gossipdp.errors import ConfigError, HardwareError
from gossipdp.runtime.files import load_state, save_state
from gossipdp.runtime.home_paths import expanded, homes_of_user
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.invite import MAX_SEEDS, Invite
from gossipdp.runtime.network.key_files import replace_file

__all__ = [
    "Belonging",
    "NewNetwork",
    "advertised",
    "belonging",
    "find_home",
    "found",
    "join",
    "presets",
    "read_config",
    "read_invite",
    "renew_invite",
    "rotate_secret",
    "run_file",
    "write_invite",
]

SHARED = ("exchange", "outer")
"""sections whose values an invite carries"""
MAX_SHOWN = 8
"""homes that an error names"""
MAX_RUN_FILE = 1 << 20
MAX_SETTINGS = 2048
"""characters of the settings in an invite"""


class Belonging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To which network a home belongs."""

    name: str
    founder: bool
    """made by `up`, not by `join`: this host may give the network its first model"""
    seeds: tuple[str, ...] = ()


class NewNetwork(NamedTuple):
    """What an invite brings: how to get in, and the settings of the network as TOML."""

    invite: Invite
    settings: str


def run_file(home: Path) -> Path:
    return home / "run.toml"


def belonging(home: Path) -> Belonging | None:
    """To which network `home` belongs; None for a new home. Raises DataError GD-603."""
    return load_state(home / "network.json", Belonging)


def presets() -> dict[str, str]:
    """Name -> TOML text of every preset."""
    directory = resources.files("peers") / "configs"
    return {
        entry.name.removesuffix(".toml"): entry.read_text("utf-8")
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def read_text(path: Path) -> str:
    """A configuration file's text. Raises ConfigError GD-313."""
    try:
        with open(path, "rb") as file:
            contents = file.read(MAX_RUN_FILE + 1)
        if len(contents) > MAX_RUN_FILE:
            raise ValueError(f"more than {MAX_RUN_FILE} bytes")
        return contents.decode("utf-8")
    except (OSError, ValueError) as error:
        seen = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError("GD-313", f"{path} cannot be read", seen=seen, do="name a TOML file") from None


def read_config(
    home: Path | None,
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
) -> Config:
    """The configuration that holds in `home`: its run.toml (or `file`), the environment, flags, presets.

    Raises:
        ConfigError: exit code 3.
    """
    path = file or (run_file(home) if home is not None else None)
    text = read_text(path) if path is not None and (file is not None or path.exists()) else ""
    config = load(
        text,
        file=str(path) if text else "",
        environment=os.environ if environment is None else environment,
        flags=flags or {},
        presets=presets(),
    )
    known = belonging(home) if home is not None else None
    if known is None:
        return config
    if config.network.name != known.name:
        if "network.name" in config.origins:
            raise _elsewhere(home, known.name, config.network.name)
        config = _replaced(config, home, name=known.name)
    if not config.network.seeds and known.seeds:
        config = _replaced(config, home, seeds=known.seeds)
    return config


def _replaced(config: Config, home: Path | None, **values: Any) -> Config:
    origins = config.origins | {f"network.{key}": f"{home}/network.json" for key in values}
    network = msgspec.structs.replace(config.network, **values)
    return msgspec.structs.replace(config, network=network, origins=origins)


def find_home(
    option: str | None,
    network: str | None = None,
    *,
    default: str = "",
    environment: Mapping[str, str] | None = None,
    runs: Callable[[Path], bool] = lambda _: False,
) -> Path:
    """The home that is meant, whether it exists or not; see the top of this file.

    Args:
        option: what --home says.
        network: the network's name, if it is known.
        default: name of the home to make where there is none. Only the command that starts a daemon has one.
        runs: tells whether the daemon of a home runs. Of several homes, commands mean the one whose daemon runs.

    Raises:
        ConfigError: GD-314, there are several, or none.
    """
    environment = os.environ if environment is None else environment
    if chosen := option or environment.get("GOSSIPDP_HOME"):
        return expanded(chosen).absolute()
    base = homes_of_user(environment)
    if name := network or environment.get("GOSSIPDP_NETWORK_NAME"):
        return base / name
    homes = sorted(path.parent for path in base.glob("*/network.json"))
    if len(homes) == 1:
        return homes[0]
    if not homes and default:
        return base / default
    if not homes:
        raise ConfigError(
            "GD-314",
            "no peer lives on this host",
            seen=f"{base} has no home",
            do="`gossipdp up` or `gossipdp join` first",
        )
    running = [home for home in homes if runs(home)]
    if len(running) == 1 and not default:
        return running[0]
    shown = sorted(homes, key=lambda home: (home in running) == bool(default))
    names = ", ".join(f"{home.name} ({'runs' if home in running else 'does not run'})" for home in shown[:MAX_SHOWN])
    more = f" and {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else ""
    do = f"say which: --home {shown[0]}"
    raise ConfigError("GD-314", "several peers live on this host", seen=names + more, do=do)


def advertised(config: Config) -> str | None:
    """The ``host:port`` that others dial, as far as the configuration alone tells."""
    address = config.network.advertise
    if address in (configuration.AUTO, "none"):
        return None
    if re.fullmatch(r"\[.*\]|[^:]*", address):
        port = config.network.listen.rpartition(":")[2]
        return f"{address}:{port}" if port not in ("", "0", "off") else None
    return address


# -- making a home -----------------------------------------------------------------------------------------------


def found(home: Path, config: Config, text: str | None) -> Belonging:
    """Make `home` ready for `up`: a new network with a new secret, or the one that it already belongs to.

    Args:
        text: the new run.toml, or None to keep what is there.
    """
    known = belonging(home)
    if known is not None and known.name != config.network.name:
        raise _elsewhere(home, known.name, config.network.name)
    _make(home)
    if known is None:
        try:
            NetworkSecret.load(home)
        except FileNotFoundError:
            NetworkSecret.generate().save(home)
        known = Belonging(name=config.network.name, founder=True)
        save_state(home / "network.json", known)
    _write_run_file(home, text)
    return known


def join(home: Path, network: NewNetwork, text: str | None) -> Belonging:
    """Make `home` ready for `join`. An invite with a new secret replaces the old one (`keys rotate`).

    Args:
        text: the new run.toml; None: the settings that the invite brings.
    """
    invite = network.invite
    known = belonging(home)
    if known is not None and known.name != invite.network:
        raise _elsewhere(home, known.name, invite.network)
    _make(home)
    founder = known is not None and known.founder
    try:
        old = NetworkSecret.load(home)
    except FileNotFoundError:
        invite.secret.save(home)
    else:
        if old != invite.secret:
            invite.secret.replace(home)
            # `up` was said here and on the host of the invite: the network is the inviter's, to be founded there.
            founder = False
    known = Belonging(name=invite.network, founder=founder, seeds=invite.seeds)
    save_state(home / "network.json", known)
    _write_run_file(home, text if text is not None else network.settings or None)
    return known


def rotate_secret(home: Path) -> NetworkSecret:
    """A new network secret; invites and peers with the old one are refused once the daemon is restarted."""
    secret = NetworkSecret.generate()
    secret.replace(home)
    return secret


def _make(home: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable("cannot be made", str(error)) from None
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        raise _unusable("cannot be written", f"user {os.getuid()} may not write to {home}, or it is read-only")
    Identity.load_or_create(home)


def _unusable(how: str, seen: str) -> HardwareError:
    do = "name a directory that this user can write: --home DIR, or GOSSIPDP_HOME"
    return HardwareError("GD-505", f"the peer's home {how}", seen=seen, do=do)


def _write_run_file(home: Path, text: str | None) -> None:
    path = run_file(home)
    if text is not None and not (path.exists() and read_text(path) == text):
        replace_file(path, text.encode())


def _elsewhere(home: Path | None, known: str, wanted: str) -> ConfigError:
    return ConfigError(
        "GD-315",
        "this home belongs to another network",
        seen=f"{home} is of {known}, asked for {wanted}",
        do="choose another --home: one home, one network",
    )


# -- invites -----------------------------------------------------------------------------------------------------


def write_invite(home: Path, seeds: Sequence[str], config: Config) -> Path:
    """Write HOME/invite (0600): one word with the network's name, its secret, seeds and settings.

    Args:
        seeds: ``host:port`` each; empty ones are left out.
    """
    name = config.network.name
    invite = Invite(name, NetworkSecret.load(home), tuple(seed for seed in seeds if seed)[:MAX_SEEDS])
    settings = base64.urlsafe_b64encode(_settings(config).encode()).decode().rstrip("=")
    path = home / "invite"
    replace_file(path, f"{invite.encode()}.{settings}\n".encode())
    return path


def renew_invite(home: Path, address: str, others: Sequence[str], config: Config) -> None:
    """Have HOME/invite, if there is one, name this peer's `address` of today.

    Args:
        others: addresses of other members. Another address of this host that is not among them is an earlier one of
            this peer's own.
    """
    path = home / "invite"
    if not address or not path.is_file():
        return
    try:
        seeds: Sequence[str] = read_invite(read_text(path)).invite.seeds
    except ConfigError:
        seeds = others  # damaged
    host = address.rpartition(":")[0]
    kept = [seed for seed in seeds if seed in others or seed.rpartition(":")[0] != host]
    write_invite(home, [address, *(seed for seed in kept if seed != address)], config)


def read_invite(text: str) -> NewNetwork:
    """What `write_invite` wrote. Raises ConfigError GD-206; a secret is never repeated in the message."""
    token, _, settings = "".join(text.split()).partition(".")
    invite = Invite.decode(token)
    try:
        if len(settings) > MAX_SETTINGS:
            raise ValueError
        toml = base64.b64decode(settings + "=" * (-len(settings) % 4), altchars=b"-_", validate=True).decode()
        brought = load(toml, file="invite", presets=presets()).origins
        if any(key.partition(".")[0] not in SHARED for key, origin in brought.items() if origin.startswith("invite")):
            raise ValueError
    except (binascii.Error, ValueError):
        raise ConfigError(
            "GD-206",
            "this is not a whole invite",
            seen="its settings are damaged",
            do="copy it again, all of it; `gossipdp invite --show` prints it",
        ) from None
    return NewNetwork(invite, toml)


def _settings(config: Config) -> str:
    """What a joiner needs to train alike: the preset, and every chosen [exchange] and [outer] value of the network.

    What a host decides for itself (addresses, bandwidth, paths) is left out.
    """
    lines = [f'preset = "{config.preset}"\n']
    for section in SHARED:
        chosen = [
            f"{key.partition('.')[2]} = {configuration.RULES[key].show(configuration.value_of(config, key))}\n"
            for key, origin in config.origins.items()
            if key.startswith(f"{section}.") and key != "exchange.bandwidth" and not origin.startswith("preset ")
        ]
        if chosen:
            lines += [f"\n[{section}]\n", *chosen]
    return "".join(lines)
