"""Peers tell each other which rumours they have of each epoch: a digest to one member now and then, lists if it
differs.

Anti-entropy (Demers et al. 1987) for what the tree and its announcements missed: after a cut, with a newcomer, or when
the word of a neighbour was lost. Of settled epochs the digests are statements, signed by who makes them, and counted
against this peer's own. What becomes of a name that is listed is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from gossipdp.protocol.epidemic.epochs import EMPTY, Epochs
from gossipdp.protocol.epidemic.links import Links
from gossipdp.protocol.epidemic.signing import digest_name
from gossipdp.protocol.events import EpochDiverged, Notice
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_NAMES, NO_BASE, EpochDigest, IHave, Prune, Stage
from gossipdp.protocol.wire.messages import short

__all__ = ["EpochTalk"]


class EpochTalk:
    """Args:

    every: seconds between two questions.
    serves: whether the rumour of this name can be had from this peer.
    verify: of a peer, some bytes and its signature.
    """

    def __init__(
        self,
        epochs: Epochs,
        links: Links,
        *,
        run: bytes,
        incarnation: int,
        every: float,
        serves: Callable[[bytes], bool],
        random: Random,
        outputs: Outputs,
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        now: float,
    ) -> None:
        self._epochs, self._links, self._run, self._every = epochs, links, run, every
        self._random, self._outputs, self._sign, self._verify = random, outputs, sign, verify
        self._serves = serves
        self._number = incarnation << 32
        self._numbers: dict[bytes, int] = {}
        """of the last digest of each who is alive"""
        self.bases: dict[bytes, bytes] = {}
        """which founding the state of each who is alive goes back to, as it said last"""
        self._answered: dict[bytes, float] = {}
        """when each was last sent lists"""
        self._strangers: set[bytes] = set()
        """who of those alive has told of other settings"""
        self._at = now + every * random.random()

    def soon(self) -> None:
        """An epoch has closed, or settled: tell the neighbours."""
        for link in self._links.near():
            # One that had set this peer aside meanwhile does not know any more that it was chosen.
            self._tell(link.peer, reply=False, link=link.own)

    def timer(self) -> float:
        return self._at if self._links.live else float("inf")

    def greet(self) -> None:
        """Tell those who were chosen as neighbours."""
        for link in self._links.near():
            if not link.told:
                link.told = True
                self._tell(link.peer, reply=True, link=True)

    def handle_timer(self, now: float) -> None:
        self.bases = {peer: base for peer, base in self.bases.items() if peer in self._links.live}
        self._numbers = {peer: number for peer, number in self._numbers.items() if peer in self._links.live}
        self._answered = {peer: at for peer, at in self._answered.items() if now < at + self._every / 2}
        self._strangers &= self._links.live
        self.greet()
        if now < self.timer():
            return
        self._at = now + self._every * (0.75 + 0.5 * self._random.random())
        # Not only a neighbour: whoever has nobody but the wrong ones around it has to hear of the others.
        self._tell(self._random.choice(sorted(self._links.live)), reply=True)

    def receive(self, message: EpochDigest, buffers: Sequence[Buffer], source: bytes, now: float) -> bool:
        """False if it was not signed by `source`. Of one with other settings there is nothing to compare, and nothing
        to be proven."""
        if message.run != self._run:
            self._estranged(source, link=message.link)
            return True
        if not self._verify(source, digest_name(message, self._run), bytes(buffers[0])):
            return False
        if message.number <= self._numbers.get(source, -1):
            return True  # it has said more since
        if source in self._links.live:
            self._numbers[source], self.bases[source] = message.number, message.base
        if message.link and not self._links.befriend(source):
            self._outputs.send(source, Prune(link=False))
        marks = {mark.epoch: mark for mark in message.marks}
        for mark in marks.values():
            if (
                message.base == self._epochs.base
                and mark.stage is Stage.SETTLED
                and mark.epoch < min(message.first, self._epochs.first)
            ):
                self._count(source, mark.epoch, mark.digest)
        first = max(message.first, self._epochs.first)
        here = {each.epoch: each for each in self._epochs.live()}
        differ = [
            epoch
            for epoch in sorted({*here, *marks})
            if epoch >= first
            and (marks[epoch].digest if epoch in marks else EMPTY) != self._epochs.digest_of(epoch)
            and self._epochs.admits(epoch)
        ]
        if differ and now >= self._answered.get(source, float("-inf")) + self._every / 2:
            self._answered[source] = now
            for epoch in differ:
                known = here[epoch].names() if epoch in here else []
                names = [name for name in known if self._serves(name) or here[epoch].proof(name)]
                for start in range(0, len(names), MAX_NAMES):
                    self._outputs.send(source, IHave(epoch, tuple(names[start : start + MAX_NAMES])))
            if message.reply:
                self._tell(source, reply=False)
        return True

    def _estranged(self, source: bytes, *, link: bool) -> None:
        if link:
            self._outputs.send(source, Prune(link=False))
        self.bases.pop(source, None)
        if source in self._links.live and source not in self._strangers:
            self._strangers.add(source)
            text = f"member {short(source)} runs with other settings than this peer: see `gossipdp config show` on both"
            self._outputs.emit(Notice("GD-303", text))

    def _count(self, peer: bytes, epoch: int, digest: bytes) -> None:
        if self._epochs.held:
            return  # it would be said of a state that is being replaced, and once only
        lost = self._epochs.vote(peer, epoch, digest, len(self._links.live), self._links.me)
        if lost is not None:
            agree, holders = lost
            self._outputs.emit(EpochDiverged(epoch, agree, len(holders), holders))

    def _tell(self, to: bytes, *, reply: bool, link: bool = False) -> None:
        base = NO_BASE if self._epochs.held else self._epochs.base
        self._number += 1
        message = EpochDigest(self._epochs.first, self._epochs.marks(), reply, link, base, self._run, self._number)
        self._outputs.send(to, message, [self._sign(digest_name(message, self._run))])
