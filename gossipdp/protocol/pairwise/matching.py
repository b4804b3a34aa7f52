"""Finds partners by random matching: offer and accept.

A peer that wants an exchange offers it to one random member and waits for the answer. A busy member refuses, and the
peer tries another after a random pause. Of two crossing offers the lower id's holds. 80 % of the choices favour near
members and 20 % are uniform, so that the graph of exchanges stays an expander (Boyd et al. 2006, "Randomized gossip
algorithms"; algorithms section 7).

Half of a peer's exchanges are others' offers, which come at any time of its round. It accepts up to a round's worth
ahead, and wants that many fewer in its next round. It accepts none ahead from its last partner while it has refused
another member. Otherwise the same two of three peers could meet for ever, because their rounds begin in the same order.

An outbound-only peer has few partners to ask. The dialable peers would spend all their exchanges on those that ask
first, always the same ones, and have none with each other. So an outbound-only partner is a guest: a dialable peer
accepts it beyond its own exchanges of a round, once these are made. The guests of a round are the outbound-only members
per dialable one, at most `MOST_GUESTS`. If there are more, they take turns. This module knows ids and round-trip times,
and nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.wire.messages import Member, short

__all__ = [
    "Matching",
    "MatchingConfig",
    "choose_partner",
    "guests_per_round",
    "out_of_reach",
]

EXCUSED: Final = 3
"""rounds without a match in which a refusal with `Objection.DONE` restarts the wait for the notice GD-401"""
UNPROVEN: Final = 0.125
"""share of the offers that any member may get. The others go to those that answered a ping, or mixed, while some did"""
MOST_GUESTS: Final = 4
"""guests of a round, at most; with its own exchange they move an anchor no further than an early round does"""


@dataclass(frozen=True, kw_only=True)
class MatchingConfig:
    """Times in seconds."""

    answer: float = 1.0
    """wait for the answer to an offer, plus 4 round trips; the offer is repeated once at half of this"""
    pause: float = 0.05
    """shortest pause after a refusal; drawn from [pause, 2 pause], doubled at each further refusal"""
    longest_pause: float = 2.0
    """largest value that the doubled `pause` reaches"""
    biased: float = 0.8
    """share of the choices that favour near members"""
    patience: float = 1.0
    """wait for the scheduled partner, plus 4 round trips; then any member will do"""
    lonely: float = 30.0
    """time without a partner after which the operator gets a notice (GD-401)"""


def choose_partner(
    candidates: Sequence[bytes], rtt: Callable[[bytes], float | None], biased: float, random: Random
) -> bytes:
    """One of `candidates`: uniformly, or with weights 1 / (rtt + 5 ms), so that equal links have equal chances."""
    if len(candidates) == 1 or random.random() >= biased:
        return candidates[random.randrange(len(candidates))]
    weights = [1.0 / ((rtt(peer) or 0.0) + 0.005) for peer in candidates]
    return random.choices(candidates, weights)[0]


def guests_per_round(members: Iterable[Member]) -> tuple[int, int]:
    """Guests that a dialable peer accepts in a round, and the number of rounds in which each guest comes once."""
    dialled = [bool(member.address) for member in members]
    each = -(-dialled.count(False) // max(1, dialled.count(True)))
    return min(MOST_GUESTS, each), max(1, -(-each // MOST_GUESTS))


def out_of_reach(me: Member, members: Iterable[Member], linked: Callable[[bytes], bool]) -> dict[bytes, Objection]:
    """Members that no offer can reach, and why: outbound-only ones that have opened no link to this peer.

    Two outbound-only peers never have a link, and are never matched.
    """
    return {
        member.id: Objection.OUTBOUND
        for member in members
        if not member.address and not (me.address and linked(member.id))
    }


@dataclass
class Offered:
    """The one offer that waits for an answer. Times in seconds."""

    partner: bytes
    exchange: int
    expires: float
    repeat: float
    """when the offer is sent again, once"""
    repeated: bool = False


class Matching:
    """When to offer, and to which member. `offers` sends the messages.

    `wanted` counts the exchanges still wanted in this round. `ahead` counts those of the next round that were made
    before it began. Accepted and offered exchanges count the same.

    Args:
        sync: accept no exchanges ahead, because this peer does not mix before its round ends.
    """

    def __init__(self, config: MatchingConfig, random: Random, *, sync: bool) -> None:
        self._config, self._random, self._sync = config, random, sync
        self.wanted = self.ahead = 0
        self.a_round = 1
        """exchanges that a round has"""
        self.guests = 0
        """guests accepted in this round"""
        self.offered: Offered | None = None
        self.refusals: dict[bytes, Objection | str] = {}
        """members not to be asked again for now, and why"""
        self.reasons: dict[bytes, Objection | str] = {}
        """each live member's last refusal since the last match"""
        self._refused = 0
        self._not_before = 0.0
        self._counted: Literal["wanted", "ahead", "guest", ""] = ""
        """what the last match counts as"""
        self._lonely_since: float | None = None
        self._unmet = 0
        """rounds in a row that ended with exchanges still wanted, since the last match"""
        self._last: tuple[bytes, float] = b"", 0.0
        """the last partner, and seconds that the exchange took"""
        self._rounds = 0
        self._turned_away: dict[bytes, int] = {}
        """members refused for lack of time in this round or the last, and the round of it"""
        self._sought_at: float | None = None
        """since when this peer looks for a partner"""
        self._patience = config.patience
        """seconds for which the scheduled partner of this round is waited for"""
        self._scheduled: tuple[bytes, float] | None = None
        """the partner that the schedule names, and until when to wait for it"""

    def want(self, exchanges: int, now: float, patience: float = 0.0) -> None:
        """A round of `exchanges` exchanges has begun. Want those that were not made ahead.

        Args:
            patience: seconds for which the scheduled partner is waited for, if more than usual.
        """
        self._patience = max(self._config.patience, patience)
        # Start again with short pauses: a round may be shorter than the longest pause, and other members always busy.
        self._refused = 0
        if self.wanted:
            self._unmet += 1
            self._not_before = min(self._not_before, now + self._config.pause)
        else:
            self._unmet = 0
            self._not_before, self._lonely_since = now, None
        if self._lonely_since is None:
            self._lonely_since = now
        # An exchange under way counts for this round if it was made ahead. Else it belongs to the last round.
        if self._counted != "guest":
            self._counted = "wanted" if self._counted == "ahead" and self.ahead <= exchanges else ""
        self.wanted, self.ahead, self.a_round = max(0, exchanges - self.ahead), 0, exchanges
        self.guests = 0
        self._rounds += 1
        self._turned_away = {peer: at for peer, at in self._turned_away.items() if at >= self._rounds - 1}

    def idle(self, now: float) -> bool:
        """No partner is to be looked for now, and no notice is due. This is the usual case."""
        return not self.looks(now) and not self._is_lonely(now)

    def looks(self, now: float) -> bool:
        """A partner is wanted, no offer is out, and the pause after a refusal is over."""
        return self.wanted > 0 and self.offered is None and now >= self._not_before

    def candidate(
        self,
        alive: Sequence[Member],
        excluded: Mapping[bytes, Objection],
        met: Collection[bytes],
        rtt: Callable[[bytes], float | None],
        now: float,
        scheduled: bytes | None = None,
        first: Callable[[bytes], bool] = lambda peer: True,
    ) -> bytes | None:
        """The member to offer to now, or None.

        It is the scheduled partner until patience ends. After that, members that have not just refused, and were not
        met in this round, come first. If others are busy, the last partner is left out for as long as the last exchange
        took. Otherwise the same pairs would meet at the same time of each round for ever.

        Args:
            alive: the other live members.
            excluded: members that are not asked, and why.
            met: members met in this round.
            rtt: round-trip time to a member, seconds; None if it never answered a ping.
            scheduled: the partner that the schedule names.
            first: whether a member is asked before strangers that may not answer.
        """
        if not self.looks(now):
            return None
        if self._sought_at is None:
            self._sought_at = now
        if scheduled is not None and scheduled not in excluded:
            if self._scheduled is None or self._scheduled[0] != scheduled:
                self._scheduled = scheduled, now + self._patience + 4.0 * (rtt(scheduled) or 0.0)
            if now < self._scheduled[1]:
                return scheduled
        there = {member.id for member in alive}
        self.reasons = {peer: why for peer, why in self.reasons.items() if peer in there}
        possible = [member.id for member in alive if member.id not in excluded]
        last, lasted = self._last
        others = [peer for peer in possible if peer != last]
        # Wait for busy members only. One that cannot exchange at all, such as a joiner, is not waited for.
        if now < self._sought_at + lasted and any(
            self.reasons.get(peer, Objection.BUSY) == Objection.BUSY for peer in others
        ):
            possible, self._lonely_since = others, now
        # Members that never answered a ping may not exist, and others may answer no offer.
        proven = [peer for peer in possible if rtt(peer) is not None]
        proven = [peer for peer in proven if first(peer)] or proven
        if 0 < len(proven) < len(possible) and self._random.random() >= UNPROVEN:
            possible = proven
        fresh = [peer for peer in possible if peer not in self.refusals] or possible
        fresh = [peer for peer in fresh if peer not in met] or fresh
        if not fresh:
            self.back_off(now)
            return None
        return choose_partner(fresh, rtt, self._config.biased, self._random)

    def offer(self, partner: bytes, exchange: int, rtt: float | None, now: float) -> None:
        """An offer is sent to `partner`."""
        wait = self._config.answer + 4.0 * (rtt or 0.0)
        self.offered = Offered(partner, exchange, now + wait, now + wait / 2)

    def accepts(self, source: bytes, counts: bool, steps: bool, guests: int | None = None) -> bool:
        """Whether one more exchange may be accepted, with `source`.

        Args:
            counts: it counts for this round.
            steps: a training process makes rounds.
            guests: guests of a round, at most, if `source` is one; None if it is no guest.
        """
        if self._sync:
            return self.wanted > 0
        if not steps or (counts and self.wanted > 0):
            return True
        # A guest never counts ahead. Guests ask first, and dialable peers would have no exchange left to offer.
        if guests is not None:
            return self.guests < guests
        waited_for = source == self._last[0] and any(peer != source for peer in self._turned_away)
        return self.ahead < self.a_round and not waited_for

    def turned_away(self, source: bytes) -> None:
        """`source`, a possible partner, was refused for lack of time."""
        self._turned_away[source] = self._rounds

    def yields_to(self, source: bytes, me: bytes) -> bool:
        """Whether an offer from `source` may be accepted. Of two crossing offers the lower id's holds."""
        return self.offered is None or (self.offered.partner == source and source < me)

    def want_none(self) -> None:
        """Look for no more partners."""
        self.wanted = 0

    def withdraw(self) -> Offered | None:
        """Forget the offer that is out, and return it."""
        offered, self.offered = self.offered, None
        return offered

    def refused(self, reason: Objection | str, now: float) -> None:
        """The offer that is out was refused, or got no answer."""
        offered = self.withdraw()
        if offered is not None:
            self.refusals[offered.partner] = self.reasons[offered.partner] = reason
            self.back_off(now)
            if reason == Objection.DONE and self._unmet < EXCUSED:
                # The partner accepts in its next round. Where rounds are long, that may take longer than `lonely`.
                self._lonely_since = now

    def matched(self, counts: bool = True, guest: bool = False) -> None:
        """An exchange has begun, by this peer's offer or by another's.

        It counts for the next round if it does not count for this one, or this one wants none. One with a guest counts
        for no round, unless this one wants it.
        """
        self.offered = None
        wanted = self.wanted > 0 and (counts or self._sync)
        if guest and not wanted:
            self.guests, self._counted = self.guests + 1, "guest"
            return
        self._counted = "wanted" if wanted else "" if self._sync else "ahead"
        self._count(self._counted, -1)
        self.refusals.clear()
        self.reasons.clear()
        self._refused = self._unmet = 0
        self._lonely_since = None
        self._scheduled = None

    def parted(self, partner: bytes, seconds: float) -> None:
        """The exchange with `partner` has ended and mixed chunks. It took `seconds`."""
        self._turned_away.pop(partner, None)
        if self._counted != "guest":
            self._last, self._sought_at = (partner, seconds), None

    def unmatched(self, partner: bytes, now: float) -> None:
        """The exchange with `partner` mixed nothing. If it was wanted, look for another partner."""
        self._turned_away.pop(partner, None)
        counted, self._counted = self._counted, ""
        if counted == "guest":
            self.guests = max(0, self.guests - 1)
            return
        self.refusals[partner] = self.reasons[partner] = Objection.NOTHING
        self._count(counted, +1)
        self.back_off(now)

    def _count(self, counted: str, more: int) -> None:
        if counted == "wanted":
            self.wanted += more
        elif counted == "ahead":
            self.ahead = max(0, self.ahead - more)

    def back_off(self, now: float) -> None:
        """Pause, longer each time in a row."""
        pause = min(self._config.pause * 2.0**self._refused, self._config.longest_pause)
        self._refused = min(self._refused + 1, 16)
        self._not_before = now + pause * (1.0 + self._random.random())
        if self._refused % 4 == 0:
            self.refusals.clear()

    def lonely(self, now: float) -> bool:
        """True once in `config.lonely` seconds without a partner. A notice is then due."""
        lonely = self._is_lonely(now)
        if lonely:
            self._lonely_since = now
        return lonely

    def _is_lonely(self, now: float) -> bool:
        since = self._lonely_since
        return self.wanted > 0 and since is not None and now >= since + self._config.lonely

    def loneliness(self, alive: Sequence[Member], excluded: Mapping[bytes, Objection]) -> str:
        """Why no partner is found, for the operator."""
        reasons = {**{member.id: Objection.UNASKED for member in alive}, **self.reasons, **excluded}
        some = sorted(reasons.items())[:8]
        told = ", ".join(f"{short(peer)} {why}" for peer, why in some) or "no other live member"
        members = f"{len(alive)} member{'s' * (len(alive) != 1)}"
        return f"no partner in {self._config.lonely:g} s: {members} ({told}); training goes on"

    def timer(self) -> float | None:
        """When to repeat, give up or make an offer, or None."""
        if self.offered is not None:
            return self.offered.expires if self.offered.repeated else self.offered.repeat
        return self._not_before if self.wanted else None
