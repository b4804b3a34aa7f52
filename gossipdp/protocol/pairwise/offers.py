"""Offers of one peer: which partner it asks next, on what terms, and which offers of others it accepts.

`matching` chooses among candidates, `partner_history` remembers earlier exchanges, `schedule` names the partner of a
round where peers follow one. The exchanges themselves are in `averaging`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Ending, Objection
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.facts import Age
from gossipdp.protocol.events import Notice, OfferRefused
from gossipdp.protocol.membership.view import LIVE
from gossipdp.protocol.model import Model
from gossipdp.protocol.pairwise.block_layout import Named
from gossipdp.protocol.pairwise.closing import Closing
from gossipdp.protocol.pairwise.exchange import Side, Terms, keeps_to
from gossipdp.protocol.pairwise.matching import Matching, guests_per_round, out_of_reach
from gossipdp.protocol.pairwise.partner_history import PartnerHistory
from gossipdp.protocol.pairwise.schedule import Schedule, SchedulePosition
from gossipdp.protocol.pairwise.terms import ExchangeTerms
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Rounds, damped
from gossipdp.protocol.settings_digest import difference
from gossipdp.protocol.wire.messages import OLDEST_VERSION, Accept, End, Member, Offer, Refuse, State, short

__all__ = ["IDLE_FOR", "Offers"]

IDLE_FOR: Final = 10.0
"""seconds after which a member that had no training process is offered an exchange again, unless it offers one"""


class Offers:
    """Makes and judges offers.

    Args:
        terms: what this peer offers, and accepts at least.
        contribution: tells the network's clock.
        age: tells how many of its steps the model has missed.
        apart: members that nothing is exchanged with until one side has fetched the model of the other. It changes.
    """

    def __init__(
        self,
        parts: Parts,
        pacing: Pacing,
        rounds: Rounds,
        terms: ExchangeTerms,
        contribution: Contribution,
        age: Age,
        apart: Mapping[bytes, int],
    ) -> None:
        config = parts.config.averaging
        self._membership, self._outputs, self._shuns = parts.membership, parts.outputs, parts.strikes.shuns
        self._config, self._pacing, self._rounds, self._terms = config, pacing, rounds, terms
        self._settings, self._keys, self._sync = parts.config.settings, parts.config.keys, parts.config.sync
        self._contribution, self._age, self._apart = contribution, age, apart
        me = self._membership.me
        self._me, self._incarnation = me.id, me.incarnation
        self._matching = Matching(config.matching, parts.random, sync=self._sync)
        self._position = SchedulePosition(me.id)
        self._known = PartnerHistory()
        self._idle: dict[bytes, float] = {}
        """members without a training process, and when each is asked again"""
        self.closing = Closing(me, parts.random, config.deadlines.silence)
        self._closes = False
        """the exchange under way is one of the closing"""
        self._hands_in = False
        """training is over, and this peer hands its last steps in"""
        self._counter = me.incarnation << 32
        self._out: Offer | None = None
        self._first = 0
        """the chunk that the next exchange begins with"""
        self.round = 0
        self._model: Model | None = None

    # -- this round -------------------------------------------------------------------------------------------

    def ready(self, model: Model) -> None:
        """The model is here: exchanges may begin."""
        self._model = model

    def begin_round(
        self, exchanges: int, now: float, number: int = 0, schedule: Schedule | None = None, patience: float = 0.0
    ) -> None:
        """Round `number` of the network begins: look for `exchanges` partners, along `schedule` if there is one."""
        self.round += 1
        self._position.begin(schedule, number, exchanges)
        self._matching.want(exchanges, now, patience)

    def hand_in(self, hands_in: bool) -> None:
        """Whether training is over and this peer hands its last steps in: it exchanges although it does not train."""
        self._hands_in = hands_in

    def close(self, others: Sequence[Member], seed: bytes, now: float) -> None:
        """Training is over: seek exchanges with `others` alone."""
        self.closing.meet(others, seed, now)
        self.withdraw()

    def stop(self) -> None:
        """Look for no partner any more."""
        self._matching.want_none()

    def withdraw(self) -> None:
        """Take back the offer that is out, if there is one."""
        if (offered := self._matching.withdraw()) is not None:
            self._outputs.send(offered.partner, End(offered.exchange, True, Ending.UNWANTED))

    @property
    def wants(self) -> bool:
        """This round's exchanges are not all made."""
        return self._matching.wanted > 0

    @property
    def company(self) -> set[bytes]:
        """The other live members, without those known to be idle and those whose training is over."""
        return {member.id for member in self._membership.alive() if not member.phase} - self._idle.keys()

    def rests(self) -> Objection | None:
        """Why this peer makes no exchanges, or None.

        Without a training process it needs none once this round's are made, or while its model is old, unless it hands
        its last steps in. With mode sync the others wait for the first round of a training process that has begun.
        """
        if self._membership.me.phase:
            return None if self.closing.begun else Objection.IDLE
        seeks = self.wants and self._age.drift(self._contribution.clock) <= self._pacing.usual_every
        if self._rounds.trains or self._hands_in or seeks:
            return None
        return Objection.BUSY if self._sync and self._rounds.open else Objection.IDLE

    def barred(self, peer: bytes, now: float) -> Objection | None:
        """Why nothing is exchanged with this peer, or None."""
        if peer in self._apart:
            return Objection.APART
        return Objection.ASIDE if self._shuns(peer, now) else None

    # -- own offers -------------------------------------------------------------------------------------------

    def make(self, unsettled: Mapping[bytes, Objection], now: float) -> None:
        """Offer an exchange if a partner is wanted.

        Args:
            unsettled: members with which a lost exchange is still open, and the reason to name.
        """
        assert self._model is not None
        if self.closing.begun:
            return self._make_closing(unsettled, now)
        if self._matching.idle(now) or self.rests():
            return
        self._idle = {peer: until for peer, until in self._idle.items() if now < until}
        # A member that others suspect still gets offers while this peer hears it.
        known = self._membership
        alive = [each for each in known.alive() if each.state == State.ALIVE or known.heard_lately(each.id, now)]
        excluded = self._excluded(alive, unsettled, now)
        scheduled = (self._matching.wanted and self._position.next()[0]) or None
        met, first = self._known.meets(self.round), self._known.comes_first
        partner = self._matching.candidate(alive, excluded, met, known.rtt, now, scheduled, first)
        if partner is not None:
            self._offer(partner, now)
        elif self._matching.lonely(now) and any(
            self._matching.reasons.get(peer) != Objection.IDLE for peer in self.company
        ):
            self._outputs.emit(Notice("GD-401", self._matching.loneliness(alive, excluded)))

    def _make_closing(self, unsettled: Mapping[bytes, Objection], now: float) -> None:
        """Offer an exchange to the partner of the closing's step."""
        partner, _ = self.closing.partner
        if not partner:
            return self._matching.want_none()
        if not self.wants:
            self.begin_round(1, now)
        if not self._matching.looks(now):
            return None
        if partner in unsettled or not self._membership.reaches(partner):
            return self._matching.back_off(now)  # an outbound-only partner makes the offer itself
        return self._offer(partner, now)

    def _offer(self, partner: bytes, now: float) -> None:
        assert self._model is not None
        self._counter += 1
        self._matching.offer(partner, self._counter, self._membership.rtt(partner), now)
        self._out = Offer(
            self._counter,
            self._model.schema.digest,
            self._settings,
            str(Named.among(self._terms.codec, self._version(partner))),
            self._wish(partner),
            self._terms.pull,
            self._first,
            self._terms.window,
            self._config.rate,
        )
        self._send(partner)

    def _version(self, partner: bytes) -> int:
        """The newest protocol version that both peers speak."""
        member = self._membership.members.get(partner)
        return OLDEST_VERSION if member is None else min(member.version, self._membership.me.version)

    def _excluded(
        self, alive: Iterable[Member], unsettled: Mapping[bytes, Objection], now: float
    ) -> dict[bytes, Objection]:
        """Members that are not asked, and why."""
        alive = list(alive)
        excluded = out_of_reach(self._membership.me, alive, self._membership.linked) | dict(unsettled)
        excluded |= {member.id: Objection.FINISHING for member in alive if member.phase}
        excluded |= dict.fromkeys(self._idle, Objection.IDLE)
        excluded |= dict.fromkeys(self._apart, Objection.APART)
        excluded |= {member.id: Objection.ASIDE for member in alive if self._shuns(member.id, now)}
        rest = (member.id for member in alive if member.id not in excluded)
        return excluded | self._known.left_alone(rest, now, asks=True)

    def _send(self, partner: bytes) -> None:
        assert self._out is not None
        self._outputs.send(partner, self._out, address=self._membership.address_of(partner))

    def _wish(self, partner: bytes) -> float:
        """The weight of an exchange with `partner`. Only the schedule may ask for more than gamma."""
        if self.closing.begun:
            # A newcomer counts in full: with less weight no schedule is exact, and the bound holds for it, too.
            named, weight = self.closing.partner
            return weight if partner == named else 0.5
        share = self._known.share(partner, self.round) * damped(self._rounds.gain) * self._pacing.runaway.share
        named, weight = self._position.next()
        return share * self._config.weight * (2.0 * weight if partner == named else 1.0)

    def refused(self, source: bytes, exchange: int, reason: Objection | str, now: float) -> None:
        """A partner has refused an offer."""
        if self.is_out(source, exchange):
            self._matching.refused(reason, now)
            self.closing.refused(now)
            self._outputs.emit(OfferRefused(source, reason))
            if reason == Objection.IDLE:
                self._idle[source] = now + IDLE_FOR

    def is_out(self, partner: bytes, exchange: int) -> bool:
        """Whether this is the offer that waits for an answer."""
        offered = self._matching.offered
        return offered is not None and (offered.partner, offered.exchange) == (partner, exchange)

    def confirmed(self, accept: Accept, source: bytes, now: float) -> Terms | None:
        """The terms of the exchange that `accept` begins, or None if it begins none."""
        assert self._out is not None
        terms = self.terms(self._out, accept, source, mine=True)
        if 0 < accept.incarnation < terms.incarnation:
            return None  # The partner has restarted, and may accept a copy of the offer on other terms.
        lawful = keeps_to(accept, self._out, self._config.fineness)
        if not lawful or self.barred(source, now):
            self._matching.refused(Objection.TERMS, now)
            self._outputs.send(source, End(accept.exchange, True, Ending.UNWANTED))
            return None
        return terms

    # -- others' offers ---------------------------------------------------------------------------------------

    def heard(self, source: bytes) -> None:
        """A member offers an exchange, so it is no longer idle."""
        self._idle.pop(source, None)

    def dealt_with(self, source: bytes, exchange: int) -> bool:
        """Whether this offer has been answered before."""
        return self._known.dealt_with(source, exchange)

    def refuse(self, offer: Offer, source: bytes, reason: Objection) -> None:
        """Refuse an offer. A crossing offer needs no answer: the partner accepts this peer's own."""
        if reason is not Objection.CROSSING:
            self._outputs.send(source, Refuse(offer.exchange, reason))

    def objection(self, offer: Offer, source: bytes, now: float, *, busy: bool) -> Objection | None:
        """Why an offer is refused, or None. busy: an exchange is under way."""
        assert self._model is not None
        if resting := self.rests():
            return resting
        if barred := self.barred(source, now):
            return barred
        member = self._membership.members.get(source)
        if member is not None and (member.state not in LIVE or member.incarnation > offer.exchange >> 32):
            # The offer is from an earlier incarnation, or the member is alive and will soon refute its suspicion.
            return Objection.BUSY
        if unsuited := self._unsuited(offer, source):
            return unsuited
        if self.closing.begun:
            if busy or not self._matching.yields_to(source, self._me):
                return self._crossing(source)
            return self.closing.objection(source, now)
        if member is not None and member.phase:
            return Objection.IDLE
        guests = self._guests(source)
        free = self._matching.accepts(source, self._position.serves(source), self._pacing.trains, guests)
        if busy or not free:
            if guests is None and member is not None and not self._leaves_alone(source, now):
                self._matching.turned_away(source)
            return Objection.BUSY if busy else Objection.DONE
        if not self._matching.yields_to(source, self._me):
            return self._crossing(source)
        avoided = self._matching.offered is None and self._leaves_alone(source, now)
        return Objection.BUSY if avoided else None

    def _crossing(self, source: bytes) -> Objection:
        """Why an offer is refused while another one is out. Of two crossing offers the lower id's holds."""
        offered = self._matching.offered
        crosses = offered is not None and offered.partner == source
        return Objection.CROSSING if crosses else Objection.BUSY

    def _unsuited(self, offer: Offer, source: bytes) -> Objection | None:
        """Why the two peers cannot exchange at all, or None."""
        assert self._model is not None
        if offer.schema != self._model.schema.digest:
            return Objection.SCHEMA
        if offer.settings != self._settings:
            if self._known.differs(source, self.round):
                told = difference(f"member {short(source)}", self._settings, offer.settings, self._keys)
                self._outputs.emit(Notice("GD-303", told))
            return Objection.SETTINGS
        return None if Named.of(offer.codec).codec in self._config.fineness else Objection.CODEC

    def _leaves_alone(self, source: bytes, now: float) -> bool:
        """Whether this peer avoids `source` for now: it wasted time, and another member is available."""
        others = {member.id for member in self._membership.alive() if not self.barred(member.id, now)}
        return source in self._known.left_alone({source} | others, now, asks=False)

    def is_guest(self, source: bytes) -> bool:
        """`source` is outbound-only: no peer can dial it, so it has few partners to ask (see `matching`)."""
        member = self._membership.members.get(source)
        return member is not None and not member.address

    def _guests(self, source: bytes) -> int | None:
        """Guests of a round, at most. 0 if `source` has had its exchange; None if `source` is no guest."""
        if not self.is_guest(source):
            return None
        a_round, turns = guests_per_round([self._membership.me, *self._membership.alive()])
        return 0 if self._known.has_met(source, self.round - turns + 1) else a_round

    def accept(self, offer: Offer, source: bytes) -> Accept:
        """The answer to an offer without objection."""
        self._matching.withdraw()
        self._known.accepted(source, offer.exchange)
        fineness, offered = self._config.fineness, Named.of(offer.codec)
        codec = max(offered.codec, self._terms.codec or offered.codec, key=lambda name: fineness[name])
        return Accept(
            offer.exchange,
            str(offered._replace(codec=codec)),
            min(offer.weight, self._wish(source)),
            min(offer.pull, self._terms.pull),
            min(offer.window, self._terms.window),
            self._incarnation,
            min(offer.rate, self._config.rate),
        )

    def terms(self, offer: Offer, accept: Accept, partner: bytes, *, mine: bool) -> Terms:
        """The terms of the exchange of `offer`, as `accept` fixes them. mine: this peer made the offer."""
        assert self._model is not None
        member, named = self._membership.members.get(partner), Named.of(accept.codec)
        # An exchange's number begins with its initiator's incarnation, which membership may not know yet.
        incarnation = accept.incarnation if mine else offer.exchange >> 32
        return Terms(
            partner=partner,
            incarnation=incarnation if member is None else max(incarnation, member.incarnation),
            initiator=self._me if mine else partner,
            exchange=offer.exchange,
            chunks=self._model.chunks,
            size=self._model.schema.trainable,
            first=offer.first,
            coding=jobs.Coding(lower=self._me < partner, **named._asdict()),
            mixing=jobs.Mixing(weight=accept.weight, pull=accept.pull),
            window=accept.window,
            rate=accept.rate,
        )

    # -- beginning and end of exchanges -----------------------------------------------------------------------

    def begin(self) -> None:
        """An exchange is about to open chunks."""
        self._closes = self.closing.begun
        if self._closes:
            self._outputs.ask(jobs.Widen(self.closing.share))

    def met(self, partner: bytes, *, initiator: bool) -> None:
        """An exchange with `partner` has begun."""
        self.closing.began()
        guest = not initiator and self.is_guest(partner)
        self._matching.matched(self._position.met(partner, initiator=initiator), guest)
        self._known.met(partner, self.round)

    def continue_from(self, chunk: int) -> None:
        """The next exchange that this peer initiates begins with `chunk`."""
        self._first = chunk

    def parted(self, side: Side, duration: float, usual: float, now: float) -> None:
        """An exchange has ended.

        Args:
            duration: seconds from its beginning.
            usual: seconds that its chunks usually take.
        """
        partner, chunks, mixing, distance = side.terms.partner, side.tally.chunks, side.tally.mixing, side.distance()
        if self._closes:
            self.closing.met(partner, distance, side.moved(), duration, now, outlier=side.tally.beyond > 0)
        else:
            assert self._model is not None
            self.closing.measured(distance, duration * self._model.chunks / chunks if chunks else 0.0)
        self._known.parted(partner, chunks, duration, usual, now)
        if chunks:
            self._matching.parted(partner, mixing)
        else:
            self._matching.unmatched(partner, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        self._known.appeared(member.id, self.round, self._membership.members)

    def member_gone(self, member: Member, now: float) -> None:
        """`member` has failed or left. An offer to it is void."""
        offered = self._matching.offered
        if offered is not None and offered.partner == member.id:
            self._matching.refused(Objection.GONE, now)

    def timer(self) -> float | None:
        """When to make, repeat or give up an offer. An offer that is out also expires while this peer rests."""
        if self.rests() and self._matching.offered is None:
            return None
        times = [self._matching.timer(), self.closing.timer()]
        return min([time for time in times if time is not None], default=None)

    def handle_timer(self, now: float) -> None:
        """Repeat an unanswered offer once, then give it up when it expires."""
        self.closing.handle_timer(now)
        offered = self._matching.offered
        if offered is None:
            return
        if now >= offered.expires:
            self._known.unanswered(offered.partner, 2.0 * (offered.expires - offered.repeat), now)
            self._matching.refused(Objection.SILENT, now)
            self._outputs.emit(OfferRefused(offered.partner, Objection.SILENT))
            # The partner's Accept may be on the way, or lost. The End spares it the wait.
            self._outputs.send(offered.partner, End(offered.exchange, True, Ending.UNWANTED))
        elif now >= offered.repeat and not offered.repeated:
            offered.repeated = True
            self._send(offered.partner)
