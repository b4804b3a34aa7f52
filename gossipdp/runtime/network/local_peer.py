"""What a peer says of itself in every hello, and whom it lets in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gossipdp.errors import RefusedError
from gossipdp.protocol.admission.register import SECRET, Admission
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime.network.identity import Identity, NetworkSecret

__all__ = ["LocalPeer"]


@dataclass(slots=True)
class LocalPeer:
    """What this peer says of itself, and whom it admits.

    run: b"" until the peer founds a run or learns it.
    start: mark of this start, 8 bytes.
    admission: who may have a link.
    secret: of the network.
    wall: seconds since 1970.
    """

    identity: Identity
    network: str
    run: bytes
    incarnation: int
    start: bytes
    admission: Admission
    secret: NetworkSecret
    wall: Callable[[], float] = time.time

    def belong(self, run: bytes) -> None:
        """The peer belongs to `run` from now on."""
        self.run = run

    def renew(self, secret: NetworkSecret) -> None:
        """The peer has got the network's new secret."""
        self.secret = secret

    def check_admitted(self, peer: bytes, generation: int) -> None:
        """Check that `peer`, which proves this generation of the network's secret, may have a link.

        Raises:
            RefusedError: GD-204 or GD-208.
        """
        if why := self.admission.why_not(peer):
            raise RefusedError("GD-204", f"{short(peer)} is not admitted here: {why}")
        known = self.secret.hello_key(generation) is not None
        if not known or (generation != self.secret.generation and not self._lets_in(peer, generation)):
            theirs, mine = _date(generation), _date(self.secret.generation)
            here = short(self.identity.id)
            text = f"{short(peer)} has the network's secret of {theirs}, and {here} has that of {mine}"
            raise RefusedError("GD-208", text)

    def _lets_in(self, peer: bytes, generation: int) -> bool:
        """Whether `peer` may still come with the secret before the present one."""
        renewal = self.admission.about(SECRET)
        if renewal is None or renewal.secret is None or renewal.number != self.secret.generation:
            return False
        in_time = peer in renewal.allowed or self.wall() < renewal.secret.until
        return generation == renewal.secret.replaces and in_time


def _date(generation: int) -> str:
    """The number of a generation is the operator's time in milliseconds."""
    if not generation:
        return "the network's start"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(generation // 1000, 253_402_300_799)))
