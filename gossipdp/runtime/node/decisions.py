"""Puts decisions of the network's operator in force at this host, and on its disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from gossipdp.errors import DataError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import SECRET, receipt
from gossipdp.protocol.wire.messages import Receipt
from gossipdp.runtime.network.identity import digest_of
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.node.records import Records

__all__ = ["DecisionKeeper"]

LOOK_EVERY: Final = 60.0
"""seconds between looks for invites that ended long ago, and for a secret that was not taken"""


class DecisionKeeper:
    """A decision is in force here before it is on the disk.

    Args:
        records: saves decisions, receipts and the network's new secret.
        notice: tells the operator a code and a text.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        admission: Admission,
        transport: Transport,
        records: Records,
        notice: Callable[[str, str], None],
        wall: Callable[[], float],
    ) -> None:
        self._admission, self._transport, self._records = admission, transport, records
        self._notice, self._wall = notice, wall
        self.saved = self._secret_saved = True
        """whether all decisions, and the secret, are on the disk"""
        self._looked_at = -math.inf
        self._told = 0
        """number of the last new secret that is not for this host"""

    def taken(self) -> None:
        """Decisions or receipts were taken."""
        self._renew()
        self._transport.admission_changed()
        self._save()

    def tick(self) -> None:
        """Try again what the disk has refused. Forget old invites, and take a secret that a restart has left."""
        if self._wall() >= self._looked_at + LOOK_EVERY:
            self._looked_at = self._wall()
            self._admission.expire(self._looked_at)
            self._renew()
        if not (self.saved and self._secret_saved):
            self._save()

    def receipt(self) -> Receipt | None:
        """The receipt of this peer for the network's secret, if it holds that and has not given one yet."""
        admission, identity = self._admission, self._transport.identity
        renewal = admission.about(SECRET)
        if renewal is None or renewal.number != self._transport.secret.generation:
            return None
        if identity.id not in renewal.allowed or identity.id in admission.holders(SECRET):
            return None
        return receipt(renewal, identity.id, admission.network, identity.sign)

    def _renew(self) -> None:
        """Take the network's new secret, if the operator has sealed it for this peer."""
        renewal, transport = self._admission.about(SECRET), self._transport
        me = transport.identity.id
        if renewal is None or renewal.secret is None or self._has(renewal.number, renewal.secret.digest):
            return
        if me not in renewal.allowed:
            if renewal.number != self._told:
                until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(renewal.secret.until))
                text = f"the network has a new secret, which this host does not get; members let it in until {until}"
                self._notice("GD-208", text)
            self._told = renewal.number
            return
        secret = transport.identity.unseal(renewal.secret.boxes[renewal.allowed.index(me)])
        if secret is None or digest_of(secret) != renewal.secret.digest:
            self._notice("GD-208", "the network has a new secret, and the one sealed for this peer is damaged")
            return
        transport.renew(transport.secret.renewed(renewal.number, secret))
        self._secret_saved = False

    def _has(self, number: int, digest: bytes) -> bool:
        """Whether this peer holds that secret, or a newer one."""
        held = self._transport.secret
        same = held.generation == number and digest_of(held.reveal_generation()) == digest
        return same or held.generation > number

    def _save(self) -> None:
        try:
            self._records.keep_decisions(self._admission.decisions, self._admission.receipts)
            if not self._secret_saved:  # a peer with a secret and without its decision refuses all that lack the secret
                self._records.keep_secret(self._transport.secret)
                self._secret_saved = True
            self.saved = True
        except DataError as error:
            self.saved = False
            self._notice(error.code, f"decisions of the operator are in force, but not yet on the disk: {error.seen}")
