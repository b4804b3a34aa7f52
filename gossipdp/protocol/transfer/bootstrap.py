"""Where a peer's model comes from: its first training process, the network, its own checkpoint, or live training.

A founder takes the first training process's model. Any other peer fetches it from a member that is ready. When a whole
network comes back after a power cut, no member is ready. Then an `Election` decides which peer restores its checkpoint.
A peer that holds a checkpoint later than what it fetched is told, and keeps it. A spare, a ready member that does not
train, is fetched from only if its model is not older than the own checkpoint.

A daemon that dies may leave its training process behind (`Live`), which holds a newer model than any checkpoint of this
peer. The peer claims that in the election. It takes over the process's parameters unless a member has something that is
more than `tolerance` later.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Protocol

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.events import CheckpointAhead, Notice
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.view import LIVE
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.state_machine import Machine, Table, diagram
from gossipdp.protocol.transfer.arrived import Arrived, Origin
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.transfer.election import Election
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.source import Giving
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Member, Standing, State

__all__ = ["BOOTSTRAP", "Action", "Bootstrap", "Event", "NewJoiner", "Phase", "bootstrap_diagram"]


class Phase(enum.Enum):
    WAITING = "Waiting"
    """The daemon has not said yet whether this peer founds or joins."""
    FOUNDING = "Founding"
    """The first training process gives the network its model, or has given it."""
    SEEKING = "Seeking"
    """The peer fetches, or waits for members that may have something later than its own."""
    RESTORING = "Restoring"
    """The driver reads the newest checkpoint."""
    TAKING_OVER = "TakingOver"
    """The parameters of a live training process are read."""
    READY = "Ready"
    """The model is here."""


class Event(enum.Enum):
    FOUND = "told to found"
    JOIN = "told to join"
    FETCHED = "the model of a member is complete"
    CHECKPOINT_WINS = "no member's model goes before its checkpoint"
    PROCESS_WINS = "no member's model goes before its live training process"
    RESTORED = "the checkpoint is read"
    EARLIER = "only an earlier checkpoint could be read, and a member's may go before it"
    UNREADABLE = "no checkpoint could be read"
    TAKEN = "the parameters are read"
    NOT_FINITE = "the parameters have NaN or Inf"


class Action(enum.Enum):
    RESTORE = "read it"
    TAKE_OVER = "read its parameters"
    RESTART = "drop what was fetched"
    FORGET = "claim no checkpoint"
    DISMISS = "claim no process"
    END = "stop asking"


BOOTSTRAP: Final[Table[Phase, Event, Action]] = {
    (Phase.WAITING, Event.FOUND): (Phase.FOUNDING, None),
    (Phase.WAITING, Event.JOIN): (Phase.SEEKING, None),
    (Phase.SEEKING, Event.FETCHED): (Phase.READY, Action.END),
    (Phase.SEEKING, Event.CHECKPOINT_WINS): (Phase.RESTORING, Action.RESTORE),
    (Phase.SEEKING, Event.PROCESS_WINS): (Phase.TAKING_OVER, Action.TAKE_OVER),
    (Phase.RESTORING, Event.RESTORED): (Phase.READY, Action.END),
    (Phase.RESTORING, Event.EARLIER): (Phase.SEEKING, Action.RESTART),
    (Phase.RESTORING, Event.UNREADABLE): (Phase.SEEKING, Action.FORGET),
    (Phase.TAKING_OVER, Event.TAKEN): (Phase.READY, Action.END),
    (Phase.TAKING_OVER, Event.NOT_FINITE): (Phase.SEEKING, Action.DISMISS),
}


def bootstrap_diagram() -> str:
    """The table as a Mermaid diagram."""
    return "\n".join(["stateDiagram-v2", *("    " + line for line in diagram(BOOTSTRAP, Phase.WAITING))])


class NewJoiner(Protocol):
    """Makes a joiner for a peer without a model."""

    def __call__(self, *, fetched: Callable[[float], None]) -> Joiner: ...


class Bootstrap:
    """Gets this peer its first model: founded, fetched from a member, or restored.

    Args:
        joiner: Fetches the model.
        resume_after: Seconds a peer that comes back listens for the network before it goes on from its checkpoint.
        tolerance: Steps of the network's clock by which a checkpoint may be ahead of a fetched model. A peer may have
            told no other of its last rounds before a stop. A live training process may be as far behind another's
            model and keeps its own: replicas that near are averaged.
        adopt: Callback: the model is here, received or restored.
        take_over: Callback: the live training process's parameters are to be the model.
    """

    def __init__(
        self,
        membership: Membership,
        joiner: NewJoiner,
        *,
        random: Random,
        outputs: Outputs,
        resume_after: float,
        tolerance: int,
        adopt: Callable[[Arrived, float], None],
        take_over: Callable[[], None],
    ) -> None:
        self._membership, self._new_joiner, self._outputs = membership, joiner, outputs
        self._tolerance, self._adopt, self._take_over = tolerance, adopt, take_over
        self._election = Election(
            membership,
            random=random,
            outputs=outputs,
            resume_after=resume_after,
            tolerance=tolerance,
        )
        self._joiner: Joiner | None = None
        self._taking: Held | None = None
        actions: dict[Action, Callable[[float], None]] = {
            Action.RESTORE: self._restore,
            Action.TAKE_OVER: self._begin_take_over,
            Action.RESTART: self._restart,
            Action.FORGET: self._forget,
            Action.DISMISS: self._dismiss,
            Action.END: self._end,
        }
        self._phase = Machine(BOOTSTRAP, Phase.WAITING, actions)

    @property
    def founder(self) -> bool:
        """This peer gives the network its model, or has given it."""
        return self._phase.state is Phase.FOUNDING

    @property
    def held(self) -> Held | None:
        """The progress of this peer's newest checkpoint, until the model is here."""
        return self._election.held

    @property
    def taking(self) -> Held | None:
        """The claim with which a live training process's parameters are being taken over."""
        return self._taking

    def found(self) -> None:
        """This peer gives the network its model."""
        self._phase.fire(Event.FOUND, 0.0)  # no action runs

    def join(self, now: float, remembered: Iterable[Member], held: Held | None, *, alone: bool = False) -> None:
        """Look for the model, unless this peer is the founder.

        Args:
            remembered: Members that were there before.
            held: The progress of this peer's newest checkpoint.
            alone: No address of another peer is known.
        """
        if self.founder:
            return
        self._joiner = self._new_joiner(fetched=self._fetched)
        self._election.begin(now, remembered, held, alone=alone)
        self._phase.fire(Event.JOIN, now)

    def lives(self, live: Live | None) -> None:
        """A training process that outlived its daemon waits. None: it is gone, or is a new one."""
        self._election.lives(live)

    def taken_over(self, now: float, *, finite: bool) -> None:
        """The live training process's parameters are the model now, or were not finite."""
        self._taking = None
        self._phase.fire(Event.TAKEN if finite else Event.NOT_FINITE, now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def standing(
        self, message: Standing, source: bytes, model: Model | None, now: float, *, spare: bool = False
    ) -> None:
        """`source` says what it holds.

        Args:
            model: This peer's model, if it is here.
            spare: This peer does not train.
        """
        if message.reply:
            self._election.tell(source, model, reply=False, spare=spare)
        self._election.hear(message, source, now)

    def receive(self, message: Giving, buffers: list[Buffer], source: bytes, now: float) -> None:
        """A message of a source or of a witness."""
        # While a checkpoint or a training process's parameters are read, no other model may take their room.
        if self._joiner is not None and self._phase.state is Phase.SEEKING:
            self._joiner.receive(message, buffers, source, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        if member.state in (State.FAILED, State.LEFT):
            self.gone(member.id, now)
        self._election.member_changed(member)

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` gives this peer nothing any more."""
        if self._joiner is not None:
            self._joiner.gone(peer, now)

    def offered(self, peer: bytes, layout: bytes, now: float) -> None:
        """`peer` offers an exchange of a model of this layout: if it is alive, it has the model."""
        member = self._membership.members.get(peer)
        if self._joiner is not None:
            self._joiner.shown(peer, layout, now)
        if self._joiner is not None and self._election.claim is None and member is not None and member.state in LIVE:
            self._joiner.found_ready(peer, now)

    def adopted(self, job: jobs.Adopt | jobs.CheckPiece, result: jobs.Checked, now: float) -> None:
        """The result of an Adopt, or of a CheckPiece."""
        if self._joiner is not None:
            self._joiner.adopted(job, result, now)

    def compared(self, result: jobs.Compared | None, now: float) -> None:
        """The result of a Compare."""
        if self._joiner is not None:
            self._joiner.compared(result, now)

    def _fetched(self, now: float) -> None:
        """The joiner has the whole model."""
        arrived, held = None if self._joiner is None else self._joiner.arrived, self.held
        assert arrived is not None
        if held is not None and held.clock > arrived.clock + self._tolerance:
            self._outputs.emit(CheckpointAhead(held.clock, held.rounds, arrived.clock))
        self._phase.fire(Event.FETCHED, now)
        self._adopt(arrived, now)

    def restored(self, result: jobs.Restored | None, now: float) -> None:
        """The result of a Restore. None: no checkpoint can be read."""
        if result is None:
            return self._phase.fire(Event.UNREADABLE, now)
        held = Held(result.clock, result.rounds)
        if self.held is not None and held < self.held:
            # The newest one was damaged. Another peer's may be the latest now.
            self._election.holds(held)
            if self._election.waits(now):
                return self._phase.fire(Event.EARLIER, now)
        self._phase.fire(Event.RESTORED, now)
        carried = Carried(result.reference, result.state)
        arrived = Arrived(
            origin=Origin.RESTORED, schema=result.schema, clock=result.clock, rounds=result.rounds, carried=carried
        )
        return self._adopt(arrived, now)

    # -- actions of the table ---------------------------------------------------------------------------------

    def _restore(self, now: float) -> None:
        self._outputs.ask(jobs.Restore())

    def _begin_take_over(self, now: float) -> None:
        self._taking = self._election.claim
        self._take_over()

    def _restart(self, now: float) -> None:
        # The checkpoint has replaced the chunks that were fetched.
        self._joiner = self._new_joiner(fetched=self._fetched)

    def _forget(self, now: float) -> None:
        self._election.holds(None)
        if self._election.live is None:
            text = "no state from the network and no checkpoint here: looking for a member that has the model"
            self._outputs.emit(Notice("GD-101", text))

    def _dismiss(self, now: float) -> None:
        self._election.lives(None)

    def _end(self, now: float) -> None:
        self._joiner = None
        self._election.end()

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        if self._joiner is None:
            return None
        times = [self._joiner.timer()]
        if self._election.claim is not None and self._phase.state is not Phase.RESTORING:
            times.append(self._election.timer())
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Go on fetching, and ask members what they hold."""
        if self._joiner is not None:
            self._joiner.handle_timer(now)
        if self._election.claim is not None:
            self._election.handle_timer(now)

    def step(self, now: float) -> None:
        """Draw conclusions after any input: fetch, meet others, restore, or take a live training process over."""
        if self._joiner is None or self._phase.state is not Phase.SEEKING:
            return
        alive = [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]
        # Where only strangers are in reach, the ones that this peer has known for long may still come.
        voices = self._membership.voices(alive)
        alive = voices if voices or now < self._election.deadline else alive
        if self._election.claim is None:
            self._joiner.seek(alive, now)
            return
        self._joiner.seek(self._election.meet(alive, now), now)
        if self._joiner.busy or self._election.waits(now):
            return
        self._phase.fire(Event.PROCESS_WINS if self._election.process_first else Event.CHECKPOINT_WINS, now)
