"""What people read of what happens to a peer: log lines, notices in its status, and counts of them.

Nothing is decided here, and nobody but the reader is told: what an event makes the daemon do is `node`'s business.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter

from gossipdp.error_codes import ADVICE
from gossipdp.protocol import events
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.wire.messages import Member, State, short
from gossipdp.runtime.observability.join_progress import Reminder
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.status import Status

__all__ = ["Journal"]

log = logging.getLogger("gossipdp.node")

AGAIN = 60.0
"""seconds before the same is said again: the protocol dials again and again"""
MEMBER_LINES = 60
"""changes of members that are logged in `AGAIN` seconds, each on a line; of more, only their number"""
CODE_LINES = 60
"""warnings of one code that are logged in `AGAIN` seconds; of more, only their number"""
REMEMBERED = 256
"""things said, of which it is known when"""


class Journal:
    def __init__(self, peer: Peer, status: Status, metrics: Metrics) -> None:
        self._peer, self._status, self._metrics = peer, status, metrics
        self._told: dict[tuple[str, str], float] = {}
        self._lines: Counter[str] = Counter()
        """warnings by code since `_lines_since`"""
        self._lines_since = -math.inf
        self._advised: set[tuple[str, str]] = set()
        self._changes, self._changes_since = 0, -math.inf
        """of members, since when"""
        self._reminded = ""

    def trouble(self, code: str, text: str, now: float, do: str = "", **about: str) -> None:
        """Trouble that no event tells of: it is counted each time, and said, but not again and again.

        What to do, `do` or else the advice for `code`, is said with the first that has it.
        """
        self._metrics.observe(events.Notice(code, text))
        self._say(code, text, now, do, **about)

    def remind(self, reminder: Reminder | None) -> None:
        """Say it, though it was said before, always with what to do. In `status` it takes the place of the last one."""
        if reminder is None:
            return
        self._metrics.observe(events.Notice(reminder.code, reminder.text))
        log.warning("%s %s; do: %s", *reminder, extra={"code": reminder.code})
        with contextlib.suppress(ValueError):
            self._status.notices.remove(self._reminded)
        self._reminded = f"{reminder.code} {reminder.text}"
        self._status.notices.append(self._reminded)
        self._status.advice[reminder.code] = reminder.do

    def _say(self, code: str, text: str, now: float, do: str = "", **about: str) -> None:
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
        self._status.notices.append(f"{code} {text}")
        if do:
            self._status.advice[code] = do

    def _is_too_much(self, code: str, now: float) -> bool:
        """Count one warning; whether this minute has no line left for its code. Texts may hold what a stranger sent."""
        if now >= self._lines_since + AGAIN:
            for each, count in self._lines.items():
                if count > CODE_LINES:
                    log.warning("%s %d more warnings of this kind", each, count - CODE_LINES, extra={"code": each})
            self._lines.clear()
            self._lines_since = now
        self._lines[code] += 1
        return self._lines[code] > CODE_LINES

    def observe(self, event: events.Event, now: float) -> None:
        """Whatever the peer emits."""
        self._status.observe(event)
        self._metrics.observe(event)
        match event:
            case events.SnapshotTaken(_, refused) if refused:
                self.trouble("GD-402", f"a snapshot of this host's training was not used: {refused}", now)
            case events.MemberChanged(member, before):
                self._member_changed(member, before, now)
            case events.ExchangeEnded():
                self._exchange(event)
            case events.TookOver(clock, steps, before):
                instead = "there was no checkpoint" if before is None else f"the model here was of step {before}"
                log.info(
                    "took the parameters of the live training process over: step %d of the network's clock, %d steps"
                    " since its last snapshot; %s",
                    clock,
                    steps,
                    instead,
                )
            case events.MomentsProgress(source, chunks, of) if chunks == of:
                log.info("the optimizer's moments came from %s", short(source))
            case events.StateJudged():
                _verdict(event, logging.DEBUG if self._peer.resyncing == "idle" else logging.INFO)
            case events.ResyncBegan("apart", members, others):
                log.warning("%d members are back who trained without this side's %d for long", others, members)
            case events.ResyncBegan("diverged"):
                log.warning("this peer's state is not what the others have agreed on: it fetches the model anew")
            case events.ResyncBegan("idle" | "late" as reason, behind=behind):
                waits = "a training process waits" if reason == "late" else "no training process"
                level = logging.INFO if reason == "late" else logging.DEBUG
                log.log(level, "the model here is %d steps old (%s): it is fetched anew", behind, waits)
            case events.ResyncEnded("idle" | "late" as reason, source, complete, seconds):
                outcome = f"from {short(source)} in {seconds:.1f} s" if complete else "by nobody: this one stays"
                level = logging.INFO if reason == "late" else logging.DEBUG
                log.log(level, "a newer model has come %s" if complete else "a newer model was given %s", outcome)
            case events.ResyncBegan():
                log.warning("this peer has fallen behind the network: it fetches the model anew")
            case events.ResyncEnded(reason, source, complete, seconds):
                alone = "nobody left to fetch the model from, it goes on with its own"
                outcome = f"model fetched from {short(source)}" if complete else alone
                log.warning("re-sync (%s) ended after %.1f s: %s", reason, seconds, outcome)
            case events.Notice(code, text):
                self._say(code, text, now)
            case events.UpdateRefused(peer, reason):
                self.trouble("GD-402", f"update of {short(peer)} refused: {reason}", now)
            case events.Struck(peer, reason, strikes, pause) if pause:
                told = f"{short(peer)} is set aside for {pause:.0f} s after {strikes} strikes, the last: {reason}"
                self.trouble("GD-402", told, now, partner=peer.hex())
            case events.Struck(peer, reason, strikes):
                log.warning("strike %d of %s: %s", strikes, short(peer), reason, extra={"partner": peer.hex()})
            case events.ChunksInDoubt(partner, count):
                log.warning("%d chunks in doubt: %s died before it settled them", count, short(partner))

    def _member_changed(self, member: Member, before: State | None, now: float) -> None:
        if now >= self._changes_since + AGAIN:
            if self._changes > MEMBER_LINES:
                log.warning("%d more changes of members; `gossipdp members` lists them", self._changes - MEMBER_LINES)
            self._changes, self._changes_since = 0, now
        self._changes += 1
        if self._changes <= MEMBER_LINES:
            was = "" if before is None else f", was {before.name.lower()}"
            log.info("member %s (%s) is %s%s", member.name, short(member.id), member.state.name.lower(), was)
        if self._changes == MEMBER_LINES:
            log.warning("%d changes of members within %.0f s: more are counted, not logged", MEMBER_LINES, AGAIN)

    def _exchange(self, event: events.ExchangeEnded) -> None:
        log.log(
            logging.DEBUG if event.result == "done" else logging.INFO,
            "exchange %d with %s %s: %d of %d chunks, %s, %.2f s",
            event.exchange,
            short(event.partner),
            event.result,
            event.chunks,
            event.of,
            event.codec,
            event.duration,
            extra={
                "exchange": event.exchange,
                "initiator": (self._peer.id if event.initiator else event.partner).hex(),
                "partner": event.partner.hex(),
                "round": self._peer.rounds.rounds,
            },
        )


def _verdict(event: events.StateJudged, level: int) -> None:
    if event.witness:
        log.log(
            level,
            "the model from %s is %s by %s: RMS distance %.3g, %.3g allowed",
            short(event.source),
            "found plausible" if event.plausible else "denied",
            short(event.witness),
            event.distance,
            event.bound,
        )
    else:
        log.log(level, "nobody else could say whether the model from %s is plausible: it is taken", short(event.source))
