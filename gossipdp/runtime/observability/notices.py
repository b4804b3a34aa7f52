"""What the operator reads of a peer's events: log lines, notices in `status`, and counts of notices.

Nothing is decided here. What the daemon does about an event is in `gossipdp.runtime.node`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter

from gossipdp.error_codes import ADVICE
from gossipdp.protocol import events
from gossipdp.protocol.causes import Outcome
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.view import View
from gossipdp.protocol.wire.messages import Decision, Member, Phase, Receipt, State, Verdict, short
from gossipdp.runtime.observability.join_progress import Reminder
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.status import Status

__all__ = ["Notices", "is_news", "name_of", "told"]

log = logging.getLogger("gossipdp.node")

AGAIN = 60.0
"""seconds before the same notice is logged again: the protocol dials again and again"""
MEMBER_LINES = 60
"""changes of members logged in `AGAIN` seconds; further ones are only counted"""
CODE_LINES = 60
"""warnings of one code logged in `AGAIN` seconds; further ones are only counted"""
STATES = {
    State.ALIVE: "is alive",
    State.SUSPECT: "is suspect: it does not answer",
    State.FAILED: "has failed",
    State.LEFT: "has left",
}
PHASES = {
    Phase.RUNNING: "it asks all members to finish",
    Phase.WAITING: "its training is over",
    Phase.CLOSING: "it averages the final model",
    Phase.DONE: "it holds the final model",
}
"""what a member says of the end of its run"""
DECIDED = {
    Verdict.NONE: "is no longer banned",
    Verdict.BANNED: "is banned",
    Verdict.INVITED: "is valid",
    Verdict.REVOKED: "is revoked",
}
REMEMBERED = 256
"""notices whose time is remembered"""


def told(decision: Decision) -> str:
    """A decision of the operator in words."""
    if decision.secret is not None:
        return f"the network has a new secret, for {_peers(len(decision.allowed))}"
    if not decision.subject:
        closed = f"the network admits only {_peers(len(decision.allowed), 'allowed ')}"
        return closed if decision.verdict is Verdict.CLOSED else "the network admits every peer with its secret"
    name = f"{decision.name} ({short(decision.subject)})" if decision.name else short(decision.subject)
    if decision.verdict in (Verdict.INVITED, Verdict.REVOKED):
        name = f"the invite for {name}"
    return f"{name} {DECIDED[decision.verdict]}"


def _peers(count: int, which: str = "") -> str:
    return f"{count} {which}peer{'s' * (count != 1)}"


def is_news(decision: Decision, generation: int) -> bool:
    """Whether a decision is worth a line: not the first secret of a network, nor one that this peer holds.

    Args:
        generation: of this peer's secret.
    """
    return decision.secret is None or max(generation, decision.secret.replaces) < decision.number


def name_of(view: View, member: bytes) -> str:
    """Name and short id of `member`, or the short id alone if the peer of `view` does not know it."""
    known = view.members.get(member)
    return short(member) if known is None else f"{known.name} ({short(member)})"


class Notices:
    """Tells the operator what wants attention.

    Args:
        view: names the members, and tells round and re-sync state.
        status: gets every event and the notices.
        metrics: gets every event and counts the notices.
    """

    def __init__(self, view: View, status: Status, metrics: Metrics) -> None:
        self._view, self._status, self._metrics = view, status, metrics
        self._told: dict[tuple[str, str], float] = {}
        self._lines: Counter[str] = Counter()
        """number of warnings by code since `_lines_since`"""
        self._lines_since = -math.inf
        self._advised: set[tuple[str, str]] = set()
        """codes and advice that were logged"""
        self._shown: dict[bytes, Member] = {}
        """records of members as last told"""
        self._unmatched = False
        """whether it was said that a network of two has no third peer to compare a model"""
        self._renews = False
        """an idle peer fetches the model anew; when its events are read, the peer may have ended that"""
        self._changes, self._changes_since = 0, -math.inf
        """changes of members, and since when they are counted"""
        self._reminded: events.Notice | None = None

    def notice(self, code: str, text: str, now: float, do: str = "", address: str = "", **about: str) -> None:
        """A notice that no event of the peer carries. It is counted each time, and logged once in `AGAIN` seconds.

        Args:
            do: what to do; the advice for `code` by default. The first notice with it says it.
            address: where the dial failed that it tells of.
            about: further fields of the log record.
        """
        self._metrics.observe(notice := events.Notice(code, text))
        self._say(notice, now, do, address, **about)

    def remind(self, reminder: Reminder | None) -> None:
        """Log a reminder again, always with what to do. In `status` it replaces the reminder before."""
        if reminder is None:
            return
        if not reminder.code:
            log.info("%s; do: %s", reminder.text, reminder.do)
            return
        self._metrics.observe(notice := events.Notice(reminder.code, reminder.text))
        log.warning("%s %s; do: %s", *reminder, extra={"code": reminder.code})
        self._status.note(notice, reminder.do, instead_of=self._reminded)
        self._reminded = notice

    def _say(self, notice: events.Notice, now: float, do: str = "", address: str = "", **about: str) -> None:
        code, text = notice.code, notice.text
        last = self._told.get((code, text), -math.inf)
        if now - last < AGAIN or self._is_too_much(code, now):
            return
        self._told.pop((code, text), None)  # the newest stands last
        self._told[(code, text)] = now
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        do = do or ADVICE.get(code, "")
        advice = f"; do: {do}" if do and (code, do) not in self._advised else ""
        if len(self._advised) >= REMEMBERED:
            self._advised.clear()
        self._advised.add((code, do))
        log.warning("%s %s%s", code, text, advice, extra={"code": code, **about})
        self._status.note(notice, do, address=address)

    def _is_too_much(self, code: str, now: float) -> bool:
        """Count one warning. Returns whether no line is left for its code now: remotes can cause any number of them."""
        if now >= self._lines_since + AGAIN:
            for each, count in self._lines.items():
                if count > CODE_LINES:
                    log.warning("%s %d more warnings of this kind", each, count - CODE_LINES, extra={"code": each})
            self._lines.clear()
            self._lines_since = now
        self._lines[code] += 1
        return self._lines[code] > CODE_LINES

    def observe(self, event: events.Event, now: float) -> None:
        """Pass an event of the peer on to status and metrics, and log it."""
        self._status.observe(event)
        self._metrics.observe(event)
        match event:
            case events.SnapshotTaken(_, refused) if refused:
                self.notice("GD-402", f"a snapshot of this host's training was not used: {refused}", now)
            case events.MemberChanged(member, before):
                self._member_changed(member, before, now)
            case events.ExchangeEnded():
                self._exchange(event)
            case events.TookOver(clock, steps, before):
                instead = "there was no checkpoint" if before is None else f"the model here was of step {before}"
                log.info(
                    "took over the parameters of the live training process: step %d of the network's clock, %d steps"
                    " since its last snapshot; %s",
                    clock,
                    steps,
                    instead,
                )
            case events.RanAway(True, again=True):
                text = "rounds again move the weights further and further: this peer steps as if alone"
                self.notice("GD-405", text, now)
            case events.RanAway(True):
                log.info("rounds move the weights further and further: this peer steps as if alone for a time")
            case events.RanAway(False):
                log.info("training is calm again: this peer averages with others as before")
            case events.WeightsLoaded(kept):
                outcome = "they are the model now: no other host trains" if kept else "the network's model was put back"
                self.notice("GD-325", f"the training script loaded weights; {outcome}", now)
            case events.MomentsProgress(source, chunks, of) if chunks == of:
                log.info("received the optimizer's moments from %s", self._name(source))
            case events.StateReady():
                self._status.forget(self._reminded)
            case events.StateJudged():
                self._verdict(event, logging.DEBUG if self._renews else logging.INFO)
            case events.ResyncBegan(Reason.APART, members, others):
                log.warning("%d members that trained apart from the %d of this side are back", others, members)
            case events.ResyncBegan(Reason.IDLE | Reason.LATE as reason, behind=behind):
                self._renews = reason is Reason.IDLE
                why = "training starts" if reason is Reason.LATE else "no training process makes rounds here"
                text = "%s, and the model here is %d steps old: fetching the newer one, which is normal"
                log.log(logging.INFO if reason is Reason.LATE else logging.DEBUG, text, why, behind)
            case events.ResyncEnded(Reason.IDLE | Reason.LATE as reason, source, complete, seconds):
                self._renews = False
                level = logging.INFO if reason is Reason.LATE else logging.DEBUG
                if complete:
                    log.log(level, "received a newer model from %s in %.1f s", self._name(source), seconds)
                else:
                    log.log(level, "no member gave a newer model: this peer keeps its own")
            case events.ResyncBegan():
                log.warning("this peer has fallen behind the network: fetching the model again")
            case events.ResyncEnded(reason, source, complete, seconds):
                alone = "no member is left to fetch the model from: this peer goes on with its own"
                outcome = f"model fetched from {self._name(source)}" if complete else alone
                log.warning("re-sync (%s) ended after %.1f s: %s", reason, seconds, outcome)
            case events.Notice():
                self._say(event, now)
            case events.UpdateRefused(peer, reason):
                self.notice("GD-402", f"update of {short(peer)} refused: {reason}", now)
            case events.OverBudget(peer, kind):
                self.notice("GD-402", f"{short(peer)} sends more than its budget allows: {kind} dropped", now)
            case events.MessageFailed(peer, kind, fault):
                text = f"this daemon failed on a {kind} of {self._name(peer)}, dropped it and goes on"
                self.notice("GD-509", f"{text}: {fault}", now)
            case events.Decided(decisions):
                for decision in decisions[:MEMBER_LINES]:
                    self._decided(decision, now)
            case events.ReceiptsTaken(receipts):
                for receipt in receipts[:MEMBER_LINES]:
                    self._received(receipt, now)
            case events.OperatorDiffers(through, operator):
                mine = self._view.operator.hex() or "no operator"
                text = f"{self._name(through)} follows the operator {operator.hex()}, but this host follows {mine}"
                self.notice("GD-207", text, now)
            case events.Struck(peer, reason, strikes, pause) if pause:
                told = f"{short(peer)} is set aside for {pause:.0f} s after {strikes} strikes, the last: {reason}"
                self.notice("GD-402", told, now, partner=peer.hex())
            case events.Struck(peer, reason, strikes):
                extra = {"partner": peer.hex()}
                log.warning("strike %d against %s: %s", strikes, self._name(peer), reason, extra=extra)
            case events.ChunksInDoubt(partner, count):
                log.warning("%d chunks in doubt: %s died before it settled them", count, self._name(partner))

    def _decided(self, decision: Decision, now: float) -> None:
        why = f" ({decision.reason})" if decision.reason else ""
        if is_news(decision, self._status.transport.secret.generation):
            log.warning("operator: %s%s", told(decision), why)
        if decision.subject in (self._view.id, b"") and (fate := self._view.fate):
            self.notice("GD-204", fate, now)

    def _received(self, receipt: Receipt, now: float) -> None:
        """A member has a new secret, or an invite has let it in."""
        view, who = self._view, self._name(receipt.peer)
        decision = view.decision(receipt.subject)
        if decision is None or decision.invite is None:
            log.info("%s has the network's new secret", who)
            return
        log.warning("the invite for %s lets %s in", decision.name, who)
        uses = decision.invite.uses
        if len(view.holders(receipt.subject)) > uses:
            text = (
                f"the invite for {decision.name} has let in more than {uses} hosts; `gossipdp invite --list` names them"
            )
            self.notice("GD-209", text, now)

    def _member_changed(self, member: Member, before: State | None, now: float) -> None:
        news = self._news(member, before)
        if not news:
            log.debug("member %s (%s) has a new record", member.name, short(member.id))
            return
        if now >= self._changes_since + AGAIN:
            if self._changes > MEMBER_LINES:
                log.warning("%d more changes of members; `gossipdp members` lists them", self._changes - MEMBER_LINES)
            self._changes, self._changes_since = 0, now
        self._changes += 1
        if self._changes <= MEMBER_LINES:
            log.info("member %s (%s) %s", member.name, short(member.id), news)
        if self._changes == MEMBER_LINES:
            log.warning("%d changes of members within %.0f s: more are counted, not logged", MEMBER_LINES, AGAIN)

    def _news(self, member: Member, before: State | None) -> str:
        """What has changed of `member` since it was last told; "" if that is nothing for people."""
        known = self._shown.pop(member.id, None)
        self._shown[member.id] = member  # the newest stands last
        if len(self._shown) > REMEMBERED:
            del self._shown[next(iter(self._shown))]
        early = member.phase is Phase.WAITING and not member.calls
        if before is not member.state:
            if member.state is State.LEFT and early:
                return f"{STATES[State.LEFT]}: its model is not final"
            again = " again" if before is not None and member.state is State.ALIVE else ""
            return STATES[member.state] + again
        if (member.phase or member.calls) and (
            known is None or (known.phase, known.calls) != (member.phase, member.calls)
        ):
            waits = ", and it waits for those that train" if early else ""
            return f"ends its run: {PHASES[member.phase]}{waits}"
        if known is None or known == member:
            return ""
        if known.incarnation < member.incarnation:
            return "was started again"
        if known.addresses == member.addresses:
            return ""
        if relays := [name_of(self._view, relay) for relay in member.relays]:
            return f"is reached through {' and '.join(relays)} now"
        return f"is dialled at {', '.join(member.addresses) or 'no address'} now"

    def _exchange(self, event: events.ExchangeEnded) -> None:
        quiet = event.result is Outcome.DONE or event.chunks == 0  # the verdict counts exchanges that mixed nothing
        log.log(
            logging.DEBUG if quiet else logging.INFO,
            "exchange %d with %s: %s, %d of %d chunks mixed, %s, %.2f s",
            event.exchange,
            self._name(event.partner),
            event.result,
            event.chunks,
            event.of,
            event.codec,
            event.duration,
            extra={
                "exchange": event.exchange,
                "initiator": (self._view.id if event.initiator else event.partner).hex(),
                "partner": event.partner.hex(),
                "round": self._view.own_progress.rounds,
            },
        )

    def _verdict(self, event: events.StateJudged, level: int) -> None:
        source = self._name(event.source)
        if not event.witness and len(self._view.alive) > 1:
            log.log(level, "took the model from %s unchecked: no other member could compare it with its own", source)
            return
        if not event.witness:
            told, self._unmatched = self._unmatched, True
            text = "took the model from %s; in a network of two there is no third peer to compare it with"
            log.log(logging.DEBUG if told else level, text, source)
            return
        log.log(
            level,
            "the model from %s is %s by %s: RMS distance %.3g, %.3g allowed",
            source,
            "found plausible" if event.plausible else "denied",
            self._name(event.witness),
            event.distance,
            event.bound,
        )

    def _name(self, member: bytes) -> str:
        return name_of(self._view, member)
