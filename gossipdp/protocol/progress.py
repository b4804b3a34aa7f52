"""How far every peer has come: grow-only counters, gossiped and merged by maximum. Their clock is the network's.

A state-based grow-only counter (Shapiro et al. 2011, "Conflict-free replicated data types"): one entry a peer, written
by that peer alone, each field merged by maximum, so order, loss and duplication of reports do not matter.

The furthest leads, by its own steps. If it leaves, dies or stands still, the others may be far behind it, and the clock
would stand until one of them has come as far. So who has trained on while the clock stood still counts those steps from
where it stood. It does so only of a clock that stood, for else the clock would add the best of everybody's rounds, and
run ahead of all; and only from a value known before those steps began, so it never runs faster than the fastest does.
Of many steps reported at once, as when a daemon has slept and its training has not, most were made before that: no more
are counted on than twice those of the report before.

A member that lies about progress is believed, and nobody can say afterwards who it was, for reports travel unsigned.
With one word it takes everybody's clock ahead, for good: what follows the clock, as learning rates do, comes that much
early, and epochs are closed before their increments have come. From there others count on, as from any clock that
stands: what they claim is what `clock` says already, and their own steps. At LARGEST no epoch begins any more, and
nothing is published. A second report would prove nothing, as a liar can name two peers; nor is there a most that a
clock may gain in some time, for a peer just started, or cut off for long, knows none of it.

Nothing here knows what a step is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from gossipdp.protocol.messages import Progress

__all__ = ["LARGEST", "MAX_REPORTS", "ProgressBoard"]

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


class ProgressBoard:
    """The reports one peer knows, its own among them.

    A restarted peer counts from zero again, but the others remember its earlier lives. A merged report on oneself that
    exceeds one's own can only come from an earlier life: it becomes the base that the present one is counted on.

    Args:
        lives: is that member there? Only asked when there is no more room.
    """

    def __init__(self, me: bytes, lives: Callable[[bytes], bool] = lambda peer: True) -> None:
        self._me, self._lives = me, lives
        self._reports: OrderedDict[bytes, Progress] = OrderedDict()
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
        self._write(self.mine)
        self._known = self._furthest

    def recover(self, steps: int, samples: int) -> None:
        """A live training process made these in an earlier life, which may have reported none of them.

        The clock does not count them: the next `report` has it from that process.
        """
        self._recovered = self._recovered[0] + steps, self._recovered[1] + samples, 0

    def merge(self, reports: Iterable[Progress]) -> None:
        """Reports that came from a peer, or from this peer's own store."""
        for report in reports:
            if report.clock > LARGEST or max(report.steps, report.samples) > MOST_COUNTED:
                self.refused += 1
                continue
            if report.id == self._me:
                self._merge_mine(report)
                continue
            known = self._reports.get(report.id)
            if report == known:
                continue
            if known is None:
                # One place is kept for the own entry.
                full = len(self._reports) - (self._me in self._reports) >= MAX_REPORTS - 1
                if full and not (self._lives(report.id) and self._make_room()):
                    self.refused += 1
                    continue
                self._write(report)
            else:
                merged = Progress(
                    report.id,
                    max(known.clock, report.clock),
                    max(known.steps, report.steps),
                    max(known.samples, report.samples),
                    max(known.rounds, report.rounds),
                )
                if merged != known:
                    self._write(merged)

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
        if self.mine != mine:
            self._write(self.mine)

    def _write(self, report: Progress) -> None:
        self._furthest = max(self._furthest, report.clock)
        self._reports[report.id] = report
        self._reports.move_to_end(report.id, last=False)

    def page(self, limit: int) -> tuple[Progress, ...]:
        """Up to `limit` reports to piggyback: the own one, then those changed last, in turn with all the others."""
        mine = self._reports.get(self._me)
        head = [] if mine is None or limit < 1 else [mine]
        for peer in self._reports:
            if len(head) >= limit:
                break
            if peer != self._me:
                head.append(self._reports[peer])
        for report in head:
            self._reports.move_to_end(report.id)
        return tuple(head)
