"""How far every peer has come: grow-only counters, gossiped. Their clock is the network's.

A state-based grow-only counter (Shapiro et al. 2011, "Conflict-free replicated data types"): one entry a peer, written
and signed by that peer alone. Of two reports of a peer the one that is ahead in every field stands, so order, loss and
duplication of reports do not matter. A report that is ahead in one field and behind in another is of a restarted peer
that does not know yet what it did before. It changes nothing, and the peer is told its former report.

The furthest leads, by its own steps. If it leaves, dies or stands still, the others may be far behind it, and the clock
would stand until one of them has come as far. So who has trained on while the clock stood still counts those steps from
where it stood. It does so only of a clock that stood, for else the clock would add the best of everybody's rounds, and
run ahead of all; and only from a value known before those steps began, so it never runs faster than the fastest does.
Of many steps reported at once, as when a daemon has slept and its training has not, most were made before that: no more
are counted on than twice those of the report before.

A member that lies about its own progress is believed, and its signature tells afterwards which member it was. With one
report it takes every peer's clock ahead, for good: what follows the clock, as learning rates do, comes that much early,
and epochs are closed before their increments have come. From there others count on, as from any clock that stands:
what they claim is what `clock` says already, and their own steps. At LARGEST no epoch begins any more, and nothing is
published. No limit on what a clock may gain in some time helps, because a peer that has just started, or was cut off
for long, cannot know it.

Nothing here knows what a step is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gossipdp.protocol.wire.messages import UNSIGNED, Progress

__all__ = ["LARGEST", "MAX_REPORTS", "Own", "ProgressBoard"]

MAX_REPORTS = 16_384
"""peers reported on; past it those who are not there make room for those who are"""
LARGEST = (1 << 32) - (1 << 16)
"""steps on a clock: epochs are numbered in 32 bits, and may be as short as a step; what claims more is no report"""
MOST_COUNTED = 1 << 56
"""steps or samples of one peer, likewise"""
SOME: Final = 2
"""times the steps of the report before, that are counted on from a clock that stood"""
_U63 = (1 << 63) - 1
_U32 = 0xFFFF_FFFF


class Own(NamedTuple):
    """How far this peer has come: its own clock in steps, without what it may count on from another's (`progress`); its
    rounds, how many of them since its last exchange, and how many steps a transfer is expected to take."""

    clock: int
    rounds: int
    alone: int
    transfer: float


class ProgressBoard:
    """The reports one peer knows, its own among them.

    A restarted peer counts from zero again, but the others remember its earlier lives. A merged report on oneself that
    exceeds one's own can only come from an earlier life: it becomes the base that the present one is counted on.

    Args:
        lives: is that member there? Only asked when there is no more room.
        sign: adds this peer's signature to its own report.
    """

    def __init__(
        self,
        me: bytes,
        lives: Callable[[bytes], bool] = lambda peer: True,
        sign: Callable[[Progress], Progress] = lambda report: report,
    ) -> None:
        self._me, self._lives, self._sign = me, lives, sign
        self._reports: OrderedDict[bytes, Progress] = OrderedDict()
        self._behind: dict[bytes, None] = {}
        """peers whose own report was not ahead of the one known here: they are to hear that one"""
        self._base = self._life = self._recovered = (0, 0, 0)
        self._clock = self._furthest = 0
        self._known = 0
        """the network's clock at the last `report`"""
        self._made = 0
        """steps between the last two of them with any"""
        self.refused = 0

    @property
    def mine(self) -> Progress:
        """The own entry, earlier lives included."""
        counts = zip(self._base, self._life, self._recovered, strict=True)
        steps, samples, rounds = map(sum, counts)
        return Progress(self._me, self._clock, min(steps, MOST_COUNTED), min(samples, MOST_COUNTED), min(rounds, _U32))

    def of(self, peer: bytes) -> Progress | None:
        """What is known of `peer`."""
        return self.mine if peer == self._me else self._reports.get(peer)

    def reports(self) -> list[Progress]:
        """Everything known, the own entry included once there is one."""
        return list(self._reports.values())

    def clock(self) -> int:
        """The network's clock in steps: the furthest any peer is known to have come."""
        return self._furthest

    def steps(self) -> int:
        """Steps of all peers together, ever."""
        return min(_U63, sum(report.steps for report in self._reports.values()))

    def samples(self) -> int:
        """Samples of all peers together, ever."""
        return min(_U63, sum(report.samples for report in self._reports.values()))

    def report(self, *, clock: int, steps: int, samples: int, rounds: int) -> None:
        """This peer's progress: `clock` absolute (that adopted at the join, plus own steps since), the rest
        counted since this process started. If nobody has come further since the last of these, the steps since then are
        counted from the network's clock."""
        made = max(0, steps - self._life[0])
        stood = made > 0 and self._furthest == self._known
        counted = min(made, SOME * self._made) if self._made else made
        counts = (self._clock + made, self._furthest + counted if stood else 0)
        self._clock, self._made = min(max(clock, *counts), LARGEST), made or self._made
        before, now = self._life, (steps, samples, rounds)
        self._life = (max(before[0], now[0]), max(before[1], now[1]), max(before[2], now[2]))
        self._write_mine()
        self._known = self._furthest

    def recover(self, steps: int, samples: int) -> None:
        """A live training process made these in an earlier life, which may have reported none of them.

        The clock does not count them: the next `report` has it from that process.
        """
        self._recovered = self._recovered[0] + steps, self._recovered[1] + samples, 0

    def news(self, report: Progress, source: bytes) -> bool:
        """Whether `report`, told by `source`, would change anything here. Its signature need not be checked if not."""
        if report.clock > LARGEST or max(report.steps, report.samples) > MOST_COUNTED:
            self.refused += 1
            return False
        if report.id == self._me:
            return any(said > known for said, known in zip(_counts(report), _counts(self.mine), strict=True))
        known = self._reports.get(report.id)
        if known is None or _ahead(report, known):
            return True
        if report.id == source and _counts(report) != _counts(known) and len(self._behind) < MAX_REPORTS:
            self._behind[source] = None
        return False

    def merge(self, reports: Iterable[Progress]) -> None:
        """Take in reports that are genuine."""
        for report in reports:
            if not self.news(report, b""):
                continue
            if report.id == self._me:
                self._merge_mine(report)
                continue
            if report.id not in self._reports:
                # One place is kept for the own entry.
                full = len(self._reports) - (self._me in self._reports) >= MAX_REPORTS - 1
                if full and not (self._lives(report.id) and self._make_room()):
                    self.refused += 1
                    continue
            self._behind.pop(report.id, None)
            self._write(report)

    def _make_room(self) -> bool:
        """Forget one of those who are not there, and what it did."""
        for peer in reversed(self._reports):
            if peer != self._me and not self._lives(peer):
                del self._reports[peer]
                return True
        return False

    def _merge_mine(self, report: Progress) -> None:
        mine = self.mine
        self._base = (
            report.steps if report.steps > mine.steps else self._base[0],
            report.samples if report.samples > mine.samples else self._base[1],
            report.rounds if report.rounds > mine.rounds else self._base[2],
        )
        self._clock = max(self._clock, report.clock)
        self._write_mine()

    def _write_mine(self) -> None:
        """Keep the own report. An unchanged one keeps its signature."""
        mine, before = self.mine, self._reports.get(self._me)
        if before is None or _counts(before) != _counts(mine):
            self._write(mine)

    def _write(self, report: Progress) -> None:
        self._furthest = max(self._furthest, report.clock)
        self._reports[report.id] = report
        self._reports.move_to_end(report.id, last=False)

    def page(self, limit: int, to: bytes = b"") -> tuple[Progress, ...]:
        """Up to `limit` reports to piggyback on a message to `to`.

        The own report is first, then that of `to` if its last word was behind what is known here, then those that
        changed last, in turn with all the others.
        """
        mine = self._reports.get(self._me)
        if mine is not None and mine.signature == UNSIGNED:
            mine = self._reports[self._me] = self._sign(mine)
        head = [] if mine is None or limit < 1 else [mine]
        owed = self._reports.get(to) if to in self._behind and len(head) < limit else None
        if owed is not None:
            self._behind.pop(to)
            head.append(owed)
        for peer in self._reports:
            if len(head) >= limit:
                break
            if peer != self._me and self._reports[peer] is not owed:
                head.append(self._reports[peer])
        for report in head:
            self._reports.move_to_end(report.id)
        return tuple(head)


def _counts(report: Progress) -> tuple[int, int, int, int]:
    return report.clock, report.steps, report.samples, report.rounds


def _ahead(report: Progress, known: Progress) -> bool:
    """Whether `report` is behind `known` in no field and ahead in one."""
    new, old = _counts(report), _counts(known)
    return new != old and all(after >= before for after, before in zip(new, old, strict=True))
