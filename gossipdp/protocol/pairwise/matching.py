"""Who to exchange with: random matching by offer and accept.

A peer that wants an exchange offers it to one random member and waits for one answer at a time; a busy member says so
and the next is tried after a random pause. Of two crossing offers the lower id's holds. Half of the exchanges that a
peer takes part in are others' offers, at any time of its own round: it accepts up to a round's worth before it wants
them, and wants the fewer in its next round; but none ahead with its last partner while somebody else has asked in
vain, or of three peers the same two might meet for ever, for their rounds begin in the same order. Choice is 80 % in
favour of near members and 20 % uniform, so that the graph of exchanges stays an expander (Boyd et al. 2006,
"Randomized gossip algorithms"; algorithms section 7).

Who can be dialled by nobody has few to ask, and these would each have their exchanges with whoever of them comes first,
always the same, and none with each other. Such a guest is accepted beside the round's own exchanges, once these have
been made: so many as there are to each who can be dialled, up to a few, and of more each in its turn. This module knows
ids and round-trip times, nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from gossipdp.protocol.wire.messages import Member, short

__all__ = [
    "BUSY",
    "DONE",
    "IDLE",
    "Matching",
    "MatchingConfig",
    "choose_partner",
    "guests_per_round",
    "out_of_reach",
]

BUSY: Final = "busy"
"""why an offer is refused by who exchanges, or has an offer out"""
DONE: Final = "done"
"""why an offer is refused by who has had its share until its next round begins"""
EXCUSED: Final = 3
"""rounds without a match in which that is no reason to be lonely"""
UNPROVEN: Final = 0.125
"""share of the offers that may go to members that never answered a ping, while others have"""
IDLE: Final = "idle"
"""why an offer is refused by a peer without a training process"""
MOST_GUESTS: Final = 4
"""a round: all exchanges are then as many as in an early one, and move an anchor no further"""


@dataclass(frozen=True, kw_only=True)
class MatchingConfig:
    """Times in seconds."""

    answer: float = 1.0
    """wait for the answer to an offer, plus 4 round trips; the offer is repeated once at half of it"""
    pause: float = 0.05
    """shortest pause after a refusal; drawn from [pause, 2 pause], doubled at each further refusal"""
    longest_pause: float = 2.0
    biased: float = 0.8
    """share of the choices that favour near members"""
    schedule: str = "hypercube"
    """whom to meet while the view is full and fresh (`schedule`): "hypercube", in early rounds, if N is a power of two;
    "base2", in all rounds; "": at random"""
    patience: float = 1.0
    """wait so long for the scheduled partner, plus 4 round trips; then anybody will do"""
    ahead: bool = True
    """accept a round's worth before it is wanted; not so with mode "sync", in which a peer that has not ended its round
    is not mixed with"""
    lonely: float = 30.0
    """without a partner for so long, tell the operator (GD-401)"""


def choose_partner(
    candidates: Sequence[bytes], rtt: Callable[[bytes], float | None], biased: float, random: Random
) -> bytes:
    """One of `candidates`: uniformly, or with weights 1 / (rtt + 5 ms), so that equal links have equal chances."""
    if len(candidates) == 1 or random.random() >= biased:
        return candidates[random.randrange(len(candidates))]
    weights = [1.0 / ((rtt(peer) or 0.0) + 0.005) for peer in candidates]
    return random.choices(candidates, weights)[0]


def guests_per_round(members: Iterable[Member]) -> tuple[int, int]:
    """With how many who can be dialled by nobody everybody else exchanges, beside its own exchanges of a round; and in
    how many rounds each of them once."""
    dialled = [bool(member.address) for member in members]
    each = -(-dialled.count(False) // max(1, dialled.count(True)))
    return min(MOST_GUESTS, each), max(1, -(-each // MOST_GUESTS))


def out_of_reach(me: Member, members: Iterable[Member], linked: Callable[[bytes], bool]) -> dict[bytes, str]:
    """Whom no offer can get to, and why: outbound-only members, unless they have opened a link to this peer. Two
    outbound-only peers never have one, and are never matched."""
    return {
        member.id: "outbound-only"
        for member in members
        if not member.address and not (me.address and linked(member.id))
    }


@dataclass
class Offered:
    """The one offer this peer waits for."""

    partner: bytes
    exchange: int
    expires: float
    repeat: float
    repeated: bool = False


class Matching:
    """When to offer, and to whom. The owner sends the messages.

    `wanted` counts the exchanges still wanted in this round, `ahead` those of the next round that have been made
    before it began; an exchange accepted counts as well as one offered.
    """

    def __init__(self, config: MatchingConfig, random: Random) -> None:
        self._config, self._random = config, random
        self.wanted = self.ahead = 0
        self.a_round = 1
        """exchanges"""
        self.guests = 0
        """accepted in this round"""
        self.offered: Offered | None = None
        self.refusals: dict[bytes, str] = {}
        """who is not to be asked again just now"""
        self.reasons: dict[bytes, str] = {}
        """what each who is there said last, since the last match"""
        self._refused = 0
        self._not_before = 0.0
        self._counted: Literal["wanted", "ahead", "guest", ""] = ""
        """what the last match was"""
        self._lonely_since: float | None = None
        self._unmet = 0
        """rounds since the last match that have ended in want"""
        self._last: tuple[bytes, float] = b"", 0.0
        """the last partner, and how long that exchange took"""
        self._rounds = 0
        self._turned_away: dict[bytes, int] = {}
        """who has asked in vain of late, and in which round"""
        self._sought_at: float | None = None
        """since when nobody has been found"""
        self._scheduled: tuple[bytes, float] | None = None
        """whom the present step names, and until when to wait for it"""

    def want(self, exchanges: int, now: float) -> None:
        """A round has begun, which has so many exchanges: forget old refusals, want those that have not been made."""
        # Who is still refused asks soon again: rounds may be shorter than the longest pause, and others always busy.
        self._refused = 0
        if self.wanted:
            self._unmet += 1
            self._not_before = min(self._not_before, now + self._config.pause)
        else:
            self._unmet = 0
            self._not_before, self._lonely_since = now, None
        if self._lonely_since is None:
            self._lonely_since = now
        # What is under way counts for this round if it has been one ahead of it, and is a matter of the last if not.
        if self._counted != "guest":
            self._counted = "wanted" if self._counted == "ahead" and self.ahead <= exchanges else ""
        self.wanted, self.ahead, self.a_round = max(0, exchanges - self.ahead), 0, exchanges
        self.guests = 0
        self._rounds += 1
        self._turned_away = {peer: at for peer, at in self._turned_away.items() if at >= self._rounds - 1}

    def idle(self, now: float) -> bool:
        """Nobody is to be looked for now, and the operator need not be told: so it is most of the time."""
        return not self._looks(now) and not self._is_lonely(now)

    def _looks(self, now: float) -> bool:
        return self.wanted > 0 and self.offered is None and now >= self._not_before

    def candidate(
        self,
        alive: Sequence[Member],
        excluded: Mapping[bytes, str],
        met: Collection[bytes],
        rtt: Callable[[bytes], float | None],
        now: float,
        scheduled: bytes | None = None,
    ) -> bytes | None:
        """Whom to offer to now, if anybody: the scheduled partner until patience ends; else rather one not met in this
        round, and not one that has just refused. Not the last one, for as long as that exchange took, if all others are
        busy: else they would be so again at the same time of each round, two and two for ever."""
        if not self._looks(now):
            return None
        if self._sought_at is None:
            self._sought_at = now
        if scheduled is not None and scheduled not in excluded:
            if self._scheduled is None or self._scheduled[0] != scheduled:
                self._scheduled = scheduled, now + self._config.patience + 4.0 * (rtt(scheduled) or 0.0)
            if now < self._scheduled[1]:
                return scheduled
        there = {member.id for member in alive}
        self.reasons = {peer: why for peer, why in self.reasons.items() if peer in there}
        possible = [member.id for member in alive if member.id not in excluded]
        last, lasted = self._last
        others = [peer for peer in possible if peer != last]
        # Who cannot at all, as a joiner, is not waited for.
        if now < self._sought_at + lasted and any(self.reasons.get(peer, BUSY) == BUSY for peer in others):
            possible, self._lonely_since = others, now
        # Of the members that never answered a ping any number may not exist.
        proven = [peer for peer in possible if rtt(peer) is not None]
        if 0 < len(proven) < len(possible) and self._random.random() >= UNPROVEN:
            possible = proven
        fresh = [peer for peer in possible if peer not in self.refusals] or possible
        fresh = [peer for peer in fresh if peer not in met] or fresh
        if not fresh:
            self._back_off(now)
            return None
        return choose_partner(fresh, rtt, self._config.biased, self._random)

    def offer(self, partner: bytes, exchange: int, rtt: float | None, now: float) -> None:
        wait = self._config.answer + 4.0 * (rtt or 0.0)
        self.offered = Offered(partner, exchange, now + wait, now + wait / 2)

    def accepts(self, source: bytes, counts: bool, steps: bool, guests: int | None = None) -> bool:
        """May one more be accepted, with `source`? `steps`: training makes rounds. `guests`: with somebody who can be
        dialled by nobody, of whom there may be so many in a round; None: with anybody else."""
        if not self._config.ahead:
            return self.wanted > 0
        if not steps or (counts and self.wanted > 0):
            return True
        # Guests are none of a round ahead: they ask first, and who can be dialled would never come to ask anybody.
        if guests is not None:
            return self.guests < guests
        waited_for = source == self._last[0] and any(peer != source for peer in self._turned_away)
        return self.ahead < self.a_round and not waited_for

    def turned_away(self, source: bytes) -> None:
        """`source`, with whom an exchange could be, has been told that there is no time for it now."""
        self._turned_away[source] = self._rounds

    def yields_to(self, source: bytes, me: bytes) -> bool:
        """An offer has come from `source`: does mine to the same peer, crossing it, give way?"""
        return self.offered is None or (self.offered.partner == source and source < me)

    def want_none(self) -> None:
        """Look for no partner any more."""
        self.wanted = 0

    def withdraw(self) -> Offered | None:
        offered, self.offered = self.offered, None
        return offered

    def refused(self, reason: str, now: float) -> None:
        """The one offer out was refused, or not answered."""
        offered = self.withdraw()
        if offered is not None:
            self.refusals[offered.partner] = self.reasons[offered.partner] = reason
            self._back_off(now)
            if reason == DONE and self._unmet < EXCUSED:
                # It would, in its next round: whose rounds are long may wait for longer than `lonely`.
                self._lonely_since = now

    def matched(self, counts: bool = True, guest: bool = False) -> None:
        """An exchange has begun, by own offer or by another's. One that does not count for this round, or that this
        round does not want, is one of the next; with a guest it is of none."""
        self.offered = None
        wanted = self.wanted > 0 and (counts or not self._config.ahead)
        if guest and not wanted:
            self.guests, self._counted = self.guests + 1, "guest"
            return
        self._counted = "wanted" if wanted else "ahead" if self._config.ahead else ""
        self._count(self._counted, -1)
        self.refusals.clear()
        self.reasons.clear()
        self._refused = self._unmet = 0
        self._lonely_since = None
        self._scheduled = None

    def parted(self, partner: bytes, seconds: float) -> None:
        """The exchange with `partner` has mixed something, in so many seconds."""
        self._turned_away.pop(partner, None)
        if self._counted != "guest":
            self._last, self._sought_at = (partner, seconds), None

    def unmatched(self, partner: bytes, now: float) -> None:
        """The exchange mixed nothing: it is wanted again, if it was, but rather not with `partner`."""
        self._turned_away.pop(partner, None)
        counted, self._counted = self._counted, ""
        if counted == "guest":
            self.guests = max(0, self.guests - 1)
            return
        self.refusals[partner] = self.reasons[partner] = "nothing mixed"
        self._count(counted, +1)
        self._back_off(now)

    def _count(self, counted: str, more: int) -> None:
        if counted == "wanted":
            self.wanted += more
        elif counted == "ahead":
            self.ahead = max(0, self.ahead - more)

    def _back_off(self, now: float) -> None:
        pause = min(self._config.pause * 2.0**self._refused, self._config.longest_pause)
        self._refused = min(self._refused + 1, 16)
        self._not_before = now + pause * (1.0 + self._random.random())
        if self._refused % 4 == 0:
            self.refusals.clear()

    def lonely(self, now: float) -> bool:
        """True once in `config.lonely` seconds without a partner; the owner tells the operator why."""
        lonely = self._is_lonely(now)
        if lonely:
            self._lonely_since = now
        return lonely

    def _is_lonely(self, now: float) -> bool:
        since = self._lonely_since
        return self.wanted > 0 and since is not None and now >= since + self._config.lonely

    def loneliness(self, alive: Sequence[Member], excluded: Mapping[bytes, str]) -> str:
        """Why nobody is found, for the operator."""
        reasons = {**{member.id: "not asked" for member in alive}, **self.reasons, **excluded}
        some = sorted(reasons.items())[:8]
        told = ", ".join(f"{short(peer)} {why}" for peer, why in some) or "nobody is alive"
        return f"no partner in {self._config.lonely:g} s: {len(alive)} members ({told}); training goes on"

    def timer(self) -> float | None:
        if self.offered is not None:
            return self.offered.expires if self.offered.repeated else self.offered.repeat
        return self._not_before if self.wanted else None
