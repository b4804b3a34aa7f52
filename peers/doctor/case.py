"""What an examination is about: a home, a network, and the addresses of members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gossipdp.config import Config
from gossipdp.errors import ConfigError
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.invite import Invite
from gossipdp.runtime.network.proxy import Proxy, proxy_of
from peers import home as homes
from peers.advertising import listen_port
from peers.doctor.daemon import ABSENT, Daemon, look
from peers.doctor.talk import Network
from peers.invites import NewNetwork

__all__ = ["Case"]

MOST: Final = 4
"""addresses that are visited, at most"""


@dataclass(frozen=True, slots=True)
class Case:
    """One examination.

    home: None if this host has none.
    network: None if no secret is known.
    addresses: ``host:port`` of members.
    parameters: of the model; 0 if unknown.
    """

    home: Path | None
    config: Config
    network: Network | None = None
    addresses: tuple[str, ...] = ()
    parameters: int = 0
    daemon: Daemon = ABSENT
    identities: tuple[Identity, ...] = field(default=(), repr=False)

    @property
    def port(self) -> int:
        """The TCP port that the peer listens on; 0 if none is fixed."""
        return listen_port(self.config) or 0

    def proxy(self) -> Proxy | None:
        """The proxy of this host; None if it dials directly. Raises ConfigError GD-206."""
        return proxy_of(self.config.network.proxy, self.config.network.proxy_login)

    @property
    def advertised(self) -> tuple[str, ...]:
        return homes.advertised(self.config)


def of_home(home: Path, parameters: int = 0, address: str = "", peer: str = "") -> Case:
    """The case of an existing home.

    Args:
        address: visit this one alone.
        peer: visit this member alone: its name, or the start of its id.

    Raises:
        ConfigError: no such member.
    """
    config, daemon = homes.read_config(home), look(home)
    known = homes.network_of(home)
    network = Network(known.name, NetworkSecret.load(home)) if known is not None else None
    if peer:
        addresses = _member(daemon, peer)
    elif address:
        addresses = (address,)
    else:
        others = [row["address"] for row in daemon.members if not row.get("me") and row.get("state") == "alive"]
        addresses = tuple(dict.fromkeys(filter(None, (*others, *config.network.seeds))))[:MOST]
    # A daemon that runs uses its key itself. Else a member that admits only known keys is visited with it.
    identities = () if daemon.runs else (Identity.generate(), Identity.load(home))
    return Case(
        home, config, network, addresses, parameters or daemon.status.get("parameters") or 0, daemon, identities
    )


def of_invite(invite: NewNetwork, home: Path, parameters: int = 0) -> Case:
    """The case of a host that is to join; `home` need not exist."""
    known = home if homes.network_of(home) is not None else None
    config = homes.read_config(known)
    # An invite for one host holds no secret: no member is met before the host joins with it.
    network = Network(invite.invite.network, invite.invite.secret) if isinstance(invite.invite, Invite) else None
    daemon = look(home) if known is not None else ABSENT
    return Case(home, config, network, invite.invite.seeds[:MOST], parameters, daemon)


def of_host(addresses: Sequence[str], parameters: int = 0) -> Case:
    """The case of a host without a home."""
    return Case(None, homes.read_config(None), None, tuple(addresses), parameters)


def _member(daemon: Daemon, peer: str) -> tuple[str, ...]:
    rows = [row for row in daemon.members if row.get("name") == peer or str(row.get("id", "")).startswith(peer)]
    if len(rows) != 1:
        names = ", ".join(sorted(str(row.get("name")) for row in daemon.members)) or "none: no daemon answers"
        seen = f"{peer!r} fits {len(rows)} members; members: {names}"
        raise ConfigError("usage", "--peer must name one member", seen=seen, do="see `gossipdp members`")
    found = tuple(filter(None, (rows[0].get("address"), *(rows[0].get("others") or ()))))
    if not found:
        raise ConfigError("usage", "this member cannot be dialled: it only dials out", seen=str(rows[0].get("name")))
    return found[:MOST]
