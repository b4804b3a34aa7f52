"""Invites: one word with the network's name, its secret, seeds and settings, in HOME/invite."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gossipdp import config as configuration
from gossipdp.config import Config
from gossipdp.config_loading import load
from gossipdp.errors import ConfigError
from gossipdp.runtime.network.identity import NetworkSecret
from gossipdp.runtime.network.invite import MAX_SEEDS, HostInvite, Invite, decode_invite
from gossipdp.runtime.network.key_files import replace_file
from peers.home import invite_file, network_of, presets, read_text

__all__ = ["NewNetwork", "read_invite", "refresh_invite", "renew_invite", "write_host_invite", "write_invite"]

SHARED = ("exchange", "outer")
"""sections whose values an invite carries"""
HOST_INVITES = "invites"
"""folder of the home with the invites for single hosts"""
MAX_SETTINGS = 2048
"""characters of the settings in an invite"""


class NewNetwork(NamedTuple):
    """The content of an invite: access to the network, and its settings as TOML."""

    invite: Invite | HostInvite
    settings: str


def write_invite(home: Path, seeds: Sequence[str], config: Config) -> Path:
    """Write HOME/invite (0600): one word with the network's name, its secret, seeds and settings.

    Args:
        seeds: ``host:port`` each; empty ones are skipped.

    Returns:
        The path of the file.
    """
    known = network_of(home)
    operator = b"" if known is None else bytes.fromhex(known.operator)
    dialled = tuple(dict.fromkeys(seed for seed in seeds if seed))[:MAX_SEEDS]
    invite = Invite(config.network.name, NetworkSecret.load(home), dialled, operator)
    path = invite_file(home)
    replace_file(path, f"{invite.encode()}.{_encoded(config)}\n".encode())
    return path


def renew_invite(home: Path, addresses: Sequence[str], others: Sequence[str], config: Config) -> None:
    """Put this peer's current `addresses` into HOME/invite, if that exists.

    Args:
        others: addresses of other members. Any further address of this host is an earlier one of this peer, and goes.
    """
    path = invite_file(home)
    if not addresses or not path.is_file():
        return
    try:
        seeds: Sequence[str] = read_invite(read_text(path)).invite.seeds
    except ConfigError:
        seeds = others  # the file is damaged
    hosts = {address.rpartition(":")[0] for address in addresses}
    kept = [seed for seed in seeds if seed in others or seed.rpartition(":")[0] not in hosts]
    write_invite(home, [*addresses, *(seed for seed in kept if seed not in addresses)], config)


def refresh_invite(home: Path, config: Config) -> None:
    """Put the network's present secret into HOME/invite, if that exists and is whole."""
    path = invite_file(home)
    if path.is_file():
        with contextlib.suppress(ConfigError):
            write_invite(home, read_invite(read_text(path)).invite.seeds, config)


def write_host_invite(home: Path, invite: HostInvite, config: Config) -> Path:
    """Write HOME/invites/NAME (0600), for the hosts that the invite lets in. Returns the path of the file."""
    path = home / HOST_INVITES / invite.decision.name
    replace_file(path, f"{invite.encode()}.{_encoded(config)}\n".encode())
    return path


def read_invite(text: str) -> NewNetwork:
    """Read what `write_invite` wrote. Raises ConfigError GD-206, whose text never holds the secret."""
    token, _, settings = "".join(text.split()).partition(".")
    invite = decode_invite(token)
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
            "this is not a complete invite",
            seen="its settings are damaged",
            do="copy all of it again; `gossipdp invite --show` prints it",
        ) from None
    return NewNetwork(invite, toml)


def _encoded(config: Config) -> str:
    return base64.urlsafe_b64encode(_settings(config).encode()).decode().rstrip("=")


def _settings(config: Config) -> str:
    """Settings for a joiner: the preset, and every value of [exchange] and [outer] that the operator chose.

    Settings of a single host (addresses, bandwidth, paths) are left out.
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
