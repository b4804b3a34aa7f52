"""All exchanges of one peer: offers out and in, the one exchange under way, and those still to be settled.

`partners` chooses, `exchange` knows one dialogue; this machine joins them and routes messages and job results. A peer
takes part in one exchange at a time, as initiator or responder. An initiator whose partner fell silent is kept
while chunks are in doubt; a responder is kept as the log of what it mixed until the initiator has settled, or offers
anew, which it does only then.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ExchangeStarted, Notice, OfferRefused
from gossipdp.protocol.membership.view import LIVE
from gossipdp.protocol.model import Model
from gossipdp.protocol.pairwise.appointments import Appointments
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.pairwise.exchange import Terms, keeps_to
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.matching import (
    BUSY,
    DONE,
    IDLE,
    Matching,
    guests_per_round,
    out_of_reach,
)
from gossipdp.protocol.pairwise.partner_history import Acquaintances
from gossipdp.protocol.pairwise.responder import Responder
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.pairwise.terms import ExchangeTerms
from gossipdp.protocol.pairwise.timing import Tempo
from gossipdp.protocol.settings_digest import unlike
from gossipdp.protocol.strategy import Surroundings
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
    short,
)

__all__ = ["FORGOTTEN", "Averaging"]

MAX_SETTLING = 4
"""lost exchanges kept for chunks in doubt; past it the oldest is given up, and counted"""
MAX_LOGS = 256
IDLE_FOR = 10.0
"""seconds after which a member that had no training process is offered an exchange again, unless it offers one"""
FORGOTTEN = 3600.0
"""seconds since it began after which an exchange is given up if membership does not know the partner any more"""


class Averaging:
    """All exchanges of one peer.

    Args:
        terms: what this peer offers, and accepts at least; chosen anew between rounds.
        ended: called once for each exchange that ended: chunks mixed, seconds, distance (NaN: unknown), now.
    """

    def __init__(
        self,
        config: PairwiseConfig,
        surroundings: Surroundings,
        terms: ExchangeTerms,
        *,
        ended: Callable[[int, float, float, float], None],
    ) -> None:
        self._config, self._surroundings, self._offered_terms, self._ended = config, surroundings, terms, ended
        self._membership, self._outputs = surroundings.membership, surroundings.outputs
        self._apart, self._shuns = surroundings.apart, surroundings.shuns
        me = self._membership.me
        self._me, self._incarnation = me.id, me.incarnation
        self._matching = Matching(config.matching, surroundings.random)
        self._counter = me.incarnation << 32
        self._active: Initiator | Responder | None = None
        self._settling: dict[int, Initiator] = {}
        self._logs: dict[bytes, Responder] = {}
        self._known = Acquaintances()
        self._idle: dict[bytes, float] = {}
        """members without a training process, and when each is asked again"""
        self._offer_out: Offer | None = None
        self._first = 0
        self._round = 0
        self._stopped = self._held = False
        self._tempo = Tempo(config.deadlines.ask)
        self._model: Model | None = None
        self._appointments = Appointments(self._me)

    # -- commands ---------------------------------------------------------------------------------------------

    def ready(self, model: Model) -> None:
        """The model is here: exchanges may begin."""
        self._model = model

    def want(self, exchanges: int, now: float, number: int = 0, schedule: Schedule | None = None) -> None:
        """A round has begun, the network's `number`th: look for so many partners; end what has lasted longer than a
        round. A meeting of this round that an earlier partner has already held is not held again."""
        self._round += 1
        self._appointments.begin(schedule, number, exchanges)
        if self._active is not None and self._active.round < self._round - 1:
            if isinstance(self._active, Initiator):
                self._active.finish_early(now)
            else:
                self._active.close("cut", now, "round")
        self._matching.want(exchanges, now)
        self.step(now)

    def stop(self, now: float) -> None:
        """Offer and accept no more, and end what is under way at the next chunk boundary."""
        self._stopped = True
        self._matching.want_none()
        self._break_off(now, "leaving")
        self.step(now)

    def hold(self, held: bool, now: float) -> bool:
        """While `held`, offer and accept nothing, and end what is under way: true once nothing is."""
        if held:
            self._break_off(now, "joining")
        self._held = held
        self.step(now)
        return self._active is None

    def slept(self, seconds: float) -> None:
        """This peer did not run for so long: that is no part of the exchange under way, and not its partner's doing."""
        if self._active is not None:
            self._active.slept(seconds)

    def _break_off(self, now: float, reason: str) -> None:
        if (offered := self._matching.withdraw()) is not None:
            self._outputs.send(offered.partner, End(offered.exchange, True, "unwanted"))
        if isinstance(self._active, Initiator):
            self._active.finish_early(now)
        elif self._active is not None:
            self._active.close("cut", now, reason)

    @property
    def partner(self) -> bytes | None:
        """Whom this peer is averaging with right now."""
        return None if self._active is None else self._active.terms.partner

    @property
    def wants(self) -> bool:
        """This round's exchanges are not all made."""
        return self._matching.wanted > 0

    def _rests(self) -> str:
        """Why this peer makes no exchanges, or "".

        Without a training process it needs none once this round's are made, or while its model is old. With mode sync
        the others wait for the first round of a training process that has begun.
        """
        around = self._surroundings
        if around.trains() or (self.wants and around.drift() <= around.pacing.usual_every):
            return ""
        return BUSY if around.sync and around.attached() else IDLE

    @property
    def company(self) -> set[bytes]:
        """The other live members, but for those known to be idle."""
        return {member.id for member in self._membership.alive()} - self._idle.keys()

    @property
    def satisfied(self) -> bool:
        """This round's exchanges are over, as far as there is anybody to exchange with, or to settle with."""
        alive = self.company
        unsettled = any(side.terms.partner in alive for side in self._settling.values())
        return self._active is None and not (alive and self._matching.wanted) and not unsettled

    @property
    def at_rest(self) -> bool:
        """No exchange under way, no chunk being mixed, none in doubt: here, or at a partner that can be heard."""
        alive = {member.id for member in self._membership.alive()}
        unsettled = any(log.working or log.terms.partner in alive for log in self._logs.values())
        return self._active is None and not self._settling and not unsettled

    @property
    def in_doubt(self) -> int:
        return sum(exchange.in_doubt for exchange in self._settling.values())

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        match message:
            case Offer():
                self._offer(message, source, now)
            case Accept(exchange):
                self._accepted(message, source, exchange, now)
            case Refuse(exchange, reason):
                offered = self._matching.offered
                if offered is not None and (offered.partner, offered.exchange) == (source, exchange):
                    self._matching.refused(reason, now)
                    self._outputs.emit(OfferRefused(source, reason))
                    if reason == IDLE:
                        self._idle[source] = now + IDLE_FOR
            case Data(exchange, _, turn) | Miss(exchange, _, turn) | Ask(exchange, _, turn):
                # Even turns are the initiator's; a Miss names the initiator's turn but is the responder's word.
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
            self._outputs.send(source, End(exchange, False, "unknown"))

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
            late = side.ended and turn.mixed
            side.job_done(job, turn, now)
            if late:
                self._ended(1, 0.0, math.nan, now)
        self.step(now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news: a failed partner ends its exchange, a new incarnation ends its doubts."""
        over = member.state == State.LEFT
        self._known.appeared(member.id, self._round, self._membership.members)
        sides: list[Initiator | Responder] = [*self._settling.values()]
        sides += [log for log in self._logs.values() if log.terms.partner == member.id]
        sides += [self._active] if isinstance(self._active, Initiator) else []
        for side in sides:
            if side.terms.partner != member.id:
                continue
            if member.incarnation > side.terms.incarnation or (over and isinstance(side, Initiator)):
                side.give_up(now)
            elif over and isinstance(side, Responder):
                side.part(now)
            elif member.state == State.FAILED and not side.ended:
                side.lose(now) if isinstance(side, Initiator) else side.close("lost", now)
        offered = self._matching.offered
        if offered is not None and offered.partner == member.id and member.state in (State.FAILED, State.LEFT):
            self._matching.refused("gone", now)
        self.step(now)

    # -- offers -----------------------------------------------------------------------------------------------

    def _offer(self, offer: Offer, source: bytes, now: float) -> None:
        self._idle.pop(source, None)
        known = self._responder(source, offer.exchange)
        if known is not None:
            return known.offered_again(offer)
        if self._known.dealt_with(source, offer.exchange):
            return
        log = self._logs.get(source)
        if log is not None:
            # The same life offers anew only when nothing is in doubt; a later one has forgotten what was.
            if offer.exchange >> 32 > log.terms.exchange >> 32:
                log.give_up(now)
            else:
                log.supersede(now)
            self._retire(now)
            if log.mixing:
                # Thrown away now, it would never tell whether it has left a chunk in doubt.
                self._outputs.send(source, Refuse(offer.exchange, BUSY))
                return
        reason = self._objection(offer, source, now)
        if reason:
            if reason != "crossing":
                self._outputs.send(source, Refuse(offer.exchange, reason))
            return
        self._matching.withdraw()
        self._known.accepted(source, offer.exchange)
        fineness = self._config.fineness
        codec = max(offer.codec, self._offered_terms.codec or offer.codec, key=lambda name: fineness[name])
        accept = Accept(
            offer.exchange,
            codec,
            min(offer.weight, self._wish(source)),
            min(offer.pull, self._offered_terms.pull),
            min(offer.window, self._offered_terms.window),
            self._incarnation,
            min(offer.rate, self._config.rate),
        )
        assert self._model is not None
        responder = Responder(
            # An exchange's number begins with its initiator's incarnation, which membership may not have heard of yet.
            self._terms(source, accept, offer.exchange >> 32),
            accept,
            self._outputs,
            self._config.deadlines,
            chunks=self._model.chunks,
            size=self._model.schema.trainable,
            now=now,
            first=offer.first,
        )
        for partner in [source, *self._logs][: max(1, len(self._logs) - MAX_LOGS + 2)]:
            if (log := self._logs.pop(partner, None)) is not None:
                log.give_up(now)  # what its initiator has not heard by now it cannot be told any more
                log.forget()
        self._logs[source] = responder
        self._start(responder, source)

    def _barred(self, peer: bytes, now: float) -> str:
        """Why nothing is exchanged with this peer, whatever it offers."""
        return "apart" if peer in self._apart() else "aside" if self._shuns(peer, now) else ""

    def _objection(self, offer: Offer, source: bytes, now: float) -> str:
        if self._stopped:
            return "leaving"
        if self._model is None or self._held:
            return "joining"
        if resting := self._rests():
            return resting
        if barred := self._barred(source, now):
            return barred
        member = self._membership.members.get(source)
        if member is not None and (member.state not in LIVE or member.incarnation > offer.exchange >> 32):
            # Words of an earlier life; or it lives, and will soon have said so.
            return BUSY
        if offer.schema != self._model.schema.digest:
            return "schema"
        if offer.settings != self._surroundings.settings:
            if self._known.differs(source, self._round):
                mine, keys = self._surroundings.settings, self._surroundings.keys
                self._outputs.emit(Notice("GD-303", unlike(f"member {short(source)}", mine, offer.settings, keys)))
            return "settings"
        if offer.codec not in self._config.fineness:
            return "codec"
        guests = self._guests(source)
        free = self._matching.accepts(source, self._appointments.serves(source), self._offered_terms.trains, guests)
        if self._active is not None or not free:
            if guests is None and member is not None and not self._leaves_alone(source, now):
                self._matching.turned_away(source)
            return DONE if self._active is None else BUSY
        if not self._matching.yields_to(source, self._me):
            # Of two crossing offers the lower id's holds: the other side accepts mine without being told.
            offered = self._matching.offered
            return "crossing" if offered is not None and offered.partner == source else BUSY
        return BUSY if self._matching.offered is None and self._leaves_alone(source, now) else ""

    def _leaves_alone(self, source: bytes, now: float) -> bool:
        """Is `source` not to be exchanged with just now, though somebody else is?"""
        others = {member.id for member in self._membership.alive() if not self._barred(member.id, now)}
        return source in self._known.left_alone({source} | others, now)

    def _is_guest(self, source: bytes) -> bool:
        """Can `source` be dialled by nobody, so that it has few to ask?"""
        member = self._membership.members.get(source)
        return member is not None and not member.address

    def _guests(self, source: bytes) -> int | None:
        """If `source` is one: how many there may be in a round; 0 if it has had its turn."""
        if not self._is_guest(source):
            return None
        a_round, turns = guests_per_round([self._membership.me, *self._membership.alive()])
        return 0 if self._known.has_met(source, self._round - turns + 1) else a_round

    def _accepted(self, accept: Accept, source: bytes, exchange: int, now: float) -> None:
        offered = self._matching.offered
        if offered is None or (offered.partner, offered.exchange) != (source, exchange):
            return self._accepted_late(accept, source, exchange, now)
        assert self._offer_out is not None
        terms = self._terms(source, accept, accept.incarnation)
        if 0 < accept.incarnation < terms.incarnation:
            return  # its life is over, and the next one may accept a copy of the offer on other terms
        unlawful = not keeps_to(accept, self._offer_out, self._config.fineness)
        if unlawful or self._model is None or self._barred(source, now):
            self._matching.refused("terms", now)
            self._outputs.send(source, End(exchange, True, "unwanted"))
            return
        initiator = Initiator(
            terms,
            self._me,
            self._outputs,
            self._config.deadlines,
            first=self._first,
            chunks=self._model.chunks,
            size=self._model.schema.trainable,
            now=now,
            tempo=self._tempo,
        )
        self._start(initiator, source)

    def _accepted_late(self, accept: Accept, source: bytes, exchange: int, now: float) -> None:
        """The offer was taken back, has been accepted before, or was made by an earlier life of this peer."""
        side = self._initiator(exchange)
        if side is not None and side.terms.partner == source and accept.incarnation > side.terms.incarnation:
            # A later life of the partner took a copy of the offer for a new one: it cannot tell what the earlier mixed.
            side.give_up(now)
        elif side is not None:
            return
        # "unwanted" settles what this life knows of; what an earlier one left in doubt nobody knows any more.
        reason = "lost" if exchange >> 32 < self._incarnation else "unwanted"
        self._outputs.send(source, End(exchange, True, reason))

    def _terms(self, partner: bytes, accept: Accept, incarnation: int) -> Terms:
        member = self._membership.members.get(partner)
        return Terms(
            partner=partner,
            incarnation=incarnation if member is None else max(incarnation, member.incarnation),
            exchange=accept.exchange,
            codec=accept.codec,
            weight=accept.weight,
            pull=accept.pull,
            window=accept.window,
            rate=accept.rate,
            lower=self._me < partner,
        )

    def _start(self, side: Initiator | Responder, partner: bytes) -> None:
        self._active = side
        side.round = self._round
        guest = not side.initiator and self._is_guest(partner)
        self._matching.matched(self._appointments.met(partner, initiator=side.initiator), guest)
        self._known.met(partner, self._round)
        self._surroundings.began()
        terms = side.terms
        self._outputs.emit(ExchangeStarted(partner, terms.exchange, side.initiator, terms.codec))

    # -- the clockwork ----------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Retire what has ended, and offer if a partner is wanted."""
        if self._active is not None and (barred := self._barred(self._active.terms.partner, now)):
            self._break_off(now, barred)
        self._retire(now)
        if self._active is None and self._model is not None and not self._stopped and not self._held:
            self._make_offer(now)

    def _retire(self, now: float) -> None:
        active = self._active
        if active is not None and active.ended:
            self._active = None
            if isinstance(active, Initiator):
                self._first = active.next_first
                if not active.settled:
                    self._settling[active.terms.exchange] = active
                    if len(self._settling) > MAX_SETTLING:
                        self._settling[next(iter(self._settling))].give_up(now)
            chunks, duration = active.tally.chunks, now - active.tally.started
            partner, owed = active.terms.partner, active.owed(active.terms.rate)
            # By this host's own rate: a partner that asks for a lower one takes the more of its time, for whatever end.
            usual = max(self._tempo.pace * chunks, active.owed(self._config.rate)) if chunks else 0.0
            self._known.parted(partner, chunks, duration, usual, now)
            if chunks == 0:
                self._matching.unmatched(partner, now)
            elif active.tally.mixing > 0.0:
                self._tempo.exchanged(chunks, active.tally.mixing, owed)
            if chunks:
                self._matching.parted(partner, active.tally.mixing)
            self._ended(chunks, active.length(), active.distance(), now)
        for exchange in [number for number, side in self._settling.items() if side.settled]:
            del self._settling[exchange]
        for partner in [peer for peer, log in self._logs.items() if log.settled and log.ended]:
            del self._logs[partner]

    def _make_offer(self, now: float) -> None:
        assert self._model is not None
        if self._matching.idle(now) or self._rests():
            return
        self._idle = {peer: until for peer, until in self._idle.items() if now < until}
        unsettled = {side.terms.partner: "unsettled" for side in self._settling.values()}
        # A doubt that others raise costs a member no exchange while it speaks.
        known = self._membership
        alive = [each for each in known.alive() if each.state == State.ALIVE or known.heard_lately(each.id, now)]
        excluded = out_of_reach(self._membership.me, alive, self._membership.linked) | unsettled
        excluded |= dict.fromkeys(self._idle, IDLE)
        excluded |= dict.fromkeys(self._apart(), "apart")
        excluded |= {member.id: "aside" for member in alive if self._shuns(member.id, now)}
        excluded |= self._known.left_alone((member.id for member in alive if member.id not in excluded), now)
        scheduled = (self._matching.wanted and self._appointments.next()[0]) or None
        partner = self._matching.candidate(
            alive, excluded, self._known.meets(self._round), self._membership.rtt, now, scheduled
        )
        if partner is not None:
            self._counter += 1
            self._matching.offer(partner, self._counter, self._membership.rtt(partner), now)
            self._offer_out = Offer(
                self._counter,
                self._model.schema.digest,
                self._surroundings.settings,
                self._offered_terms.codec,
                self._wish(partner),
                self._offered_terms.pull,
                self._first,
                self._offered_terms.window,
                self._config.rate,
            )
            self._send_offer(partner)
        elif self._matching.lonely(now) and self.company:
            self._outputs.emit(Notice("GD-401", self._matching.loneliness(alive, excluded)))

    def _wish(self, partner: bytes) -> float:
        """The weight of an exchange with `partner`: only the schedule may ask for more than gamma, a newcomer for
        less."""
        named, weight = self._appointments.next()
        share = self._known.share(partner, self._round)
        return share * self._config.weight * (2.0 * weight if partner == named else 1.0)

    def _send_offer(self, partner: bytes) -> None:
        assert self._offer_out is not None
        self._outputs.send(partner, self._offer_out, address=self._membership.address_of(partner))

    def timer(self) -> float | None:
        times = [side.timer() for side in self._settling.values()] + [log.timer() for log in self._logs.values()]
        if isinstance(self._active, Initiator):
            times.append(self._active.timer())
        elif self._active is None and self._model is not None and not self._stopped and not self._held:
            # A peer that rests looks for no partner. An offer that it has made still expires.
            times.append(None if self._rests() and self._matching.offered is None else self._matching.timer())
        return min([time for time in times if time is not None], default=None)

    def handle_timer(self, now: float) -> None:
        sides: list[Initiator | Responder] = [*self._settling.values(), *self._logs.values()]
        sides += [self._active] if isinstance(self._active, Initiator) else []
        known = self._membership.members
        for side in sides:
            side.handle_timer(now)
            if side.ended and side.terms.partner not in known and now >= side.tally.started + FORGOTTEN:
                side.give_up(now)
        offered = self._matching.offered
        if offered is not None:
            if now >= offered.expires:
                self._matching.refused("silent", now)
                self._outputs.emit(OfferRefused(offered.partner, "silent"))
                # Its Accept may be on the way, or lost: it need not wait for this peer.
                self._outputs.send(offered.partner, End(offered.exchange, True, "unwanted"))
            elif now >= offered.repeat and not offered.repeated:
                offered.repeated = True
                self._send_offer(offered.partner)
        self.step(now)
