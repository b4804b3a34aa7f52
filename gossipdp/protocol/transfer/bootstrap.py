"""Where a peer's model comes from: its first training process, the network, its own checkpoint, or live training.

A founder takes the first training process's model. Any other peer asks a member that is ready. When a whole network
comes back after a power cut nobody is: then the peers that hold checkpoints tell each other how late these are
(`Standing`), and whoever holds the latest restores it, as the bully election has it (Garcia-Molina 1982, "Elections in
a distributed computing system"); the others fetch it from there. The election only saves work. If it errs, for a host
comes up too late or a message is lost, two peers restore, and exchanges bring them together; whoever then holds a
checkpoint later than what it fetched is told, and keeps it. A spare, a ready member that does not train, is fetched
from only if its model is no older than the own checkpoint.

A daemon that dies may leave its training process behind (`Live`), which holds a newer model than any checkpoint of this
peer. The peer claims that in the election, and takes the process's parameters over unless another member has something
that is more than `tolerance` later. No vector and no file is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.events import CheckpointAhead, Notice
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.view import LIVE
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.source import Giving
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    Has,
    Member,
    PushPull,
    Standing,
    State,
)

__all__ = ["Held", "Live", "Origin"]

LISTEN: Final = 8
"""periods of asking a member is given to say what it holds; one word in two lost, it misses them all once in 1,000"""
ASKS: Final = 32
"""members asked per period"""
DIALS: Final = 4
"""members known from before, and not met again, dialled per period: all must find each other, not only somebody"""
READY: Final = (Has.MODEL, Has.SPARE)
PATIENCE: Final = 4.0
"""times `resume_after` that a member with a later checkpoint is waited for"""


class Held(NamedTuple):
    """What a checkpoint is of: the network's clock in steps, and the peer's rounds. The later one is the greater."""

    clock: int
    rounds: int


class Live(NamedTuple):
    """What a training process says of its parameters when it comes back to a daemon."""

    clock: int
    """the network's, in steps, at which they stand"""
    steps: int
    """own steps in them that no snapshot was taken of, as far as the process knows"""
    samples: int
    """of those steps"""


@dataclass
class _Other:
    """A live member as seen by a peer that comes back."""

    met: float
    standing: Standing | None = None
    said: float = 0.0
    """when it first said what it holds"""

    @property
    def ready(self) -> bool:
        return self.standing is not None and self.standing.has in READY

    @property
    def clock(self) -> int:
        """Of what it has."""
        return 0 if self.standing is None else self.standing.clock

    @property
    def held(self) -> Held | None:
        """Its checkpoint, or its claim for a live training process, as far as it has said so."""
        said = self.standing
        return None if said is None or said.has is not Has.CHECKPOINT else Held(said.clock, said.rounds)


class Origin:
    """Args:

    joiner: fetches the model.
    resume_after: seconds a peer that comes back listens for the network before it goes on from its checkpoint.
    tolerance: steps of the network's clock by which a checkpoint may be ahead of what is fetched: a peer's last rounds
        before a stop may have been told to nobody. A live training process may be as far behind another's model and
        keeps its own: replicas that near are averaged.
    exact: every replica is the same bits, so any member's model goes before that of a live training process.
    adopt: called with the schema's bytes, "received" or "restored", clock and rounds once the model is here.
    take_over: called when the live training process's parameters are to be the model.
    """

    def __init__(
        self,
        membership: Membership,
        progress: ProgressBoard,
        joiner: Callable[[], Joiner],
        *,
        random: Random,
        outputs: Outputs,
        resume_after: float,
        tolerance: int,
        exact: bool,
        adopt: Callable[[bytes, str, int, int], None],
        take_over: Callable[[], None],
    ) -> None:
        self._membership, self._progress, self._new_joiner = membership, progress, joiner
        self._random, self._outputs, self._adopt = random, outputs, adopt
        self._resume_after, self._tolerance, self._exact, self._take_over = resume_after, tolerance, exact, take_over
        self._period = membership.config.join_interval
        self.founder = False
        self.giver = b""
        """who the state was fetched from, the last of them"""
        self.begun = 0
        """the network's clock when the last source of the transfer began"""
        self.summary = b""
        """what is inside the state that was fetched, if it is an exact one"""
        self.carried: Carried = NOTHING
        """what came with the model, from a member or from the checkpoint"""
        self._joiner: Joiner | None = None
        self.held: Held | None = None
        """of the own newest checkpoint, until the model is here"""
        self._live: Live | None = None
        """the training process that waits, until the model is here"""
        self._claims = 0
        """number of the claim: it changes when a live training process comes or goes"""
        self.taking: Held | None = None
        """the claim with which the live training process's parameters are being taken over"""
        self._others: dict[bytes, _Other] = {}
        self._expected: list[bytes] = []
        self._deadline = self._ask_at = math.inf
        self._met_at = math.inf
        self._restoring = False
        self._alone = False
        """this peer knows no other"""

    def join(self, now: float, remembered: Iterable[Member], held: Held | None, *, alone: bool = False) -> None:
        """Look for the model. `held`: of this peer's newest checkpoint; `remembered`: who was there before; `alone`: no
        other address is known."""
        if self.founder:
            return
        self._joiner = self._new_joiner()
        self.held = held
        self._expected = [member.id for member in remembered if member.id != self._membership.me.id]
        self._deadline, self._ask_at = now + self._resume_after, now
        self._alone = alone and not self._expected

    def lives(self, live: Live | None) -> None:
        """The training process that waits, if it holds what a daemon that died had; None: it has gone, or is new."""
        if live != self._live:
            self._live = live
            self._claims += 1

    def taken_over(self, *, finite: bool) -> None:
        """The live training process's parameters are the model now, or were not finite."""
        self.taking = None
        if finite:
            self._end()
        else:
            self.lives(None)

    @property
    def claim(self) -> Held | None:
        """The latest that this peer can go on from by itself: its checkpoint, or the live training process."""
        held, live = self.held, self._live
        if live is None:
            return held
        return Held(live.clock, 0) if held is None else Held(max(live.clock, held.clock), held.rounds)

    # -- inputs -----------------------------------------------------------------------------------------------

    def standing(
        self, message: Standing, source: bytes, model: Model | None, now: float, *, spare: bool = False
    ) -> None:
        """What `source` has, and, if it asks, what this peer has: a `model`, perhaps as a `spare`."""
        if message.reply:
            self._tell(source, model, reply=False, spare=spare)
        other, member = self._others.get(source), self._membership.members.get(source)
        if other is None or member is None or message.incarnation < member.incarnation:
            return
        before = other.standing
        if before is None or before.incarnation < message.incarnation:
            other.standing, other.said = message, now
        elif before.incarnation == message.incarnation and before.has is not Has.MODEL:
            # A claim of one number only falls, when a checkpoint turns out to be damaged, until the peer is ready:
            # so words that come out of order cannot mislead. A spare's model becomes newer.
            falls = (message.has, message.clock, message.rounds) < (before.has, before.clock, before.rounds)
            was_spare = before.has is Has.SPARE
            newer = message.has is Has.MODEL or (message.has is Has.SPARE and not (was_spare and falls))
            if message.number > before.number:
                other.standing, other.said = message, now
            elif newer or (falls and not was_spare and message.number == before.number):
                other.standing = message

    def receive(
        self,
        message: Giving,
        buffers: list[Buffer],
        source: bytes,
        now: float,
    ) -> None:
        """A word of the source that this peer fetches from, or of a witness."""
        # While a checkpoint or a training process's parameters are read, nothing else may make room for a model.
        if self._joiner is None or self._restoring or self.taking is not None:
            return
        self._joiner.receive(message, buffers, source, now)
        mismatch, self._joiner.mismatch = self._joiner.mismatch, ""
        if mismatch == "size":
            self._outputs.emit(Notice("GD-502", "the network's model does not fit this host's memory"))
        elif mismatch:
            self._outputs.emit(Notice("GD-303", mismatch))
        self._conclude()

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        if self._joiner is not None and member.state in (State.FAILED, State.LEFT):
            self._joiner.gone(member.id, now)
            self._conclude()
        other = self._others.get(member.id)
        if other is not None and other.standing is not None and other.standing.incarnation < member.incarnation:
            del self._others[member.id]

    def offered(self, peer: bytes, now: float) -> None:
        """`peer` wants an exchange: it has the model, if it lives."""
        member = self._membership.members.get(peer)
        if self._joiner is not None and self.claim is None and member is not None and member.state in LIVE:
            self._joiner.beckoned(peer, now)

    def adopted(self, job: jobs.Adopt | jobs.CheckPiece, result: jobs.Checked, now: float) -> None:
        """The result of an Adopt, or of a CheckPiece."""
        if self._joiner is not None:
            self._joiner.adopted(job, result, now)
            self._conclude()

    def compared(self, result: jobs.Compared | None, now: float) -> None:
        """The result of a Compare."""
        if self._joiner is not None:
            self._joiner.compared(result, now)
            self._conclude()

    def _conclude(self) -> None:
        joiner = self._joiner
        if joiner is not None and joiner.done:
            assert joiner.manifest is not None
            clock, rounds = joiner.manifest.clock, joiner.manifest.rounds
            if self.held is not None and self.held.clock > clock + self._tolerance:
                self._outputs.emit(CheckpointAhead(self.held.clock, self.held.rounds, clock))
            self._end()
            self.summary, self.giver, self.carried = joiner.summary, joiner.giver, joiner.carried
            self.begun = joiner.begun
            self._adopt(joiner.schema_bytes, "received", clock, rounds)

    def restored(self, result: jobs.Restored | None, now: float) -> None:
        """The result of a Restore."""
        self._restoring = False
        if result is None:
            self.held = None
            if self._live is not None:
                return
            text = "no state from the network and no checkpoint here: looking for a member that has the model"
            self._outputs.emit(Notice("GD-101", text))
            return
        held = Held(result.clock, result.rounds)
        if self.held is not None and held < self.held:
            # The newest was damaged: somebody else's may now be the latest.
            self.held = held
            if self._waits(now):
                # What was fetched so far has given way to the checkpoint.
                self._joiner = self._new_joiner()
                return
        self._end()
        self.carried = Carried(result.reference, result.state)
        self._adopt(result.schema, "restored", result.clock, result.rounds)

    def _end(self) -> None:
        self._joiner = self.held = self._live = None
        self._others.clear()
        self._deadline = self._ask_at = math.inf

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        if self._joiner is None:
            return None
        times = [self._joiner.timer()]
        if self.claim is not None and not self._restoring:
            times.append(self._ask_at)
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        if self._joiner is None:
            return
        self._joiner.handle_timer(now)
        self._conclude()
        if self.claim is not None and now >= self._ask_at:
            self._ask_at = now + self._period
            self._ask()

    def step(self, now: float) -> None:
        """Whatever has changed: ask for the model, meet others, restore, or take the live training process over."""
        if self._joiner is None or self._restoring or self.taking is not None:
            return
        alive = [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]
        if self.claim is None:
            self._joiner.seek(alive, now)
            return
        for peer in self._others.keys() - set(alive):
            del self._others[peer]
        for peer in alive:
            if peer not in self._others:
                self._others[peer] = _Other(now)
                self._met_at = min(self._met_at, now)
                self._tell(peer, None, reply=True)
        ready = [peer for peer in alive if self._gives(self._others[peer]) and self._further(self._others[peer])]
        self._joiner.seek(ready, now)
        if self._joiner.busy or self._waits(now):
            return
        if self._live is not None and (self.held is None or self._live.clock + self._tolerance >= self.held.clock):
            self.taking = self.claim
            self._take_over()
        else:
            self._restoring = True
            self._outputs.ask(jobs.Restore())

    def _gives(self, other: _Other) -> bool:
        """Is `other` ready, with a model that is worth fetching? That of a member that trains always is."""
        spare = other.standing is not None and other.standing.has is Has.SPARE
        return other.ready and (not spare or self.held is None or other.clock + self._tolerance >= self.held.clock)

    # -- the election -----------------------------------------------------------------------------------------

    def _waits(self, now: float) -> bool:
        """Is there a reason not to go on from what this peer has? A live member is ready and further; or, not for
        ever, there may be one, or a member that holds a later checkpoint."""
        listen, patience = LISTEN * self._period, PATIENCE * self._resume_after
        ready = [other for other in self._others.values() if other.ready]
        if self._live is not None and (ready or (self._alone and not self._others)):
            return any(map(self._further, ready))
        said = {peer for peer, other in self._others.items() if other.standing is not None}
        all_here = bool(self._expected) and said.issuperset(self._expected)
        if now < self._deadline and not (all_here and now >= self._met_at + listen):
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

    def _later(self, peer: bytes) -> bool:
        """Does `peer` hold a later checkpoint than this one? Of two alike, the lower id's is the later."""
        claim, held = self.claim, self._others[peer].held
        if claim is None or held is None or not self._further(self._others[peer]):
            return False
        return held > claim or (held == claim and peer < self._membership.me.id)

    def _further(self, other: _Other) -> bool:
        """Does what `other` has go before this peer's live training process? It does if there is no such process."""
        if self._live is None or self._exact:
            return True
        return other.clock > self._live.clock + self._tolerance

    def _ask(self) -> None:
        """While no member is known to be ready, ask again which is, the one with the latest checkpoint first."""
        if any(map(self._gives, self._others.values())):
            return
        membership = self._membership
        missing = [peer for peer in self._expected if peer not in membership.members and membership.address_of(peer)]
        for peer in self._random.sample(missing, min(DIALS, len(missing))):
            self._outputs.send(peer, PushPull(True, (membership.me,)), address=membership.address_of(peer))
        others = sorted(self._others, key=lambda peer: self._others[peer].held or Held(0, 0), reverse=True)
        rest = self._random.sample(others[1:], min(ASKS - 1, max(0, len(others) - 1)))
        for peer in [*others[:1], *rest]:
            self._tell(peer, None, reply=True)

    def _tell(self, peer: bytes, model: Model | None, *, reply: bool, spare: bool = False) -> None:
        has, of = Has.NOTHING, Held(0, 0)
        if model is not None:
            has, of = Has.SPARE if spare else Has.MODEL, Held(model.clock, model.rounds)
        elif self.claim is not None:
            has, of = Has.CHECKPOINT, self.claim
        me = self._membership.me
        self._outputs.send(peer, Standing(me.incarnation, has, of.clock, of.rounds, reply, self._claims))
