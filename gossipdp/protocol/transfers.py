"""Every transfer of a model from peer to peer: its machines, and the messages and results between them.

`source` gives this peer's model. `bootstrap` fetches the first model of a peer that has none. `reunion` fetches another
in its place. `age` knows how old the model is while this peer does not train.
"""

from __future__ import annotations

from collections.abc import Callable

from gossipdp.protocol import jobs
from gossipdp.protocol.course.age import Age, outdated, renewal
from gossipdp.protocol.course.facts import Facts
from gossipdp.protocol.finishing import Finishing
from gossipdp.protocol.model import Model
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.partition.reunion import Reunion
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.round_machines import RoundMachines
from gossipdp.protocol.transfer.arrived import Arrived
from gossipdp.protocol.transfer.bootstrap import Bootstrap
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.source import Asking, Giving, Source
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Phase, StateRequest, StateSketches
from gossipdp.protocol.wire.table import since

__all__ = ["TransferJob", "Transfers"]

TransferJob = (
    jobs.Freeze
    | jobs.HashPiece
    | jobs.Sample
    | jobs.CheckPiece
    | jobs.Adopt
    | jobs.Compare
    | jobs.Resync
    | jobs.Keep
    | jobs.Restore
)
"""jobs of both sides of a transfer"""


class Transfers:
    """Builds the machines of transfers, and routes between them.

    Args:
        waits: whether a training process waits for the model.
        take_over: called when the parameters of a live training process are to be the model.
        layout: digest of the schema of this peer's model; b"" without one.
        arrived: called when a model has come to this peer, which had none.
        replaced: called when another model has replaced this peer's: model, reason, seconds that it took.
    """

    def __init__(
        self,
        parts: Parts,
        machines: RoundMachines,
        finishing: Finishing,
        age: Age,
        *,
        waits: Callable[[], bool],
        take_over: Callable[[], None],
        layout: Callable[[], bytes],
        arrived: Callable[[Arrived, float], None],
        replaced: Callable[[Arrived, Reason, float], None],
    ) -> None:
        config, membership = parts.config, parts.membership
        contribution, pacing, averaging, rounds = machines
        self._parts, self._averaging, self._layout, self._waits = parts, averaging, layout, waits
        self._contribution, self._pacing, self._rounds, self._finishing = contribution, pacing, rounds, finishing
        self.age = age
        self.source = Source(
            config.transfer,
            parts.outputs,
            parts.sign,
            ahead=config.ahead,
            incarnation=membership.me.incarnation,
        )
        self.bootstrap = Bootstrap(
            membership,
            self._joiner,
            random=parts.random,
            outputs=parts.outputs,
            resume_after=config.resume_after,
            tolerance=2 * config.every,
            adopt=arrived,
            take_over=take_over,
        )
        self.reunion = Reunion(
            membership,
            parts.progress,
            lambda newer_than: self._joiner(resync=True, newer_than=newer_than),
            random=parts.random,
            outputs=parts.outputs,
            apart_rounds=config.apart_rounds,
            every=config.every,
            me=lambda: pacing.own(contribution.own_clock),
            hold=averaging.hold,
            done=replaced,
            finishing=lambda: finishing.begun,
            age=age,
            facts=self.facts,
            givers=self.givers,
        )

    def _joiner(
        self,
        *,
        resync: bool = False,
        newer_than: int = -1,
        fetched: Callable[[float], None] = lambda now: None,
    ) -> Joiner:
        """The fetching side of one transfer."""
        parts = self._parts
        return Joiner(
            parts.config.transfer,
            parts.outputs,
            parts.verify,
            parts.random,
            settings=parts.config.settings,
            keys=parts.config.keys,
            resync=resync,
            layout=self._layout() if resync else b"",
            shuns=parts.strikes.shuns,
            voices=parts.membership.voices,
            clock=parts.progress.clock,
            newer_than=newer_than,
            came=self._averaging.chunk_received,
            fetched=fetched,
        )

    def facts(self) -> Facts:
        """What the decisions about the model rest on now."""
        finishing = self._finishing
        return Facts(
            clock=self._contribution.clock,
            every=self._pacing.usual_round_steps,
            waits=self._waits(),
            begins=self._rounds.open,
            ends=finishing.begun,
            spare=finishing.spare,
            last=finishing.begun and not finishing.trainers(),
            closing=finishing.begun and finishing.closing(),
            closes=self._parts.membership.me.phase >= Phase.CLOSING,
        )

    def givers(self) -> list[bytes]:
        """Members to fetch the model from: those of this peer's side."""
        apart, members = self.reunion.apart, self._parts.membership
        return [member.id for member in members.alive() if member.id not in apart and members.reaches(member.id)]

    # -- how old the model is ---------------------------------------------------------------------------------

    @property
    def spare(self) -> bool:
        """No training process has made a round, and the model does not change."""
        return self.age.idle

    @property
    def held(self) -> bool:
        """The model is being replaced, or is to be before a training process begins with it."""
        # The verdict names the side to fetch from, if this peer's own side has no newer model.
        awaits = self.reunion.undecided and outdated(self.age, self._contribution.clock, self._pacing.usual_round_steps)
        return bool(self.reunion.reason) or self.outdated or awaits

    @property
    def outdated(self) -> bool:
        """The model is to be fetched anew, because it is old."""
        return self.spare and renewal(self.age, self.facts()) is not None and bool(self.givers())

    def came(self, arrived: Arrived, clock: int) -> None:
        """A fetched model is here, when the network's clock is `clock`."""
        self.age.came(clock - arrived.clock, clock - max(arrived.clock, arrived.begun), self._contribution.clock)

    def kept(self) -> None:
        """The model is that of a live training process now."""
        self.age.kept(self._contribution.clock)

    def trains(self, trains: bool) -> None:
        """Whether training makes rounds."""
        self.age.trains(trains, self._contribution.clock)

    def mixed(self, now: float) -> None:
        """An exchange has mixed chunks."""
        self.age.mixed()
        self.reunion.mixed(now)

    # -- messages and results ---------------------------------------------------------------------------------

    def asked(self, message: Asking, source: bytes, model: Model | None, now: float, *, trusted: bool) -> None:
        """A peer asks for this peer's model, or for a sample of it.

        Args:
            model: None while this peer has none.
            trusted: the asking peer is not set aside.
        """
        given = model if self.reunion.gives(message, source) else None
        member = self._parts.membership.members.get(source)
        sketches = member is not None and member.version >= since(StateSketches)
        self.source.receive(message, source, given, now, sketches=sketches)
        if isinstance(message, StateRequest):
            self.reunion.asked(source, now, trusted=trusted)

    def given(self, message: Giving, buffers: list[Buffer], source: bytes, now: float, *, ready: bool) -> None:
        """A peer sends a part of its model. ready: a model is here already."""
        if ready:
            self.reunion.follower.receive(message, buffers, source, now)
        else:
            self.bootstrap.receive(message, buffers, source, now)

    def job_done(self, job: TransferJob, result: object, model: Model | None, now: float) -> None:
        """The driver has carried out a job of a transfer. model: None while this peer has none."""
        follower = self.reunion.follower
        match job:
            case jobs.Freeze() if model is not None:
                self.source.frozen(job, job.typed(result), model)
            case jobs.HashPiece() if model is not None:
                self.source.hashed(job, job.typed(result), model)
            case jobs.Sample() if model is not None:
                self.source.sampled(job.typed(result), model)
            case jobs.CheckPiece() if model is not None:
                follower.checked(job, job.typed(result), now)
            case jobs.CheckPiece() | jobs.Adopt():
                self.bootstrap.adopted(job, job.typed(result), now)
            case jobs.Compare() if model is not None:
                follower.compared(job.typed(result), now)
            case jobs.Compare():
                self.bootstrap.compared(job.typed(result), now)
            case jobs.Resync():
                follower.resynced(job, job.typed(result), now)
            case jobs.Keep():
                follower.kept()
            case jobs.Restore():
                self.bootstrap.restored(job.typed(result), now)
