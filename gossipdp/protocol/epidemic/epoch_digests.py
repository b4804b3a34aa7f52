"""Peers compare their sets of increments: a digest of each epoch to one member now and then, names where digests
differ.

This is anti-entropy (Demers et al. 1987) for increments that the tree and its announcements missed: after a cut, at a
newcomer, or when a message was lost. Digests of settled epochs are signed statements, which a peer counts against its
own. What happens to a name that is listed is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.epoch_set import EMPTY
from gossipdp.protocol.epidemic.epochs import Epochs
from gossipdp.protocol.epidemic.links import Links
from gossipdp.protocol.epidemic.signing import digest_name
from gossipdp.protocol.events import EpochDiverged, Event, Notice
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_NAMES, NO_BASE, EpochDigest, IHave, Prune, Stage
from gossipdp.protocol.wire.messages import short

__all__ = ["EpochDigests"]


class EpochDigests:
    """The digests that one peer sends and compares.

    Args:
        serves: whether this peer can send the increment of a name.
        report: takes events.
        sign: signs bytes with this peer's key.
        verify: whether (peer, bytes, signature) is valid.
    """

    def __init__(
        self,
        config: BroadcastConfig,
        epochs: Epochs,
        links: Links,
        *,
        incarnation: int,
        serves: Callable[[bytes], bool],
        random: Random,
        outputs: Outputs,
        report: Callable[[Event], None],
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        now: float,
    ) -> None:
        self._epochs, self._links, self._run, self._every = epochs, links, config.run, config.sync
        self._random, self._outputs, self._sign, self._verify = random, outputs, sign, verify
        self._serves, self._report = serves, report
        self._number = incarnation << 32
        self._numbers: dict[bytes, int] = {}
        """number of the last digest of each live member"""
        self.bases: dict[bytes, bytes] = {}
        """founding of each live member's state, by its last digest"""
        self._asked: dict[bytes, EpochDigest | None] = {}
        """members asked for a digest, and what came last"""
        self._answered: dict[bytes, float] = {}
        """when each member was last sent names"""
        self._strangers: set[bytes] = set()
        """live members with other settings"""
        self._at = now + config.sync * random.random()

    def soon(self) -> None:
        """An epoch has closed or settled: tell the neighbours."""
        for link in self._links.neighbours():
            # A neighbour that had set this peer aside has forgotten that it was chosen.
            self._tell(link.peer, reply=False, link=link.own)

    def ask(self, peers: Sequence[bytes]) -> None:
        """Ask `peers` for their digests."""
        for peer in peers:
            self._asked.setdefault(peer, None)
            self._tell(peer, reply=True)

    def agrees(self, peer: bytes) -> bool:
        """Whether the last digest that `peer` sent, after it was asked, is equal to this peer's."""
        message = self._asked.get(peer)
        return message is not None and message.base == self._epochs.base and not self._differing(message)

    def timer(self) -> float:
        """When the next digest is due."""
        return self._at if self._links.live else float("inf")

    def greet(self) -> None:
        """Tell the neighbours that this peer chose."""
        for link in self._links.to_greet():
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
        # Any member, not only a neighbour: a peer with bad neighbours must hear of the other members.
        self._tell(self._random.choice(sorted(self._links.live)), reply=True)

    def receive(self, message: EpochDigest, buffers: Sequence[Buffer], source: bytes, now: float) -> bool:
        """Compare a digest, and answer with names. False if `source` did not sign it.

        A digest of another run is neither compared nor proof of a fault.
        """
        if message.run != self._run:
            self._estranged(source, link=message.link)
            return True
        if not self._verify(source, digest_name(message, self._run), bytes(buffers[0])):
            return False
        if message.number <= self._numbers.get(source, -1):
            return True  # a later digest came before
        if source in self._links.live:
            self._numbers[source], self.bases[source] = message.number, message.base
        if source in self._asked:
            self._asked[source] = message
        if message.link and not self._links.chosen_by(source):
            self._outputs.send(source, Prune(link=False))
        marks = {mark.epoch: mark for mark in message.marks}
        for mark in marks.values():
            if (
                message.base == self._epochs.base
                and mark.stage is Stage.SETTLED
                and mark.epoch < min(message.first, self._epochs.first)
            ):
                self._count(source, mark.epoch, mark.digest)
        differ, here = self._differing(message), {each.epoch: each for each in self._epochs.live()}
        if differ and now >= self._answered.get(source, float("-inf")) + self._every / 2:
            self._answered[source] = now
            for epoch in differ:
                known = here[epoch].names() if epoch in here else []
                names = [name for name in known if self._serves(name) or here[epoch].proof(name)]
                for start in range(0, len(names), MAX_NAMES):
                    self._outputs.send(source, IHave(epoch, tuple(names[start : start + MAX_NAMES])))
            if message.reply:
                self._tell(source, reply=False)
        elif message.reply and source in self._asked and not differ:
            self._tell(source, reply=False)
        return True

    def _differing(self, message: EpochDigest) -> list[int]:
        """Epochs that are not settled, and of which the sender holds another set of increments."""
        marks = {mark.epoch: mark.digest for mark in message.marks}
        first = max(message.first, self._epochs.first)
        here = [each.epoch for each in self._epochs.live()]
        return [
            epoch
            for epoch in sorted({*here, *marks})
            if epoch >= first
            and marks.get(epoch, EMPTY) != self._epochs.digest_of(epoch)
            and self._epochs.admits(epoch)
        ]

    def _estranged(self, source: bytes, *, link: bool) -> None:
        if link:
            self._outputs.send(source, Prune(link=False))
        self.bases.pop(source, None)
        if source in self._links.live and source not in self._strangers:
            self._strangers.add(source)
            text = f"member {short(source)} runs with other settings than this peer: see `gossipdp config show` on both"
            self._report(Notice("GD-303", text))

    def _count(self, peer: bytes, epoch: int, digest: bytes) -> None:
        if self._epochs.held:
            return  # the vote would count for a state that is being replaced
        outvoted = self._epochs.vote(peer, epoch, digest, len(self._links.live), self._links.me)
        if outvoted is not None:
            agree, holders = outvoted
            self._report(EpochDiverged(epoch, agree, len(holders), holders))

    def _tell(self, to: bytes, *, reply: bool, link: bool = False) -> None:
        base = NO_BASE if self._epochs.held else self._epochs.base
        self._number += 1
        message = EpochDigest(self._epochs.first, self._epochs.marks(), reply, link, base, self._run, self._number)
        self._outputs.send(to, message, [self._sign(digest_name(message, self._run))])
