"""What a peer says of itself in every hello, and whom it lets in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gossipdp.errors import RefusedError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import SECRET
from gossipdp.protocol.wire.messages import NewSecret, short
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
        self._check_member(peer)
        known = self.secret.hello_key(generation) is not None
        if not known or not self._lets_in(peer, generation):
            proven = f"the network secret of {_date(generation)}" if known else "a network secret that is unknown here"
            mine = _date(self.secret.generation)
            raise RefusedError("GD-208", f"the handshake used {proven}, but the current one here is of {mine}")

    def check_linked(self, peer: bytes, generation: int) -> None:
        """Check that `peer` may keep the link on which it has proven this generation of the network's secret.

        Raises:
            RefusedError: GD-204 or GD-208.
        """
        self._check_member(peer)
        if not self._lets_in(peer, generation):
            raise RefusedError("GD-208", "the previous network secret has expired")

    @property
    def older(self) -> tuple[int, ...]:
        """Older generations of the secret that other peers may still have, the newest first."""
        renewal = self._renewal()
        return (*self.secret.older, 0) if renewal is not None and renewal.replaces == 0 else self.secret.older

    def _check_member(self, peer: bytes) -> None:
        if why := self.admission.why_not(peer):
            raise RefusedError("GD-204", f"{short(peer)} is not admitted here: {why}")

    def _lets_in(self, peer: bytes, generation: int) -> bool:
        """Whether `peer` comes with the present secret, is to have it, or comes in the time of the one before."""
        renewal = self._renewal()
        if generation == self.secret.generation:
            return True
        if renewal is None:
            return False
        return peer in self._named() or (generation == renewal.replaces and self.wall() < renewal.until)

    def _renewal(self) -> NewSecret | None:
        """What the operator has decided about the secret that this peer holds."""
        known = self.admission.about(SECRET)
        return known.secret if known is not None and known.number == self.secret.generation else None

    def _named(self) -> tuple[bytes, ...]:
        known = self.admission.about(SECRET)
        return () if known is None else known.allowed


def _date(generation: int) -> str:
    """The number of a generation is the operator's time in milliseconds."""
    if not generation:
        return "the network's start"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(generation // 1000, 253_402_300_799)))
