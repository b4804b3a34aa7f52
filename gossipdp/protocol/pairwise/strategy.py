"""The `pairwise` strategy: in each round a peer exchanges compressed differences with one random partner, or a few.

`averaging` makes the exchanges, `timetable` says how many a round has, `terms` on what terms they are offered.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossipdp.protocol import jobs
from gossipdp.protocol.events import Closeness
from gossipdp.protocol.model import Model
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.pairwise.terms import ExchangeTerms
from gossipdp.protocol.pairwise.timetable import Timetable
from gossipdp.protocol.strategy import Surroundings
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Member, Message

__all__ = ["PairwiseStrategy"]


class PairwiseStrategy:
    """Implements `Strategy`."""

    steps = None
    shared = None
    strays: tuple[bytes, ...] = ()

    def __init__(self, config: PairwiseConfig, surroundings: Surroundings) -> None:
        self._surroundings, self._pacing = surroundings, surroundings.pacing
        self._terms = ExchangeTerms(config.codec, config.bits, config.window, config.kappa, config.deadlines.ask)
        self._timetable = Timetable(
            surroundings.membership,
            surroundings.progress,
            surroundings.pacing,
            policy=config.matching.schedule,
            early=config.early_exchanges,
            late=config.late_exchanges,
        )
        self._averaging = Averaging(config, surroundings, self._terms, ended=self._ended)
        self._model: Model | None = None

    def _ended(self, chunks: int, duration: float, distance: float, now: float) -> None:
        assert self._model is not None
        self._terms.exchanged(chunks, self._model.chunks)
        self._surroundings.ended(chunks, duration, distance, now)

    # -- the model --------------------------------------------------------------------------------------------

    def ready(self, model: Model, summary: Buffer | None, clock: int) -> None:
        self._model = model
        self._averaging.ready(model)
        self._terms.fetched()

    def adopt(self, model: Model, summary: Buffer, clock: int) -> None:
        self._terms.fetched()

    def chunk_received(self, now: float) -> None:
        self._terms.chunk_received(now)

    def hold(self, held: bool, now: float) -> bool:
        return self._averaging.hold(held, now)

    # -- rounds -----------------------------------------------------------------------------------------------

    def submitted(self, samples: int, steps: int, clock: int) -> None:
        """Nothing: a round is exchanged once its outer step is made."""

    def round_done(self, now: float) -> None:
        assert self._model is not None
        members = 1 + len(self._averaging.company)
        if members > 1:
            plan = self._timetable.plan(members, self._model.schema.digest, now)
            self._averaging.want(plan.exchanges, now, plan.number, plan.schedule, plan.patience)

    def want(self, exchanges: int, now: float) -> None:
        """Look for `exchanges` partners at once, outside the timetable."""
        self._averaging.want(exchanges, now)

    def paced(self) -> None:
        self._terms.choose(self._pacing)

    def stop(self, now: float) -> None:
        self._averaging.stop(now)

    def close(self, others: Sequence[Member], now: float) -> None:
        assert self._model is not None
        self._terms.close(self._pacing)
        self._averaging.close(others, self._model.schema.digest, now)

    @property
    def closeness(self) -> Closeness:
        return self._averaging.closing.closeness

    @property
    def needed(self) -> float:
        return self._averaging.closing.needed

    @property
    def satisfied(self) -> bool:
        return self._averaging.satisfied

    @property
    def at_rest(self) -> bool:
        return self._averaging.at_rest

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        self._averaging.receive(message, buffers, source, size, now)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        self._averaging.job_done(job, result, now)

    def member_changed(self, member: Member, now: float) -> None:
        self._averaging.member_changed(member, now)

    def reputation_changed(self, now: float) -> None:
        self._averaging.step(now)

    def link_down(self, peer: bytes, now: float) -> None:
        """Nothing: an exchange outlives a link."""

    def slept(self, seconds: float) -> None:
        self._averaging.slept(seconds)

    def advance(self, clock: int, now: float) -> None:
        """Nothing: exchanges follow from messages, results and time alone."""

    def timer(self) -> float | None:
        return self._averaging.timer()

    def handle_timer(self, now: float) -> None:
        self._averaging.handle_timer(now)

    # -- for operators ----------------------------------------------------------------------------------------

    @property
    def partner(self) -> bytes | None:
        return self._averaging.partner

    @property
    def in_doubt(self) -> int:
        return self._averaging.in_doubt

    @property
    def traffic(self) -> dict[str, int]:
        return {}
