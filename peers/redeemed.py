"""Turns an invite for one host into access to the network."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.invite import HostInvite, Invite
from gossipdp.runtime.network.proxy import Proxy
from gossipdp.runtime.network.redeeming import redeem
from peers import home as homes

__all__ = ["redeemed"]


def redeemed(home: Path, invite: Invite | HostInvite, proxy: Proxy | None = None) -> Invite:
    """An invite with the network's secret. A member gives it to the holder of an invite for one host.

    A home that has the secret already, as after a restart of a container, uses that.

    Args:
        proxy: through which members are dialled; None: directly.

    Raises:
        ConfigError: GD-315, the home belongs to another network.
        RefusedError: GD-202, GD-208 or GD-209, members do not let this host in.
        UnreachableError: GD-101, no member answers.
    """
    if isinstance(invite, Invite):
        return invite
    homes.prepare(home, invite.network)
    secret = _kept(home, invite) or redeem(invite, Identity.load(home), proxy=proxy)
    return Invite(invite.network, secret, invite.seeds, invite.operator)


def _kept(home: Path, invite: HostInvite) -> NetworkSecret | None:
    with contextlib.suppress(FileNotFoundError):
        secret = NetworkSecret.load(home)
        if secret.curve_server_keys().public == invite.curve and secret.generation >= invite.generation:
            return secret
    return None
