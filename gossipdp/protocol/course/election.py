"""Which checkpoint a network goes on from when all its peers come back at once (protocol section 8).

The election only saves work. If a host comes up too late or a message is lost, two peers restore, and exchanges bring
them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.course.rules import goes_before
from gossipdp.protocol.model import Model
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.wire.messages import Has, Member, PushPull, Standing

__all__ = ["ASKS", "DIALS", "LISTEN", "PATIENCE", "Election"]

LISTEN: Final = 8
"""Periods in which a member may say what it holds. If half of all messages are lost, it misses all once in 1,000."""
ASKS: Final = 32
"""Members asked per period."""
DIALS: Final = 4
"""Remembered members that are not met yet and are dialled per period. All of them must find each other."""
PATIENCE: Final = 4.0
"""A member with a later checkpoint is waited for this many times `resume_after`."""
READY: Final = (Has.MODEL, Has.SPARE)


@dataclass
class _Other:
    """A live member, as a peer that comes back sees it."""

    met: float
    standing: Standing | None = None
    said: float = 0.0
    """Time at which it first said what it holds."""

    @property
    def ready(self) -> bool:
        return self.standing is not None and self.standing.has in READY

    @property
    def clock(self) -> int:
        """The clock of what it holds."""
        return 0 if self.standing is None else self.standing.clock

    @property
    def held(self) -> Held | None:
        """Its checkpoint, or its claim for a live training process, once it has said so."""
        said = self.standing
        return None if said is None or said.has is not Has.CHECKPOINT else Held(said.clock, said.rounds)


class Election:
    """Chooses which of several peers gives the model when no member has one.

    Args:
        tolerance: Steps of the network's clock that count as equally late.
    """

    def __init__(self, parts: Parts, *, tolerance: int) -> None:
        self._membership, self._random, self._outputs = parts.membership, parts.random, parts.outputs
        self._resume_after, self._tolerance = parts.config.resume_after, tolerance
        """Seconds to listen for the network before the peer goes on from its checkpoint, and steps."""
        self._period = parts.membership.config.join_interval
        self.held: Held | None = None
        """The progress of this peer's newest checkpoint, until the model is here."""
        self.live: Live | None = None
        """The live training process that waits, until the model is here."""
        self._claims = 0
        """Number of the claim. It changes when a live training process comes or goes."""
        self._others: dict[bytes, _Other] = {}
        self._expected: list[bytes] = []
        """Members remembered from before."""
        self.deadline = self._ask_at = math.inf
        """Until when this peer listens for the network."""
        self._met_at = math.inf
        """Time at which the first member was met."""
        self._alone = False
        """This peer knows no other."""

    @property
    def claim(self) -> Held | None:
        """The latest that this peer can go on from by itself: its checkpoint, or the live training process."""
        held, live = self.held, self.live
        if live is None:
            return held
        return Held(live.clock, 0) if held is None else Held(max(live.clock, held.clock), held.rounds)

    @property
    def process_first(self) -> bool:
        """The live training process goes before this peer's checkpoint."""
        held, live = self.held, self.live
        return live is not None and (held is None or live.clock + self._tolerance >= held.clock)

    def begin(self, now: float, remembered: Iterable[Member], held: Held | None, *, alone: bool) -> None:
        """This peer joins. held: of its newest checkpoint. alone: no address of another peer is known."""
        self.held = held
        self._expected = [member.id for member in remembered if member.id != self._membership.me.id]
        self.deadline, self._ask_at = now + self._resume_after, now
        self._alone = alone and not self._expected

    def holds(self, held: Held | None) -> None:
        """The newest checkpoint that can be read is this one, or there is none."""
        self.held = held

    def lives(self, live: Live | None) -> None:
        """A live training process waits. None: it is gone, or is a new one."""
        if live != self.live:
            self.live = live
            self._claims += 1

    def end(self) -> None:
        """The model is here."""
        self.held = self.live = None
        self._others.clear()
        self.deadline = self._ask_at = math.inf

    # -- what members say -------------------------------------------------------------------------------------

    def hear(self, message: Standing, source: bytes, now: float) -> None:
        """`source` says what it holds."""
        other, member = self._others.get(source), self._membership.members.get(source)
        if other is None or member is None or message.incarnation < member.incarnation:
            return
        before = other.standing
        if before is None or before.incarnation < message.incarnation:
            other.standing, other.said = message, now
        elif before.incarnation == message.incarnation and before.has is not Has.MODEL:
            # A claim of one number only falls until the peer is ready, when a checkpoint turns out to be damaged. So
            # messages out of order mislead no peer. A spare's model becomes newer.
            falls = (message.has, message.clock, message.rounds) < (before.has, before.clock, before.rounds)
            was_spare = before.has is Has.SPARE
            newer = message.has is Has.MODEL or (message.has is Has.SPARE and not (was_spare and falls))
            if message.number > before.number:
                other.standing, other.said = message, now
            elif newer or (falls and not was_spare and message.number == before.number):
                other.standing = message

    def member_changed(self, member: Member) -> None:
        """Membership has news of `member`. What an earlier life said is void."""
        other = self._others.get(member.id)
        if other is not None and other.standing is not None and other.standing.incarnation < member.incarnation:
            del self._others[member.id]

    def meet(self, alive: Sequence[bytes], now: float) -> list[bytes]:
        """Ask members met for the first time what they hold.

        Returns:
            Those of `alive` whose model is worth fetching.
        """
        for peer in self._others.keys() - set(alive):
            del self._others[peer]
        for peer in alive:
            if peer not in self._others:
                self._others[peer] = _Other(now)
                self._met_at = min(self._met_at, now)
                self.tell(peer, None, reply=True)
        return [peer for peer in alive if self._gives(self._others[peer]) and self._further(self._others[peer])]

    # -- the decision -----------------------------------------------------------------------------------------

    def waits(self, now: float) -> bool:
        """Whether there is a reason not to go on from this peer's own claim.

        A live member is ready and further. Or there may be such a member, or one with a later checkpoint: this peer
        waits for it, but not for ever.
        """
        listen, patience = LISTEN * self._period, PATIENCE * self._resume_after
        ready = [other for other in self._others.values() if other.ready]
        if self.live is not None and (ready or (self._alone and not self._others)):
            return any(map(self._further, ready))
        said = {peer for peer, other in self._others.items() if other.standing is not None}
        all_here = bool(self._expected) and said.issuperset(self._expected)
        if now < self.deadline and not (all_here and now >= self._met_at + listen):
            return True
        if any(map(self._gives, ready)):
            return True
        for peer, other in self._others.items():
            if other.standing is None:
                if now < other.met + listen:
                    return True
            elif self._later(peer) and now < other.said + patience:
                return True
        return False

    def _gives(self, other: _Other) -> bool:
        """Whether `other` is ready with a model worth fetching. The model of a member that trains always is."""
        spare = other.standing is not None and other.standing.has is Has.SPARE
        return other.ready and (not spare or self.held is None or other.clock + self._tolerance >= self.held.clock)

    def _later(self, peer: bytes) -> bool:
        """Whether `peer` holds a later checkpoint. Of two equal ones, that of the lower id counts as later."""
        claim, held = self.claim, self._others[peer].held
        if claim is None or held is None or not self._further(self._others[peer]):
            return False
        return goes_before(claim, held, lower=peer < self._membership.me.id)

    def _further(self, other: _Other) -> bool:
        """Whether what `other` holds goes before this peer's live training process, if there is one."""
        if self.live is None:
            return True
        return other.clock > self.live.clock + self._tolerance

    # -- what this peer says ----------------------------------------------------------------------------------

    def timer(self) -> float:
        """When `handle_timer` wants to be called next."""
        return self._ask_at

    def handle_timer(self, now: float) -> None:
        """Once a period, while no member's model is worth fetching: ask again, the latest checkpoint first."""
        if now < self._ask_at:
            return
        self._ask_at = now + self._period
        if any(map(self._gives, self._others.values())):
            return
        membership = self._membership
        missing = [peer for peer in self._expected if peer not in membership.members and membership.address_of(peer)]
        for peer in self._random.sample(missing, min(DIALS, len(missing))):
            self._outputs.send(peer, PushPull(True, (membership.me,)), address=membership.address_of(peer))
        others = sorted(self._others, key=lambda peer: self._others[peer].held or Held(0, 0), reverse=True)
        rest = self._random.sample(others[1:], min(ASKS - 1, max(0, len(others) - 1)))
        for peer in [*others[:1], *rest]:
            self.tell(peer, None, reply=True)

    def tell(self, peer: bytes, model: Model | None, *, reply: bool, spare: bool = False) -> None:
        """Say what this peer holds.

        Args:
            model: This peer's model, if it is here.
            reply: Ask what `peer` holds.
            spare: This peer does not train.
        """
        has, of = Has.NOTHING, Held(0, 0)
        if model is not None:
            has, of = Has.SPARE if spare else Has.MODEL, Held(model.clock, model.rounds)
        elif self.claim is not None:
            has, of = Has.CHECKPOINT, self.claim
        me = self._membership.me
        self._outputs.send(peer, Standing(me.incarnation, has, of.clock, of.rounds, reply, self._claims))
