"""Reports of which blocks each reader of a data set has open: makes this peer's own, and merges those of members.

A report is believed from its own peer. Another member may pass it on, and that peer contradicts a false one.
"""

from __future__ import annotations

from typing import Final

from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.coverage import CoverageGossip
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.wire.messages import MAX_LEASES, Reader

__all__ = ["Reports"]

_LARGEST_SEQUENCE: Final = 1 << 31
"""largest sequence believed of a report that another member passes on; it leaves room to contradict"""


class Reports:
    """What the members have said about blocks that they hold or have read.

    Args:
        me: first bytes of this peer's id.
        incarnation: of this peer.
    """

    def __init__(self, me: bytes, incarnation: int, membership: Membership, gossip: CoverageGossip) -> None:
        self._me, self._incarnation, self._membership, self._gossip = me, incarnation, membership, gossip
        self._sequence = 0
        """counts this peer's reports, over all data sets"""

    def make(self, data: BlockTable) -> None:
        """Make the own report anew."""
        self._sequence += 1
        codes = tuple(lease.code for lease in list(data.mine)[-MAX_LEASES:])
        data.report(Reader(self._me, self._incarnation, self._sequence, data.reads, codes))
        data.spread(self._gossip.rounds())

    def learn(self, data: BlockTable, readers: tuple[Reader, ...], source: bytes) -> bool:
        """Merge reports that `source` told. Returns whether any is news."""
        live = self._incarnations() if readers else {}
        news = [self._learn(data, reader, source, live) for reader in readers]
        return any(news)

    def follow(self, data: BlockTable, now: float) -> bool:
        """Compute the owners again. Returns whether they changed.

        For a newcomer, members that have not reported yet count as owners for a while. Else it would take their blocks
        for its own.
        """
        live = self._incarnations()
        for peer in [peer for peer in data.readers if peer not in live and peer != self._me]:
            del data.readers[peer]
        readers = {
            peer
            for peer, reader in data.readers.items()
            if reader.reads and (peer == self._me or reader.incarnation == live[peer])
        }
        new = data.reads and now < data.known_at + self._gossip.spreading()
        return data.follow(self._me, readers, {peer for peer in live if new and peer not in data.readers}, now)

    def _learn(self, data: BlockTable, reader: Reader, source: bytes, live: dict[bytes, int]) -> bool:
        known = data.readers.get(reader.peer)
        passed_on = source[:8] != reader.peer
        if passed_on and reader.sequence > _LARGEST_SEQUENCE:
            return False
        if reader.peer == self._me:
            return self._contradict(data, reader, known)
        # A member itself has to report of an incarnation that is not known yet.
        if reader.peer not in live or (passed_on and reader.incarnation > live[reader.peer]):
            return False
        # A report of an incarnation that never began does not count.
        known = known if known is not None and known.incarnation <= live[reader.peer] else None
        if known is not None and (reader.incarnation, reader.sequence) <= (known.incarnation, known.sequence):
            return False
        data.report(reader)
        return True

    def _contradict(self, data: BlockTable, reader: Reader, own: Reader | None) -> bool:
        """Another member told a report that this peer has not made: make a later one. Returns whether it had to."""
        if reader.incarnation != self._incarnation or reader == own:
            return False
        if own is not None and reader.sequence < own.sequence:
            return False
        self._sequence = max(self._sequence, reader.sequence)
        self.make(data)
        return True

    def _incarnations(self) -> dict[bytes, int]:
        """First bytes of the id of each live member -> its incarnation."""
        return {member.id[:8]: member.incarnation for member in self._membership.alive()}
