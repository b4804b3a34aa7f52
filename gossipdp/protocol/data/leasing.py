"""Leases on the blocks of a data set: which samples each peer trains on, epoch after epoch, without a coordinator.

An epoch is cut into numbered blocks. The finished blocks are a grow-only set (Shapiro et al. 2011, "Conflict-free
replicated data types"), merged by union. Each peer reports its own open blocks; the later report overrides. Both are
gossiped. A peer takes the blocks that it owns by highest random weight (`rendezvous`) among the live members that read,
heaviest first, so ownership follows members that come and go.

A peer without free blocks of its own helps. Of each other owner's free blocks all but the next ones go to members with
hardly any blocks left, to the one for which a block is heaviest. When there is nothing to help with either, the next
epoch begins for this peer, so no peer waits. At most two epochs are open. The first ends when all its blocks are
finished; other members take over those of a dead one. A member that lies about its own finished blocks is believed. A
false report about another member is contradicted by that member.

So two peers take one block only while news is on its way. Each peer estimates that time from the gaps between its own
messages. For as long it leaves alone what others may have open unheard: the next blocks of each owner, the blocks that
it has just become the owner of, and, as a newcomer, those of members that have not reported.

Nothing here knows what a block holds, or how the ranks of a host share it. No clock and no socket is here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import DataSet, Lease, pack, unpack
from gossipdp.protocol.data.coverage import CoverageGossip
from gossipdp.protocol.events import DataCovered, DataKnown, MessageDropped, Notice
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_BLOCKS, MAX_LEASES, Coverage, Reader

__all__ = ["MAX_DATA", "DataSet", "Lease", "Leasing", "Reports"]


_LARGEST_SEQUENCE: Final = 1 << 31
"""largest sequence believed of a report that another member passes on; it leaves room to contradict"""


class Reports:
    """What the members have said about blocks that they hold or have read.

    A report is believed from its own peer. Another member may pass it on, and that peer contradicts a false one.

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


MAX_DATA: Final = 8
"""data sets known; past it, the one heard of last makes room, if this peer does not read it"""
KEPT: Final = 2
"""least number of free blocks that helpers leave to each owner"""
ASKED: Final = 3
"""members asked what they know, before the first lease"""
ASK_WITHIN: Final = 2.0
"""seconds for their answers. The question is repeated halfway. A member is answered once in a quarter of this time"""
LEASE_LASTS: Final = 600.0
"""seconds after which an unfinished block is given up, or ten times the usual time if that is longer"""
_LARGEST_EPOCH: Final = 1 << 30
"""past it, an epoch is believed only if it follows the known one"""


class Leasing:
    """Leases blocks of data sets to this host, as the network's members share them out.

    Args:
        incarnation: of this peer.
    """

    def __init__(
        self, membership: Membership, *, incarnation: int, random: Random, outputs: Outputs, now: float
    ) -> None:
        self._random, self._outputs, self._membership = random, outputs, membership
        self._me = membership.me.id[:8]
        self._data: dict[bytes, BlockTable] = {}
        self._gossip = CoverageGossip(self._data, self._me, membership, random=random, outputs=outputs, now=now)
        self._reports = Reports(self._me, incarnation, membership, self._gossip)
        self._warned: set[bytes] = set()
        self.dropped = 0
        """messages of epochs or data sets that this peer does not take"""

    # -- commands ---------------------------------------------------------------------------------------------

    def open(self, data: DataSet, now: float) -> bool:
        """This peer trains on `data` from now on. Returns False if it cannot."""
        kept = self._data.get(data.digest)
        if kept is None:
            kept = self._admit(data)
        if kept is None or kept.data.blocks != data.blocks:
            return False
        if not kept.reads:
            kept.open()
            self._reports.make(kept)
            self._reports.follow(kept, now)
            self._ask(kept, now)
        return True

    def close(self, digest: bytes, now: float) -> None:
        """This peer stops training on the data set. Its open blocks are free for other members."""
        data = self._data.get(digest)
        if data is not None and data.reads:
            data.close()
            self._reports.make(data)
            self._reports.follow(data, now)
            self._gossip.soon(now)

    def known(self, digest: bytes) -> bool:
        """Whether this peer has heard what other members know, so that it gives leases."""
        return digest in self._data and self._data[digest].known

    def epoch(self, digest: bytes) -> int:
        """The first epoch that is not finished."""
        return self._data[digest].epoch

    def readers(self, digest: bytes) -> int:
        """Members that train on the data set, this peer included if it does."""
        return self._data[digest].reading

    def table(self, digest: bytes) -> BlockTable | None:
        """What is known of a data set; only to be read."""
        return self._data.get(digest)

    def lease(
        self, digest: bytes, now: float, *, latest: int | None = None, first: int = -1, must: bool = False
    ) -> Lease | None:
        """The next block to train on, of the earliest epoch that has one for this peer; None if there is none.

        Args:
            digest: of the data set.
            latest: last epoch to take a block from; None: any open one.
            first: take the next block from this number on, or from the start; -1: the heaviest.
            must: take a block that another member has open, if there is no other.
        """
        data = self._data[digest]
        if data.presumed and now >= data.known_at + self._gossip.spreading():
            self._reports.follow(data, now)
        epochs = range(data.epoch, data.epoch + 2 if latest is None else min(data.epoch + 1, latest) + 1)
        found = self._find(data, epochs, first, now)
        # In a finished epoch there is nothing to find, whichever members read.
        if found is None and data.presumed and epochs:
            # Members that have not reported may read nothing. Blocks that no member takes must not end the pass.
            data.presume_silent_idle()
            self._reports.follow(data, now)
            found = self._find(data, epochs, first, now)
        if found is None and must:
            found = next((Lease(e, b) for e in epochs if (b := data.take_over(self._me, e)) is not None), None)
        if found is not None:
            data.take(found, now)
            self._reports.make(data)
            self._gossip.soon(now)
        return found

    def _find(self, data: BlockTable, epochs: Sequence[int], first: int, now: float) -> Lease | None:
        spreading = self._gossip.spreading()
        # An owner of the same speed reaches this many blocks before it can hear that they are taken.
        kept = max(KEPT, math.ceil(spreading / data.usual)) if data.usual else KEPT
        unsettled = data.unsettled(now - spreading)
        for epoch in epochs:
            block = data.choose(self._me, epoch, first, kept, unsettled)
            if block is not None:
                return Lease(epoch, block)
        for epoch in epochs if unsettled else ():
            block = data.inherit(self._me, epoch, first)
            if block is not None:
                return Lease(epoch, block)
        return None

    def finish(self, digest: bytes, lease: Lease, now: float) -> None:
        """Every sample of the block has been used."""
        data = self._data[digest]
        data.finish(lease, now)
        self._reports.make(data)
        self._gossip.soon(now)

    def release(self, digest: bytes, lease: Lease, now: float) -> None:
        """This peer will not finish the block."""
        data = self._data[digest]
        if data.release(lease):
            self._reports.make(data)
            self._gossip.soon(now)

    def state(self) -> bytes:
        """The finished blocks of all data sets, for the disk."""
        sets = [
            (d.data.digest, d.data.name, d.data.blocks, d.epoch, *(pack(part, d.data.blocks) for part in d.finished))
            for d in self._data.values()
        ]
        return msgspec.msgpack.encode(sets)

    def restore(self, state: bytes) -> None:
        """Go on from an earlier `state`. Unreadable parts are ignored."""
        try:
            sets = msgspec.msgpack.decode(state, type=list[tuple[bytes, str, int, int, bytes, bytes]])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        for digest, name, blocks, epoch, *parts in sets[:MAX_DATA]:
            if len(digest) == 16 and 1 <= blocks <= MAX_BLOCKS and 0 <= epoch <= 2 * _LARGEST_EPOCH:
                data = self._data.get(digest) or self._admit(DataSet(digest, name[:48], blocks))
                finished = [unpack(part, blocks) for part in parts]
                if data is not None and data.data.blocks == blocks and None not in finished:
                    data.merge(epoch, [part or 0 for part in finished])

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Coverage, buffers: Sequence[Buffer], source: bytes, now: float) -> None:
        """A message of the member `source` came."""
        finished = [unpack(buffer, message.blocks) for buffer in buffers]
        if None in finished:
            self._outputs.emit(MessageDropped(source, "malformed set of blocks"))
            return
        data = self._data.get(message.data)
        # Believed news is passed on, so only the epochs next to a known one may lead past the largest epoch.
        everything = (1 << message.blocks) - 1
        leads_to = message.epoch + (finished[0] == everything) * (1 + (finished[1] == everything))
        furthest = max(_LARGEST_EPOCH, data.epoch + 3) if data is not None else _LARGEST_EPOCH
        if data is not None and source in data.asked:
            furthest = 2 * _LARGEST_EPOCH  # a newcomer has to follow the others
        if leads_to > furthest:
            self.dropped += 1
            return
        if data is None:
            data = self._admit(DataSet(message.data, message.name, message.blocks))
        if data is None or data.data.blocks != message.blocks:
            self.dropped += 1
            return
        news = self._merge(data, message.epoch, [part or 0 for part in finished], source, now)
        changed = self._reports.learn(data, message.readers, source)
        if changed:
            self._reports.follow(data, now)
        if news or changed:
            self._spread(data, now)
        self._warn(message)
        if message.reply:
            if data.may_answer(source, ASK_WITHIN / 4, now):
                self._gossip.answer(source, data, now)
        elif message.epoch < data.epoch:
            self._gossip.is_behind(source, message.data, now)
        if source in data.asked and not message.reply:
            data.asked.discard(source)
            if not data.asked:
                self._end_asking(data, now)

    def _merge(self, data: BlockTable, epoch: int, finished: Sequence[int], source: bytes, now: float) -> bool:
        """Merge the finished blocks of `epoch` and the next, as far as `source` is believed. Returns whether any is
        news."""
        voice = bool(self._membership.voices([source]))
        return data.merge_told(epoch, finished, source, now, voice=voice, asked=source in data.asked)

    def member_changed(self, now: float) -> None:
        """A member came, went or came back."""
        for data in self._data.values():
            if self._reports.follow(data, now):
                self._spread(data, now)

    def timer(self) -> float | None:
        """When to call `handle_timer` next; None without a data set."""
        if not self._data:
            return None
        times = [d.asked_at + ASK_WITHIN / (1 if d.repeated else 2) for d in self._data.values() if d.asked]
        return min([self._gossip.at, *times])

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        for data in self._data.values():
            if data.asked and now >= data.asked_at + ASK_WITHIN:
                self._end_asking(data, now)
            elif data.asked and not data.repeated and now >= data.asked_at + ASK_WITHIN / 2:
                data.repeat()
                for peer in sorted(data.asked):
                    self._gossip.send(peer, data, now, reply=True)
        if self._data and now >= self._gossip.at:
            for data in self._data.values():
                for lease in data.outlasted(max(LEASE_LASTS, 10.0 * data.usual), now):
                    self.release(data.data.digest, lease, now)
                self._tell(data)
            self._gossip.send_next(now)

    # -- inside -----------------------------------------------------------------------------------------------

    def _admit(self, data: DataSet) -> BlockTable | None:
        """A table for one more data set, if there is room."""
        if not 1 <= data.blocks <= MAX_BLOCKS:
            return None
        if len(self._data) >= MAX_DATA:
            unread = next((digest for digest, other in reversed(self._data.items()) if not other.reads), None)
            if unread is None:
                return None
            del self._data[unread]
        kept = self._data[data.digest] = BlockTable(data)
        return kept

    def _warn(self, message: Coverage) -> None:
        """Warn once, if another member reads different data under the same name."""
        known = self._data.get(message.data)
        if message.data in self._warned or (known is not None and known.reads):
            return
        others = any(reader.reads for reader in message.readers)
        for data in self._data.values():
            if others and data.reads and data.data.name == message.name and data.data.digest != message.data:
                if len(self._warned) < MAX_DATA:
                    self._warned.add(message.data)
                    text = (
                        f"another peer reads data named {message.name!r} of {message.blocks} blocks that is not this "
                        f"peer's, of {data.data.blocks}: each goes through its own; use one data set, block and seed"
                    )
                    self._outputs.emit(Notice("GD-309", text))
                return

    def _spread(self, data: BlockTable, now: float) -> None:
        """There is news of `data`."""
        data.spread(self._gossip.rounds())
        self._gossip.soon(now)

    def _ask(self, data: BlockTable, now: float) -> None:
        live = sorted(self._gossip.reached())
        data.ask(self._random.sample(live, min(ASKED, len(live))), now)
        for peer in sorted(data.asked):
            self._gossip.send(peer, data, now, reply=True)
        if not data.asked:
            self._end_asking(data, now)

    def _end_asking(self, data: BlockTable, now: float) -> None:
        if data.end_asking(now):
            self._outputs.emit(DataKnown(data.data.digest))

    def _tell(self, data: BlockTable) -> None:
        """Tell the application, if anything has changed."""
        changes = data.changes()
        if changes is not None:
            epoch, finished, readers, open_, duplicates = changes
            name, blocks = data.data.name, data.data.blocks
            self._outputs.emit(DataCovered(name, epoch, finished, blocks, readers, open_, duplicates))
