"""Which samples are whose, without a coordinator: leases on the blocks of a data set, epoch after epoch.

An epoch is cut into numbered blocks. What is finished is a grow-only set (Shapiro et al. 2011, "Conflict-free
replicated data types"), merged by union; what is open is told by each peer of itself, the later word overriding. Both
are gossiped. A peer takes the blocks it owns by highest random weight (`rendezvous`) among the live members that read,
heaviest first, so that ownership follows who comes and goes. Once none of its own is free it helps: of every other's
free blocks all but the next go to that member, of those that have next to nothing left of their own, that is heaviest
for it. When there is nothing to help with either, the next epoch begins for this peer: nobody waits. Two epochs are
open at most; the first ends when all its blocks are finished, those of a dead member taken over by others. A member
that lies about what it has finished is believed; what it makes up about another, that one contradicts.

So two take one block only while news is on its way. How long that is each peer reckons from the gaps between its own
messages, and keeps off for as long what others may have in hand unheard: the next blocks of an owner, those that have
just become its own, and, as a newcomer, those that members own of which it has not heard whether they read.

What a block holds is not known here, nor how the ranks of a host share it. No clock, socket or message's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from gossipdp.protocol.data.blocks import DataSet, Lease, Ledger, pack, unpack
from gossipdp.protocol.events import DataCovered, DataKnown, Notice
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_BLOCKS, MAX_LEASES, MAX_READERS, Coverage, Reader

__all__ = ["MAX_DATA", "DataSet", "Lease", "Sharding"]

MAX_DATA: Final = 8
"""data sets known; past it, of those that this peer does not read, the one heard of last makes room"""
RATE: Final = 1500.0
"""bytes a second that a peer sends of this, at most, besides answers"""
SOONEST, LATEST = 0.25, 5.0
"""seconds between two messages while there is news, and while there is none"""
KEPT: Final = 2
"""free blocks left to each owner by those who help, at the least"""
ASKED: Final = 3
"""members asked what they know, before the first lease"""
ASK_WITHIN: Final = 2.0
"""seconds for their answers; halfway the question is repeated; none is answered twice within a quarter"""
LEASE_LASTS: Final = 600.0
"""seconds after which a block that is not finished is given up, or ten times as long as they usually take; one given up
is reckoned to have taken as long"""
MOST_ANSWERS: Final = 8
"""messages in which a newcomer is told who reads, at most"""
_READERS_BYTES: Final = 200
"""of one message, about"""
_ANSWERS_BYTES: Final = 1000
"""of one that a newcomer asked for"""
_LARGEST_EPOCH: Final = 1 << 30
"""past it, epochs are believed in as they follow each other"""
_LARGEST_SEQUENCE: Final = 1 << 31
"""of what others say that a peer has said; above, there is room for what it says itself"""


class Sharding:
    """Args:

    incarnation: this peer's.
    """

    def __init__(
        self, membership: Membership, *, incarnation: int, random: Random, outputs: Outputs, now: float
    ) -> None:
        self._membership, self._random, self._outputs = membership, random, outputs
        self._me, self._incarnation = membership.me.id[:8], incarnation
        self._sequence = 0
        self._gap = SOONEST
        """seconds between two messages while there is news, lately"""
        self._data: dict[bytes, Ledger] = {}
        self._gossip_at = self._free_at = now
        """when something is to be sent, and when it may be"""
        self._ring: list[bytes] = []
        self._behind: dict[bytes, bytes] = {}
        """who knows of an earlier epoch only, and of which data"""
        self._helped = False
        """the last message went to one of these"""
        self._warned: set[bytes] = set()
        self.dropped = 0
        """words of others that were none"""

    # -- commands ---------------------------------------------------------------------------------------------

    def open(self, data: DataSet, now: float) -> bool:
        """This peer trains on `data` from now on; False if that cannot be."""
        kept = self._data.get(data.digest)
        if kept is None:
            kept = self._admit(data)
        if kept is None or kept.data.blocks != data.blocks:
            return False
        if not kept.reads:
            kept.reads = True
            self._say(kept)
            self._follow(kept, now)
            self._ask(kept, now)
        return True

    def close(self, digest: bytes, now: float) -> None:
        """It does no more: what it has open is free for others."""
        data = self._data.get(digest)
        if data is not None and data.reads:
            data.reads = data.known = False
            data.known_at = math.inf
            data.mine.clear()
            self._say(data)
            self._follow(data, now)
            self._soon(now)

    def known(self, digest: bytes) -> bool:
        """Leases are given."""
        return digest in self._data and self._data[digest].known

    def epoch(self, digest: bytes) -> int:
        """The first that is not covered."""
        return self._data[digest].epoch

    def readers(self, digest: bytes) -> int:
        """Members that train on it, this one included if it does."""
        return self._data[digest].reading

    def ledger(self, digest: bytes) -> Ledger | None:
        """What is known of a data set; to be read alone."""
        return self._data.get(digest)

    def lease(
        self, digest: bytes, now: float, *, latest: int | None = None, first: int = -1, must: bool = False
    ) -> Lease | None:
        """The next block to train on, of the earliest epoch that has one for this peer; None if none has.

        Args:
            latest: epoch; None: whichever it takes.
            first: take the block next after this one in numbers, or from the start; -1: the heaviest.
            must: rather take one that somebody else has open than none.
        """
        data = self._data[digest]
        if data.presumed and now >= data.known_at + self.spreading():
            self._follow(data, now)
        epochs = range(data.epoch, data.epoch + 2 if latest is None else min(data.epoch + 1, latest) + 1)
        found = self._find(data, epochs, first, now)
        # Of an epoch that is over there is nothing to find, whoever reads.
        if found is None and data.presumed and epochs:
            # Who has said nothing may read nothing: a pass must not end with what nobody else goes through.
            data.known_at = -math.inf
            self._follow(data, now)
            found = self._find(data, epochs, first, now)
        if found is None and must:
            found = next((Lease(e, b) for e in epochs if (b := data.take_over(self._me, e)) is not None), None)
        if found is not None:
            data.mine[found] = now
            self._say(data)
            self._soon(now)
        return found

    def _find(self, data: Ledger, epochs: Sequence[int], first: int, now: float) -> Lease | None:
        spreading = self.spreading()
        # An owner that is as fast comes to so many before it can hear that they are taken.
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

    def spreading(self) -> float:
        """Seconds until everybody has news of this peer, very likely, if others send as often. Data sets with news take
        turns."""
        return self._rounds() * self._gap * max(1, sum(data.reads and data.news > 0 for data in self._data.values()))

    def finish(self, digest: bytes, lease: Lease, now: float) -> None:
        """Every sample of the block has been used."""
        data = self._data[digest]
        since = data.mine.pop(lease, None)
        if since is not None:
            data.usual = now - since if not data.usual else 0.8 * data.usual + 0.2 * (now - since)
        if data.is_finished(lease):
            data.duplicates += 1
        elif lease.epoch <= data.epoch + 1 and lease.block < data.data.blocks:
            blocks = [0, 0]
            blocks[lease.epoch - data.epoch] = 1 << lease.block
            data.merge(data.epoch, blocks)
        self._say(data)
        self._soon(now)

    def release(self, digest: bytes, lease: Lease, now: float) -> None:
        """The block will not be finished by this peer."""
        data = self._data[digest]
        if data.mine.pop(lease, None) is not None:
            self._say(data)
            self._soon(now)

    def state(self) -> bytes:
        """What is finished, for the disk."""
        sets = [
            (d.data.digest, d.data.name, d.data.blocks, d.epoch, *(pack(part, d.data.blocks) for part in d.finished))
            for d in self._data.values()
        ]
        return msgspec.msgpack.encode(sets)

    def restore(self, state: bytes) -> None:
        """Go on from what `state` gave; what cannot be read is nothing."""
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
        finished = [unpack(buffer, message.blocks) for buffer in buffers]
        data = self._data.get(message.data)
        # Whatever is believed can be said again: nothing leads past the largest epoch but to those that follow.
        everything = (1 << message.blocks) - 1
        leads_to = message.epoch + (finished[0] == everything) * (1 + (finished[1] == everything))
        furthest = max(_LARGEST_EPOCH, data.epoch + 3) if data is not None else _LARGEST_EPOCH
        if data is not None and source in data.asked:
            furthest = 2 * _LARGEST_EPOCH  # a newcomer is told where the others are
        if None in finished or leads_to > furthest:
            self.dropped += 1
            return
        if data is None:
            data = self._admit(DataSet(message.data, message.name, message.blocks))
        if data is None or data.data.blocks != message.blocks:
            self.dropped += 1
            return
        news = data.merge(message.epoch, [part or 0 for part in finished])
        live = self._incarnations() if message.readers else {}
        changed = [self._learn(data, reader, source, live) for reader in message.readers]
        if any(changed):
            self._follow(data, now)
        if news or any(changed):
            self._soon(now, data)
        self._warn(message)
        if message.reply:
            self._answer(source, data, now)
        elif message.epoch < data.epoch:
            self._behind[source] = message.data
            self._soon(now)
        if source in data.asked and not message.reply:
            data.asked.discard(source)
            if not data.asked:
                self._answered(data, now)

    def member_changed(self, now: float) -> None:
        """Somebody came, went, or is back."""
        for data in self._data.values():
            if self._follow(data, now):
                self._soon(now, data)

    def timer(self) -> float | None:
        if not self._data:
            return None
        times = [d.asked_at + ASK_WITHIN / (1 if d.repeated else 2) for d in self._data.values() if d.asked]
        return min([self._gossip_at, *times])

    def handle_timer(self, now: float) -> None:
        for data in self._data.values():
            if data.asked and now >= data.asked_at + ASK_WITHIN:
                self._answered(data, now)
            elif data.asked and not data.repeated and now >= data.asked_at + ASK_WITHIN / 2:
                data.repeated = True
                for peer in sorted(data.asked):
                    self._send(peer, data, now, reply=True)
        if self._data and now >= self._gossip_at:
            self._gossip(now)

    # -- inside -----------------------------------------------------------------------------------------------

    def _admit(self, data: DataSet) -> Ledger | None:
        """Room for one more data set, if there is."""
        if not 1 <= data.blocks <= MAX_BLOCKS:
            return None
        if len(self._data) >= MAX_DATA:
            unread = next((digest for digest, other in reversed(self._data.items()) if not other.reads), None)
            if unread is None:
                return None
            del self._data[unread]
        kept = self._data[data.digest] = Ledger(data)
        return kept

    def _warn(self, message: Coverage) -> None:
        """Two that read data of one name should read the same."""
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

    def _learn(self, data: Ledger, reader: Reader, source: bytes, live: dict[bytes, int]) -> bool:
        """What a member says of itself, or another says that it said; False if that is nothing new."""
        known = data.readers.get(reader.peer)
        told = source[:8] != reader.peer
        if told and reader.sequence > _LARGEST_SEQUENCE:
            return False
        if reader.peer == self._me:
            return self._contradict(data, reader, known)
        # Of a life that is not known to have begun it is to tell itself.
        if reader.peer not in live or (told and reader.incarnation > live[reader.peer]):
            return False
        # And what was heard of one that has turned out never to have begun is not known.
        known = known if known is not None and known.incarnation <= live[reader.peer] else None
        if known is not None and (reader.incarnation, reader.sequence) <= (known.incarnation, known.sequence):
            return False
        data.readers[reader.peer] = reader
        data.readers.move_to_end(reader.peer, last=False)
        return True

    def _contradict(self, data: Ledger, reader: Reader, own: Reader | None) -> bool:
        """What this peer has not said of itself would be believed: it says something later."""
        if reader.incarnation != self._incarnation or reader == own:
            return False
        if own is not None and reader.sequence < own.sequence:
            return False
        self._sequence = max(self._sequence, reader.sequence)
        self._say(data)
        return True

    def _incarnations(self) -> dict[bytes, int]:
        """Of the live members, by the first bytes of their ids."""
        return {member.id[:8]: member.incarnation for member in self._membership.alive()}

    def _follow(self, data: Ledger, now: float) -> bool:
        """Who reads, as far as is known; False if that has not changed. To a newcomer, for a while, all members that it
        has heard nothing of: else it would hold what is theirs for its own."""
        live = self._incarnations()
        for peer in [peer for peer in data.readers if peer not in live and peer != self._me]:
            del data.readers[peer]
        readers = {
            peer
            for peer, reader in data.readers.items()
            if reader.reads and (peer == self._me or reader.incarnation == live[peer])
        }
        new = data.reads and now < data.known_at + self.spreading()
        return data.follow(self._me, readers, {peer for peer in live if new and peer not in data.readers}, now)

    def _say(self, data: Ledger) -> None:
        """The own record anew."""
        self._sequence += 1
        codes = tuple(lease.code for lease in list(data.mine)[-MAX_LEASES:])
        data.readers[self._me] = Reader(self._me, self._incarnation, self._sequence, data.reads, codes)
        data.readers.move_to_end(self._me, last=False)
        data.news = self._rounds()

    def _rounds(self) -> int:
        """Messages until news has reached everybody, very likely (Pittel 1987: log2 N + ln N rounds of a push)."""
        members = 1 + len(self._membership.alive())
        return 2 + math.ceil(math.log2(members) + math.log(members))

    def _soon(self, now: float, data: Ledger | None = None) -> None:
        if data is not None:
            data.news = self._rounds()
        self._gossip_at = min(self._gossip_at, max(now, self._free_at))

    def _ask(self, data: Ledger, now: float) -> None:
        live = sorted(self._reached())
        data.asked = set(self._random.sample(live, min(ASKED, len(live))))
        data.asked_at, data.repeated = now, False
        for peer in sorted(data.asked):
            self._send(peer, data, now, reply=True)
        if not data.asked:
            self._answered(data, now)

    def _answered(self, data: Ledger, now: float) -> None:
        data.asked.clear()
        if data.reads and not data.known:
            data.come(now)
            self._outputs.emit(DataKnown(data.data.digest))

    def _gossip(self, now: float) -> None:
        for data in self._data.values():
            patience = max(LEASE_LASTS, 10.0 * data.usual)
            for lease, since in [(lease, since) for lease, since in data.mine.items() if now > since + patience]:
                data.usual = max(data.usual, now - since)
                self.release(data.data.digest, lease, now)
            self._tell(data)
        live = self._reached()
        self._behind = {peer: digest for peer, digest in self._behind.items() if peer in live and digest in self._data}
        # In turn, and by turns with what all are told: one that never catches up delays nobody.
        self._helped = bool(self._behind) and not self._helped
        if self._helped:
            peer = next(iter(self._behind))
            digest = self._behind.pop(peer)
            self._send(peer, self._data[digest], now, reply=False, finished=self._data[digest].finished)
        elif live:
            data = max(self._data.values(), key=lambda each: (each.news > 0, -each.sent_at))
            data.news = max(0, data.news - 1)
            self._send(self._next_in_ring(live), data, now, reply=False)
        busy = live and (self._behind or any(each.news for each in self._data.values()))
        self._gossip_at = self._free_at if busy else now + LATEST

    def _reached(self) -> set[bytes]:
        return {member.id for member in self._membership.alive() if self._membership.reaches(member.id)}

    def _next_in_ring(self, live: set[bytes]) -> bytes:
        """Live members in turn, in an order that changes."""
        while True:
            if not self._ring:
                self._ring = sorted(live)
                self._random.shuffle(self._ring)
            peer = self._ring.pop()
            if peer in live:
                return peer

    def _answer(self, to: bytes, data: Ledger, now: float) -> None:
        """All that is known: a newcomer that has not heard of a reader holds its blocks for its own."""
        data.answered = {peer: at for peer, at in data.answered.items() if now < at + ASK_WITHIN / 4}
        if to in data.answered:
            return
        data.answered[to] = now
        finished: Sequence[int] = data.finished
        for _ in range(min(MOST_ANSWERS, math.ceil(len(data.readers) / (MAX_READERS - 1))) or 1):
            self._send(to, data, now, reply=False, finished=finished, answer=True)
            finished = 0, 0

    def _send(
        self,
        to: bytes,
        data: Ledger,
        now: float,
        *,
        reply: bool,
        finished: Sequence[int] | None = None,
        answer: bool = False,
    ) -> None:
        head: list[Reader] = []
        room = _ANSWERS_BYTES if answer else _READERS_BYTES
        mine = data.readers.get(self._me)
        for reader in [*([mine] if mine else []), *data.readers.values()]:
            size = 20 + 5 * len(reader.leases)
            if (reader is mine and head) or size > room:
                continue
            head.append(reader)
            room -= size
            if len(head) == MAX_READERS:
                break
        for reader in head:
            data.readers.move_to_end(reader.peer)
        digest, name, blocks = data.data
        message = Coverage(digest, name, blocks, data.epoch, reply, tuple(head))
        if finished is None:
            finished = data.finished if reply else data.lately()
        buffers = [pack(part, blocks) for part in finished]
        size = self._outputs.send(to, message, buffers, address=self._membership.address_of(to))
        if answer:
            return  # Who asks puts nothing off that others are to hear.
        gap = max(SOONEST, size / RATE)
        self._gap += 0.1 * (gap - self._gap)
        self._free_at = max(self._free_at, now) + gap
        data.sent_at = now

    def _tell(self, data: Ledger) -> None:
        """The application, if anything has changed."""
        finished = data.finished[0].bit_count()
        told = (data.epoch, finished, data.reading, len(data.mine), data.duplicates)
        if told != data.told:
            data.told = told
            name, blocks = data.data.name, data.data.blocks
            epoch, finished, readers, open_, duplicates = told
            self._outputs.emit(DataCovered(name, epoch, finished, blocks, readers, open_, duplicates))
