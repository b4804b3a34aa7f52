"""A peer's home: where it is, what it holds, and its configuration.

    HOME/
      network.json      the network's name, whether this host founded it, and its seeds
      run.toml          the configuration, from the operator or from the invite
      identity.key      this peer's key (0600)             incarnation    number of its starts
      network.secret    admits hosts to the network (0600) invite         admits another host (0600), see `invites`
      invites/          invites for single hosts (0600)
      operator.key      bans and allows members (0600); only where `up` made it, or the operator keeps it
      log/              what daemon and supervisor log, see `log_file`
      supervisor.json   the processes of this home, see `supervisor_file`
      run, members.json, decisions.json, history.jsonl, checkpoints/, control.sock
      compiled/         kernels, if numba has no other place

The home is ``--home``, else ``GOSSIPDP_HOME``, else ``~/.gossipdp/NETWORK``. NETWORK comes from RUN.toml, an invite or
``GOSSIPDP_NETWORK_NAME``. Without a name it is the only home of this user, or the only one whose daemon runs.
Nothing here may start a process or open a socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gossipdp import config as configuration
from gossipdp.config import Config
from gossipdp.config_loading import load
from gossipdp.errors import ConfigError, GossipdpError, HardwareError
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime import decisions_file
from gossipdp.runtime.files import load_state, save_state
from gossipdp.runtime.home_paths import expanded, homes_of_user
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity, NetworkSecret
from gossipdp.runtime.network.incarnation import INCARNATION_FILE
from gossipdp.runtime.network.invite import Invite
from gossipdp.runtime.network.key_files import KEY_BYTES, replace_file
from peers.decisions import Desk

__all__ = [
    "HomeNetwork",
    "advertised",
    "find_home",
    "follow",
    "found",
    "invite_file",
    "join",
    "keep_addresses",
    "known_name",
    "network_of",
    "peer_name",
    "prepare",
    "presets",
    "read_config",
    "removed_if_not_started",
    "run_file",
    "with_port",
]

NETWORK = "network.json"
RUN = "run"
"""the file with the id of the run that this home belongs to"""
KEPT = ("listen", "advertise", "nat", "relay", "relay_only", "proxy", "proxy_login")
"""keys of [network] whose flags hold for later starts, too, unless run.toml has them: they belong to the host"""
MAX_SHOWN = 8
"""homes that an error names, at most"""
MAX_RUN_FILE = 1 << 20


class HomeNetwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The network of a home."""

    name: str
    founder: bool
    """`up` made this home, not `join`: this host may give the network its first model"""
    seeds: tuple[str, ...] = ()
    operator: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """public key of the operator whose decisions about members this host follows; "" for none"""
    kept: dict[str, str | float | bool | tuple[str, ...]] = {}
    """values of `KEPT` that flags of an earlier start gave"""


def run_file(home: Path) -> Path:
    return home / "run.toml"


def invite_file(home: Path) -> Path:
    return home / "invite"


def _network_file(home: Path) -> Path:
    return home / NETWORK


def network_of(home: Path) -> HomeNetwork | None:
    """The network of `home`; None for a new home. Raises DataError GD-603."""
    return load_state(_network_file(home), HomeNetwork)


def presets() -> dict[str, str]:
    """The presets for operators: name -> TOML text."""
    directory = resources.files("peers") / "configs"
    return {
        entry.name.removesuffix(".toml"): entry.read_text("utf-8")
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def read_text(path: Path) -> str:
    """The text of a configuration file. Raises ConfigError GD-313."""
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
    """The configuration of `home`, from flags, the environment, its run.toml (or `file`) and presets.

    Raises:
        ConfigError: GD-310 to GD-313, GD-315.
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
    known = network_of(home) if home is not None else None
    if known is None:
        return config
    if config.network.name != known.name:
        if "network.name" in config.origins:
            raise _elsewhere(home, known.name, config.network.name)
        config = _replaced(config, home, name=known.name)
    if not config.network.seeds and known.seeds:
        config = _replaced(config, home, seeds=known.seeds)
    kept = {key: value for key, value in known.kept.items() if _weak(config.origins.get(f"network.{key}", ""))}
    return _replaced(config, home, **kept) if kept else config


def _weak(origin: str) -> bool:
    """Whether the operator has not set a value, in a file or at this start."""
    return origin in ("", "default") or origin.startswith("preset ")


def keep_addresses(home: Path, config: Config, flags: Mapping[str, str]) -> None:
    """Keep what flags say of this host's addresses for its later starts."""
    given = {key: getattr(config.network, key) for key in KEPT if f"network.{key}" in flags}
    known = network_of(home)
    if given and known is not None:
        save_state(_network_file(home), msgspec.structs.replace(known, kept=known.kept | given))


def _replaced(config: Config, home: Path | None, **values: Any) -> Config:
    origins = config.origins | {f"network.{key}": f"{home}/{NETWORK}" for key in values}
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
    """Choose the home; it may not exist yet. The order is at the top of this file.

    Args:
        option: the value of --home.
        network: the network's name, if it is known.
        default: name of the home to make if there is none. Only the command that starts a daemon has one.
        environment: variables; by default those of this process.
        runs: tells whether the daemon of a home runs. Among several homes the one with a running daemon is chosen.

    Raises:
        ConfigError: GD-314, there is no home, or several are possible.
    """
    environment = os.environ if environment is None else environment
    if chosen := option or environment.get("GOSSIPDP_HOME"):
        return expanded(chosen).absolute()
    base = homes_of_user(environment)
    if name := network or environment.get("GOSSIPDP_NETWORK_NAME"):
        return base / name
    homes = sorted(path.parent for path in base.glob(f"*/{NETWORK}"))
    if len(homes) == 1:
        return homes[0]
    if not homes and default:
        return base / default
    if not homes:
        raise ConfigError(
            "GD-314",
            "there is no peer on this host",
            seen=f"{base} has no home",
            do="run `gossipdp up --network NAME` or `gossipdp join` first",
        )
    running = [home for home in homes if runs(home)]
    if len(running) == 1 and not default:
        return running[0]
    shown = sorted(homes, key=lambda home: (home in running) == bool(default))
    names = ", ".join(f"{home.name} ({'runs' if home in running else 'does not run'})" for home in shown[:MAX_SHOWN])
    more = f" and {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else ""
    do = f"choose one: --home {shown[0]}"
    raise ConfigError("GD-314", "there are several peers on this host", seen=names + more, do=do)


def peer_name(config: Config, identity: Identity) -> str:
    """This peer's name among the members: as configured, or from host and key."""
    chosen = config.network.peer
    return chosen if chosen != configuration.AUTO else f"{socket.gethostname()[:30]}-{short(identity.id)}"


def known_name(home: Path, flags: Mapping[str, str]) -> str:
    """The name of this home's peer, for the log of a process that has not read the home yet."""
    try:
        return peer_name(read_config(home, flags), Identity.load(home))
    except (GossipdpError, OSError):
        return home.name


def advertised(config: Config) -> tuple[str, ...]:
    """The addresses, each ``host:port``, that other peers dial; empty if the configuration alone does not tell them."""
    chosen, port = config.network.advertise, config.network.listen.rpartition(":")[2]
    if chosen in ((configuration.AUTO,), ("none",)) or port == "off":
        return ()
    return tuple(with_port(address, port) for address in chosen if port != "0" or with_port(address, 0) == address)


def with_port(address: str, port: int | str) -> str:
    """`address`, with `port` if it has none."""
    return f"{address}:{port}" if re.fullmatch(r"\[.*\]|[^:]*", address) else address


# -- making a home -----------------------------------------------------------------------------------------------


def found(home: Path, config: Config, text: str | None) -> HomeNetwork:
    """Prepare `home` for `up`, with a new network and secret, or with the network that it already has.

    Args:
        text: the new run.toml; None keeps the file.
    """
    prepare(home, config.network.name)
    known = network_of(home)
    if known is None:
        try:
            NetworkSecret.load(home)
        except FileNotFoundError:
            NetworkSecret.generate().save(home)
        operator = Identity.load_or_create(home, OPERATOR_FILE)
        _renew_first(home, config.network.name, operator)
        known = HomeNetwork(name=config.network.name, founder=True, operator=operator.id.hex())
        save_state(_network_file(home), known)
    _write_run_file(home, text)
    return known


def join(home: Path, invite: Invite, text: str | None) -> HomeNetwork:
    """Prepare `home` for `join`. An invite with a newer secret replaces the old secret (`keys rotate`).

    Args:
        text: the new run.toml; None keeps the file.
    """
    prepare(home, invite.network)
    known = network_of(home)
    founder, operator = (False, "") if known is None else (known.founder, known.operator)
    try:
        old = NetworkSecret.load(home)
    except FileNotFoundError:
        invite.secret.save(home)
    else:
        if old.founded_with(invite.secret):
            old.with_generations_of(invite.secret).replace(home)
        else:
            invite.secret.replace(home)
            # Both this host and the inviter ran `up`. The network is the inviter's, so it is founded there.
            founder, operator = False, ""
    if operator and invite.operator and operator != invite.operator.hex():
        seen = f"{home} follows {operator}, but the invite names {invite.operator.hex()}"
        do = "follow the right one by `gossipdp keys operator --trust KEY`, then join again"
        raise ConfigError("GD-207", "the invite names another operator", seen=seen, do=do)
    kept, operator = {} if known is None else known.kept, invite.operator.hex() or operator
    known = HomeNetwork(name=invite.network, founder=founder, seeds=invite.seeds, kept=kept, operator=operator)
    save_state(_network_file(home), known)
    _write_run_file(home, text)
    return known


@contextlib.contextmanager
def removed_if_not_started(home: Path) -> Iterator[None]:
    """If the block fails before a first daemon starts, `home` is no peer's home afterwards, unless it was one before.

    Else later commands would find several homes, and one of them without a peer.
    """
    new, there = network_of(home) is None, home.exists()
    try:
        yield
    except (GossipdpError, OSError) as error:
        others = isinstance(error, GossipdpError) and error.code == "GD-104"  # another supervisor runs there
        if new and not others and not (home / INCARNATION_FILE).exists():
            for path in (_network_file(home), invite_file(home)):
                path.unlink(missing_ok=True)
            if not there:
                shutil.rmtree(home, ignore_errors=True)
        raise


def follow(home: Path, operator: bytes) -> None:
    """This host follows the decisions of `operator` from its next start on."""
    known = network_of(home)
    assert known is not None
    save_state(_network_file(home), msgspec.structs.replace(known, operator=operator.hex()))


def prepare(home: Path, network: str) -> None:
    """Make `home` with this peer's key, for `network`. Raises ConfigError GD-315: it belongs to another one."""
    known = network_of(home)
    if known is not None and known.name != network:
        raise _elsewhere(home, known.name, network)
    _make(home)


def _renew_first(home: Path, network: str, operator: Identity) -> None:
    """Give a new network its first renewed secret. So no invite for one host needs to hold the first secret."""
    secret = NetworkSecret.load(home)
    if secret.generation:
        return
    desk = Desk.of_founder(operator, network)
    renewed = secrets.token_bytes(KEY_BYTES)
    decision = desk.about_secret(renewed, [Identity.load(home).id], first=True)
    decisions_file.save_decisions(home, [decision], [])
    secret.renewed(decision.number, renewed).replace(home)


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
        seen=f"{home} belongs to {known}, but {wanted} was asked for",
        do="choose another --home: a home has one network",
    )
