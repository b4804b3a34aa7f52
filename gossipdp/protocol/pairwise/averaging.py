"""Pairwise averaging of one peer: in each round it exchanges compressed differences with one random partner, or a few.

`timetable` says how many exchanges a round has, `terms` on what terms they are offered. `offers` finds partners,
`exchange` knows one dialogue. This machine joins them, and routes messages and results of jobs.

A peer takes part in one exchange at a time, as initiator or responder. An initiator whose partner fell silent is kept
while chunks are in doubt. A responder is kept as the log of what it mixed, until the initiator settles or makes a new
offer.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Ending, Objection, Outcome
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.facts import Age
from gossipdp.protocol.events import Closeness, ExchangeStarted
from gossipdp.protocol.model import Model
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.offers import Offers
from gossipdp.protocol.pairwise.responder import Responder
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.pairwise.terms import ExchangeTerms
from gossipdp.protocol.pairwise.timetable import Timetable
from gossipdp.protocol.pairwise.timing import Timing
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    Accept,
    Ack,
    Ask,
    Data,
    End,
    Member,
    Message,
    Miss,
    Offer,
    Ranges,
    Refuse,
    State,
    Void,
)

__all__ = ["FORGOTTEN", "Averaging", "News"]

MAX_SETTLING: Final = 4
"""lost exchanges kept for chunks in doubt; the oldest beyond them is given up and counted"""
MAX_LOGS: Final = 256
"""responders kept as logs, at most"""
FORGOTTEN: Final = 3600.0
"""seconds after its beginning at which an exchange is given up if membership no longer knows the partner"""


class News(enum.Enum):
    """What exchanges mean for the age of the model."""

    BEGAN = "an exchange begins"
    MIXED = "an exchange has mixed chunks"


class Averaging:
    """All exchanges of one peer: the one under way, and those still to be settled.

    Args:
        contribution: as in `Offers`, like `age` and `apart`.
    """

    def __init__(
        self,
        parts: Parts,
        pacing: Pacing,
        rounds: Rounds,
        contribution: Contribution,
        age: Age,
        apart: Mapping[bytes, int],
    ) -> None:
        config = parts.config.averaging
        self._membership, self._outputs = parts.membership, parts.outputs
        self._me, self._incarnation = self._membership.me.id, self._membership.me.incarnation
        self._config, self._pacing, self._rounds, self._age = config, pacing, rounds, age
        self._terms = ExchangeTerms(
            pacing, config.codec, config.bits, config.window, config.kappa, config.deadlines.ask
        )
        self._timetable = Timetable(
            parts.membership,
            parts.progress,
            pacing,
            policy=config.schedule,
            early=config.early_exchanges,
            late=config.late_exchanges,
        )
        self._offers = Offers(parts, pacing, rounds, self._terms, contribution, age, apart)
        self._closing = self._offers.closing
        self._timing = Timing(config.deadlines.ask)
        self._active: Initiator | Responder | None = None
        self._settling: dict[int, Initiator] = {}
        """initiators with chunks in doubt, by exchange"""
        self._logs: dict[bytes, Responder] = {}
        """responders, by partner"""
        self._stopped = self._held = False
        self._model: Model | None = None
        self._unmixed: set[int] = set()
        """chunks that the next of the `passes` still lacks"""
        self._news: list[News] = []
        self.passes = 0
        """times that all chunks have been mixed since the last outer step"""

    # -- commands ---------------------------------------------------------------------------------------------

    def ready(self, model: Model) -> None:
        """The model is here: exchanges may begin."""
        self._model = model
        self._unmixed = {*range(model.chunks)}
        self._offers.ready(model)
        self._terms.fetched()

    def fetched(self) -> None:
        """The model has been replaced by another peer's."""
        self._terms.fetched()

    def chunk_received(self, now: float) -> None:
        """A chunk of the model that this peer fetches has arrived."""
        self._terms.chunk_received(now)

    def round_done(self, now: float) -> None:
        """The outer step of a round is made: the exchanges of the round may begin."""
        assert self._model is not None
        self._terms.choose()
        self.passes, self._unmixed = 0, {*range(self._model.chunks)}
        members = 1 + len(self.company)
        if members > 1:
            plan = self._timetable.plan(members, self._model.schema.digest, now)
            self.want(plan.exchanges, now, plan.number, plan.schedule, plan.patience)

    def want(
        self, exchanges: int, now: float, number: int = 0, schedule: Schedule | None = None, patience: float = 0.0
    ) -> None:
        """Round `number` of the network has begun: look for `exchanges` partners, along `schedule` if there is one.

        An exchange that has lasted longer than a round ends. In the warm start it goes on: rounds become as long as
        exchanges once one has ended. A scheduled exchange of this round is not repeated if the partner has made it
        early.
        """
        active = self._active
        if active is not None and active.round < self._offers.round and not self._pacing.warming_up:
            if isinstance(active, Initiator):
                active.finish_early(now)
            else:
                active.close(Outcome.CUT, now, Ending.ROUND)
        self._offers.begin_round(exchanges, now, number, schedule, patience)
        self.step(now)

    def stop(self, now: float) -> None:
        """Offer and accept no more exchanges. End the one under way at the next chunk boundary."""
        self._stopped = True
        self._offers.stop()
        self._break_off(now, Objection.LEAVING)
        self.step(now)

    def hold(self, held: bool, now: float) -> bool:
        """While `held`, offer and accept nothing, and end the exchange under way. True once none is under way."""
        if held:
            self._break_off(now, Objection.JOINING)
        self._held = held
        self.step(now)
        return self._active is None

    def hand_in(self, passes: int, now: float) -> bool:
        """Training is over, and other members train on: mix every chunk this many times since the last outer step.

        Call it again until it returns True.
        """
        missing = max(0, passes - self.passes)
        self._offers.hand_in(missing > 0)
        if missing and self._active is None and not self._offers.wants:
            self._offers.begin_round(missing, now)
            self.step(now)
        return not missing

    def rest(self) -> None:
        """Training is over: take the lookahead of the last outer step out of the anchor."""
        assert self._model is not None
        for chunk in range(self._model.chunks):
            self._outputs.ask(jobs.Rest(chunk))

    def close(self, others: Sequence[Member], now: float) -> None:
        """Training is over: exchange with `others` alone, until all hold the mean. Called when they change, too."""
        assert self._model is not None
        self._terms.close()
        if not self._closing.begun:
            self._timing = Timing(self._config.deadlines.ask)  # finer codes take longer
        self._offers.close(others, self._model.schema.digest, now)
        self.step(now)

    def take_news(self) -> list[News]:
        """What has happened since the last call, in order."""
        news, self._news = self._news, []
        return news

    @property
    def closeness(self) -> Closeness:
        """How close the states are by now, in the closing."""
        return self._closing.closeness

    @property
    def usual_round(self) -> float:
        """Seconds that a round of this peer's training took."""
        return self._pacing.usual_round

    @property
    def needed(self) -> float:
        """Seconds for which another member may be busy before it needs this peer in the closing."""
        return self._closing.needed

    def slept(self, seconds: float) -> None:
        """This peer did not run for `seconds`. They are no part of the exchange under way."""
        if self._active is not None:
            self._active.slept(seconds)

    def _ended(self, chunks: int, duration: float, distance: float, now: float) -> None:
        assert self._model is not None
        self._terms.exchanged(chunks, self._model.chunks)
        if chunks:
            self._rounds.mixed()
            self._age.mixed()
            self._pacing.mixed(duration, distance)
            self._news.append(News.MIXED)
        self._terms.choose()

    def _break_off(self, now: float, reason: Objection) -> None:
        self._offers.withdraw()
        if isinstance(self._active, Initiator):
            self._active.finish_early(now)
        elif self._active is not None:
            self._active.close(Outcome.CUT, now, reason)

    @property
    def stopped(self) -> bool:
        """This peer leaves: it begins no more exchanges."""
        return self._stopped

    @property
    def partner(self) -> bytes | None:
        """The peer that this one exchanges with right now."""
        return None if self._active is None else self._active.terms.partner

    @property
    def company(self) -> set[bytes]:
        """The other live members, without those known to be idle."""
        return self._offers.company

    @property
    def satisfied(self) -> bool:
        """This round's exchanges are over, or no live member is left to exchange or to settle with."""
        alive = self.company
        unsettled = any(side.terms.partner in alive for side in self._settling.values())
        return self._active is None and not (alive and self._offers.wants) and not unsettled

    @property
    def at_rest(self) -> bool:
        """No exchange is under way, no chunk is being mixed, and none is in doubt, here or at a live partner."""
        alive = {member.id for member in self._membership.alive()}
        unsettled = any(log.working or log.terms.partner in alive for log in self._logs.values())
        return self._active is None and not self._settling and not unsettled

    @property
    def in_doubt(self) -> int:
        """Chunks of lost exchanges of which this peer cannot know whether the partner has mixed them."""
        return sum(exchange.in_doubt for exchange in self._settling.values())

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        """A message of an exchange, or one that may begin one. size: bytes of all its frames."""
        match message:
            case Offer():
                self._offer(message, source, now)
            case Accept(exchange):
                self._accepted(message, source, exchange, now)
            case Refuse(exchange, reason):
                self._offers.refused(source, exchange, reason, now)
            case Data(exchange, _, turn) | Miss(exchange, _, turn) | Ask(exchange, _, turn):
                # Even turns are the initiator's; a Miss names the initiator's turn but is sent by the responder.
                from_initiator = isinstance(message, Ask) or (isinstance(message, Data) and turn % 2 == 0)
                self._route(exchange, from_initiator, message, buffers, source, size, now)
            case Ranges(exchange):
                self._route(exchange, True, message, buffers, source, size, now)
            case Ack(exchange) | Void(exchange):
                self._route(exchange, False, message, buffers, source, size, now)
            case End(exchange, mine):
                self._route(exchange, mine, message, buffers, source, size, now)
        self.step(now)

    def _route(
        self,
        exchange: int,
        from_initiator: bool,
        message: Message,
        buffers: list[Buffer],
        source: bytes,
        size: int,
        now: float,
    ) -> None:
        side = self._responder(source, exchange) if from_initiator else self._initiator(exchange)
        if side is not None and side.terms.partner == source:
            side.receive(message, buffers, size, now)
        elif from_initiator and not isinstance(message, End):
            self._outputs.send(source, End(exchange, False, Ending.UNKNOWN))

    def _initiator(self, exchange: int) -> Initiator | None:
        if isinstance(self._active, Initiator) and self._active.terms.exchange == exchange:
            return self._active
        return self._settling.get(exchange)

    def _responder(self, partner: bytes, exchange: int) -> Responder | None:
        log = self._logs.get(partner)
        return log if log is not None and log.terms.exchange == exchange else None

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The result of a chunk's job."""
        assert isinstance(job, jobs.OfExchange)
        initiator, exchange, _ = job.key
        side = self._initiator(exchange) if initiator == self._me else self._responder(initiator, exchange)
        if side is not None:
            turn = job.typed(result)
            if turn.mixed and side.terms.mixing.weight > 0.0:
                self._passed(job.key.chunk)
            late = side.ended and turn.mixed
            side.job_done(job, turn, now)
            if late:
                self._closing.disturbed(now)
                self._ended(1, 0.0, math.nan, now)
        self.step(now)

    def _passed(self, chunk: int) -> None:
        """A chunk is mixed."""
        assert self._model is not None
        self._unmixed.discard(chunk)
        if not self._unmixed:
            self.passes, self._unmixed = self.passes + 1, {*range(self._model.chunks)}

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news: a failed partner ends its exchange, a new incarnation ends its doubts."""
        over = member.state == State.LEFT
        self._offers.member_changed(member, now)
        for side in self._sides_with(member.id):
            if member.incarnation > side.terms.incarnation or (over and isinstance(side, Initiator)):
                side.give_up(now)
            elif over and isinstance(side, Responder):
                side.part(now)
            elif member.state == State.FAILED and not side.ended:
                _lose(side, now)
        if member.state in (State.FAILED, State.LEFT):
            self._offers.member_gone(member, now)
        self.step(now)

    def part(self, peer: bytes, now: float) -> None:
        """End the exchange with `peer`, as if it had failed."""
        for side in self._sides_with(peer):
            if not side.ended:
                _lose(side, now)
        self._retire(now)

    def _sides_with(self, peer: bytes) -> list[Initiator | Responder]:
        sides: list[Initiator | Responder] = [*self._settling.values(), *self._logs.values()]
        sides += [self._active] if isinstance(self._active, Initiator) else []
        return [side for side in sides if side.terms.partner == peer]

    # -- beginnings -------------------------------------------------------------------------------------------

    def _offer(self, offer: Offer, source: bytes, now: float) -> None:
        self._offers.heard(source)
        known = self._responder(source, offer.exchange)
        if known is not None:
            return known.offered_again(offer)
        if self._offers.dealt_with(source, offer.exchange):
            return
        log = self._logs.get(source)
        if log is not None:
            # The same incarnation makes a new offer only when nothing is in doubt. A later one does not know.
            if offer.exchange >> 32 > log.terms.exchange >> 32:
                log.give_up(now)
            else:
                log.supersede(now)
            self._retire(now)
            if log.mixing:
                # If it were dropped now, a chunk that it leaves in doubt would not be counted.
                return self._offers.refuse(offer, source, Objection.BUSY)
        if objection := self._objection(offer, source, now):
            return self._offers.refuse(offer, source, objection)
        self._respond(offer, source, now)

    def _objection(self, offer: Offer, source: bytes, now: float) -> Objection | None:
        if self._stopped:
            return Objection.LEAVING
        if self._model is None or self._held:
            return Objection.JOINING
        return self._offers.objection(offer, source, now, busy=self._active is not None)

    def _respond(self, offer: Offer, source: bytes, now: float) -> None:
        accept = self._offers.accept(offer, source)
        self._offers.begin()
        terms = self._offers.terms(offer, accept, source, mine=False)
        responder = Responder(terms, accept, self._outputs, self._config.deadlines, now=now)
        for partner in [source, *self._logs][: max(1, len(self._logs) - MAX_LOGS + 2)]:
            if (log := self._logs.pop(partner, None)) is not None:
                log.give_up(now)  # Its initiator can no longer learn what it has not heard by now.
                log.forget()
        self._logs[source] = responder
        self._start(responder, source)

    def _accepted(self, accept: Accept, source: bytes, exchange: int, now: float) -> None:
        if not self._offers.is_out(source, exchange):
            return self._accepted_late(accept, source, exchange, now)
        terms = self._offers.confirmed(accept, source, now)
        if terms is None:
            return
        self._offers.begin()
        until = math.inf if self._closing.begun else now + self._pacing.room
        deadlines, timing = self._config.deadlines, self._timing
        self._start(Initiator(terms, self._outputs, deadlines, now=now, timing=timing, until=until), source)

    def _accepted_late(self, accept: Accept, source: bytes, exchange: int, now: float) -> None:
        """The offer was withdrawn, has been accepted before, or was made by an earlier life of this peer."""
        side = self._initiator(exchange)
        if side is not None and side.terms.partner == source and accept.incarnation > side.terms.incarnation:
            # The partner has restarted and took a copy of the offer for a new one. It cannot know what it mixed before.
            side.give_up(now)
        elif side is not None:
            return
        # UNWANTED settles an exchange of this incarnation. An earlier one's chunks in doubt stay in doubt.
        reason = Ending.LOST if exchange >> 32 < self._incarnation else Ending.UNWANTED
        self._outputs.send(source, End(exchange, True, reason))

    def _start(self, side: Initiator | Responder, partner: bytes) -> None:
        self._active = side
        side.round = self._offers.round
        self._offers.met(partner, initiator=side.initiator)
        self._news.append(News.BEGAN)
        terms = side.terms
        self._outputs.emit(ExchangeStarted(partner, terms.exchange, side.initiator, terms.coding.codec))

    # -- after every input ------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Retire what has ended, and offer if a partner is wanted."""
        if self._active is not None and (barred := self._offers.barred(self._active.terms.partner, now)):
            self._break_off(now, barred)
        self._retire(now)
        if self._free:
            unsettled = {side.terms.partner: Objection.UNSETTLED for side in self._settling.values()}
            self._offers.make(unsettled, now)

    @property
    def _free(self) -> bool:
        return self._active is None and self._model is not None and not self._stopped and not self._held

    def _retire(self, now: float) -> None:
        active = self._active
        if active is not None and active.ended:
            self._active = None
            if isinstance(active, Initiator):
                self._offers.continue_from(active.next_first)
                if not active.settled:
                    self._settling[active.terms.exchange] = active
                    if len(self._settling) > MAX_SETTLING:
                        self._settling[next(iter(self._settling))].give_up(now)
            self._part(active, now)
        for exchange in [number for number, side in self._settling.items() if side.settled]:
            del self._settling[exchange]
        for partner in [peer for peer, log in self._logs.items() if log.settled and log.ended]:
            del self._logs[partner]

    def _part(self, active: Initiator | Responder, now: float) -> None:
        chunks, mixing, duration = active.tally.chunks, active.tally.mixing, now - active.tally.started
        # By this host's own rate. A partner that asks for a lower one takes more of this host's time.
        usual = max(self._timing.pace * chunks, active.owed(self._config.rate)) if chunks else 0.0
        self._offers.parted(active, duration, usual, now)
        if chunks and mixing > 0.0:
            self._timing.exchanged(chunks, mixing, active.owed(active.terms.rate))
        self._ended(chunks, active.length(), active.distance(), now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times = [side.timer() for side in self._settling.values()] + [log.timer() for log in self._logs.values()]
        if isinstance(self._active, Initiator):
            times.append(self._active.timer())
        elif self._free:
            times.append(self._offers.timer())
        return min([time for time in times if time is not None], default=None)

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""
        sides: list[Initiator | Responder] = [*self._settling.values(), *self._logs.values()]
        sides += [self._active] if isinstance(self._active, Initiator) else []
        known = self._membership.members
        for side in sides:
            side.handle_timer(now)
            if side.ended and side.terms.partner not in known and now >= side.tally.started + FORGOTTEN:
                side.give_up(now)
        self._offers.handle_timer(now)
        self.step(now)


def _lose(side: Initiator | Responder, now: float) -> None:
    """End `side`: its partner is gone."""
    side.lose(now) if isinstance(side, Initiator) else side.close(Outcome.LOST, now)
