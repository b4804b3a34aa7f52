"""The ranks of one host as one peer. The leader talks to the daemon, each rank moves its part, and all change together.

The leader broadcasts an announcement asynchronously at one step boundary, and all ranks read it at the next. Gradients
are reduced in between, so the announcement has arrived, no step waits for it, and all ranks act at the same step. Each
rank maps the daemon's memory (see `moves`). A group leaves the network and trains on alone if its ranks train apart, or
if one of them makes no more steps. Nothing here knows the network.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from gossipdp import errors
from gossipdp.errors import GossipdpError, HardwareError
from gossipdp.training.healing import hopeless
from gossipdp.training.messages import log
from gossipdp.training.optimizer_state.followed import Optimizers
from gossipdp.training.orders import Drain, Load, Order, Write
from gossipdp.training.ranks.actions import GroupActions, Spans
from gossipdp.training.ranks.announcements import MODES, Announcement, Kind, NetworkStatus, kind_of, slot_of
from gossipdp.training.ranks.collectives import Collectives, RankLost, whole_numbers
from gossipdp.training.ranks.comparison import replicas_differ
from gossipdp.training.reasons import tell, tell_lost
from gossipdp.training.session import Session
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.waiting import ModelWait, wait_for_order

__all__ = ["ReplicaGroup"]

ERRORS: Final = {
    each.__name__: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, GossipdpError)
}
"""errors that the leader may tell other ranks, by name"""

ANNOUNCE_EVERY: Final = 60.0
"""seconds between two announcements while all ranks wait for the end of a round; less than `ANSWER_WITHIN`"""
MOST_SILENT: Final = 8
"""steps between two announcements, at most"""


class ReplicaGroup:
    """Collective: every rank makes one, and calls the same methods in the same order.

    Args:
        layout: the model's exchanged tensors.
        home: the peer's home.
        session: the leader's; None on the other ranks.
        optimizers: those of this rank.

    Raises:
        ConfigError: GD-308, the ranks are on several hosts.
        MismatchError: GD-301, they hold different models.
    """

    def __init__(self, layout: Layout, home: Path, session: Session | None, optimizers: Optimizers) -> None:
        self._layout, self._home, self._session = layout, home, session
        self._collectives = Collectives(layout.device)
        self._actions = GroupActions(layout, home, session, optimizers, self._collectives)
        self.rank, self.world = self._collectives.rank, self._collectives.world
        self._work: Any = None
        """the broadcast under way"""
        self._posted = torch.zeros(len(Announcement.__struct_fields__), dtype=torch.int64, device="cpu")
        self._order: Order | None = None
        """the leader's order behind the last announcement"""
        self._boundary = 0
        """step boundaries so far"""
        self._posted_at = self._next_post = 0
        """boundaries of the last announcement and the next"""
        self._snapshot: tuple[int, int, int] | None = None
        """boundary, session and number of the planned snapshot"""
        self._drain: tuple[Order | None, Announcement, Spans] | None = None
        """with mode overlap: what is added at the boundary of the planned snapshot, before it"""
        self._mode = MODES[0]
        self._over = False
        self._alone_because: GossipdpError | None = None
        """why this rank trains alone, as it told the daemon"""
        self._lost_alone = 0
        """steps since the last snapshot that the daemon took, once this rank trains alone"""
        self.status = NetworkStatus()
        """what every rank knows of the network"""

    # -- the beginning ----------------------------------------------------------------------------------------

    def begin(self, timeout: float | None) -> None:
        """Wait for the network's model, and load it on every rank.

        Args:
            timeout: seconds. None: no limit.

        Raises:
            GossipdpError: on every rank, the leader's error; GD-320, the ranks' parameters differ.
        """
        self._actions.compare()
        wanted = self._actions.agree_on_moments()
        self._load_model(None if self._session is None else ModelWait(self._session, timeout))
        if wanted:
            self._actions.load_moments()

    def _load_model(self, wait: ModelWait | None) -> None:
        kind = Kind.NOTHING
        while kind != Kind.LOAD:
            self._agree_on_start(wait)
            self._announce(self._session.next_order() if self._session is not None else None)
            kind = Kind(self._read().kind)
            # The leader waits for the network next. What this rank has written must be announced by then.
            self._layout.finish()
            self._actions.poll()

    def _agree_on_start(self, wait: ModelWait | None) -> None:
        """The leader waits. Its error, if any, is raised on every rank."""
        error: GossipdpError | None = None
        try:
            if wait is not None:
                wait()
        except GossipdpError as raised:
            error = raised
        parts = [] if error is None else [type(error).__name__, error.code, error.cause, error.seen, error.do]
        text = self._collectives.broadcast_bytes(b"" if wait is None else msgspec.json.encode(parts), patient=True)
        if error is not None:
            raise error
        if told := msgspec.json.decode(text, type=list[str]):
            name, code, cause, seen, do = told
            raise ERRORS[name](code, cause, seen=seen, do=do)

    # -- at every step boundary -------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        """True if the next `step_boundary` may read or change the live parameters, or announce that."""
        next_act = self._next_post if self._snapshot is None else min(self._next_post, self._snapshot[0])
        return not self._over and (self._work is not None or self._boundary + 1 >= next_act)

    def poll(self) -> None:
        """Take in the daemon's messages. Call it before `step_boundary`."""
        if not self._over:
            self._actions.poll()

    def step_boundary(self) -> None:
        """Do what was announced for this step, and announce what comes next.

        Raises:
            DataError: GD-403, training is hopeless.
        """
        if self._over:
            # No announcement comes any more, and a loop or a schedule may follow the clock.
            clock, lost = self.status.clock + 1, self.status.lost_steps + 1
            self.status = msgspec.structs.replace(self.status, clock=clock, lost_steps=lost)
            self._lost_alone += 1
            return
        try:
            self._carry_out()
        except RankLost as lost:
            cause = "a rank of this group has died or makes no more steps"
            self._leave(HardwareError("GD-501", cause, seen=f"{lost}; rank {self.rank} trains on alone"))

    def _carry_out(self) -> None:
        self._boundary += 1
        self._encode_moments()
        if self._work is not None:
            self._read()
        if self._snapshot is not None and self._boundary >= self._snapshot[0]:
            _, session, number = self._snapshot
            if self._drain is not None:
                self._actions.change(*self._drain)
            self._snapshot = self._drain = None
            self._actions.take_snapshot(session, number)
            if self._mode == "sync":
                self._synchronise()
        if self._boundary >= self._next_post and self._work is None and not self._over:
            self._announce(None if self._session is None else self._session.next_order(self._period(self._session)))

    def _encode_moments(self) -> None:
        # With mode sync a round may not go on before the daemon has the shared buffer again.
        self._actions.encode_moments(everything=self._mode == "sync")

    def _synchronise(self) -> None:
        """With mode sync: wait until what the round brings is added on every rank."""
        if self._work is not None:
            self._read()
        session, kind = self._session, Kind.DRAIN
        while kind not in (Kind.NOTHING, Kind.LEAVE):
            # The daemon goes on once every rank has reported. No rank trains meanwhile.
            self._layout.finish()
            self._actions.poll()
            order = None if session is None or self._actions.apart else wait_for_order(session, ANNOUNCE_EVERY)
            self._announce(order, plan=False)
            kind = Kind(self._read().kind)

    @staticmethod
    def _period(session: Session) -> int:
        """Steps to the next announcement."""
        return max(1, min(MOST_SILENT, session.every // 10))

    def _announce(self, order: Order | None, *, plan: bool = True) -> None:
        """Post the announcement that is read at the next boundary.

        Args:
            order: the leader's.
            plan: announce a snapshot too, if one is due.
        """
        session = self._session
        kind = kind_of(order)
        if self._actions.apart:
            order, kind = None, Kind.LEAVE
        elif session is not None and session.hopeless:
            order, kind = None, Kind.STOP
        elif session is not None and order is None and not plan and session.patience:
            kind = Kind.WAIT
        self._order, self._posted_at = order, self._boundary
        if session is not None:
            announcement = self._announcement(session, order, kind, plan=plan)
            self._posted.copy_(whole_numbers(msgspec.structs.astuple(announcement)))
        self._work = self._collectives.post(self._posted)

    def _announcement(self, session: Session, order: Order | None, kind: Kind, *, plan: bool) -> Announcement:
        period, due = self._period(session), session.due_in
        # No announcement is read before the second step, and a schedule asks for the clock before the first.
        clock, alone = (order.clock, False) if isinstance(order, Load) else (session.clock, session.alone)
        soon = plan and due is not None and max(1, due) <= period and not isinstance(order, Load | Write)
        planned = soon and session.claims()
        return Announcement(
            kind=kind,
            slot=slot_of(order),
            spans=len(order.spans) if isinstance(order, Drain) else 0,
            session=session.number,
            snapshot=session.next_snapshot,
            snapshot_in=max(1, due or 0) if planned else 0,
            clock=clock,
            samples=session.samples,
            alone=int(alone),
            lost_steps=session.lost_steps,
            period=period,
            mode=MODES.index(session.mode),
            reset=int(isinstance(order, Load) and order.reset),
        )

    def _read(self) -> Announcement:
        """Take in the last announcement, and carry it out."""
        self._collectives.finish(self._work)
        self._work = None
        read = Announcement(*self._posted.tolist())
        self.status = read.status
        self._next_post = self._posted_at + read.period
        self._mode = MODES[read.mode]
        if read.snapshot_in:
            self._snapshot = self._posted_at + read.snapshot_in, read.session, read.snapshot
        order, self._order = self._order, None
        match read.kind:
            case Kind.WRITE:
                self._actions.write(order)
            case Kind.LOAD:
                self._snapshot = self._drain = None
                self._actions.load(order, read)
            case Kind.KEEP:
                self._snapshot = self._drain = None
                self._actions.keep(order, read)
            case Kind.LOAD_STATE:
                self._actions.load_state(order)
            case Kind.DRAIN:
                spans = self._actions.spans(order, read)
                if self._mode == "overlap" and read.snapshot_in:
                    self._drain = order, read, spans
                else:
                    self._actions.change(order, read, spans)
            case Kind.SEND_MOMENTS:
                self._actions.send_moments(order, read)
                self._encode_moments()
            case Kind.STOP:
                self._leave()
                raise hopeless()
            case Kind.LEAVE:
                self._leave(replicas_differ(self._actions.apart) if self._actions.apart else None)
        return read

    # -- the end ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Training is over: the last announcement is carried out on no rank."""
        if self._work is not None:
            with suppress(RankLost):
                self._collectives.finish(self._work)
            self._work = None
        if self._session is not None:
            self._session.withdraw(self._order)
        self._actions.settle()
        self._let_go()
        self._tell_lost()

    def _leave(self, error: GossipdpError | None = None) -> None:
        """This group is no peer any more: its ranks do not train one replica, or not in step. The daemon hears why."""
        self._over, self._work, self._snapshot, self._drain = True, None, None, None
        self._let_go()
        if self._session is not None:
            self._layout.finish()
            self._session.close()
            self._lost_alone = self._session.since_snapshot
            lost = self.status.lost_steps + self._lost_alone
            self.status = msgspec.structs.replace(self.status, lost_steps=lost)
        if error is not None:
            log.error("%s\ntraining goes on alone", error)
            self._alone_because = error
            tell(self._home, error, alone=True)

    def _tell_lost(self) -> None:
        if self._alone_because is not None:
            tell_lost(self._home, self._alone_because, self._lost_alone, alone=True)
        self._alone_because = None

    def _let_go(self) -> None:
        self.status = msgspec.structs.replace(self.status, alone=True)
        self._actions.leave_follower()

    def farewell(self) -> None:
        """Tell the daemon that this rank leaves on purpose."""
        self._actions.farewell()
        self._tell_lost()
