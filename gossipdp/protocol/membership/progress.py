"""Progress of every peer: grow-only counters, gossiped. The furthest clock among them is the network's clock.

A state-based grow-only counter (Shapiro et al. 2011, "Conflict-free replicated data types") has one entry per peer,
written and signed by that peer alone. Of two reports of a peer, the one that is ahead in every field stands. So order,
loss and duplication of reports do not matter. A report that is ahead in one field and behind in another comes from a
restarted peer that does not know its earlier progress yet. It changes nothing, and the peer is told its former report.
A report also carries the peer's last losses. They decide nothing, and travel when the counts have grown.

The furthest peer leads, by its own steps. If it leaves, dies or stands still, the others may be far behind, and the
clock would stand until one of them has caught up. So a peer that trained on while the clock stood counts those steps
from the standing clock. Two rules keep that clock from running faster than the fastest peer. It must have stood, or the
best rounds of all peers would add up. And the peer must have known its value before those steps began. A late report of
many steps, as after a sleep of the daemon, counts at most twice the steps of the report before.

A member that lies about its own clock takes the network's clock ahead only as `clock_claims` says, and its signature
tells afterwards which member it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire.messages import LARGEST_LOSS, UNSIGNED, Member, Progress, State

__all__ = ["LARGEST", "MAX_REPORTS", "Own", "ProgressBoard"]

MAX_REPORTS = 16_384
"""peers with a report; past it, peers that are not live make room for live ones"""
LARGEST = (1 << 32) - (1 << 16)
"""largest clock in steps; a report beyond it is refused"""
MOST_COUNTED = 1 << 56
"""largest number of steps, or samples, of one peer"""
SOME: Final = 2
"""most steps counted from a standing clock, as a multiple of those of the report before"""
NO_MEMBERS: Final[Mapping[bytes, Member]] = MappingProxyType({})
_U63 = (1 << 63) - 1
_U32 = 0xFFFF_FFFF


class Own(NamedTuple):
    """This peer's own progress."""

    clock: int
    """own clock in steps, without steps counted from a standing clock"""
    rounds: int
    alone: int
    """rounds since the last exchange"""
    transfer: float
    """steps that a transfer is expected to take"""


class ProgressBoard:
    """The reports that one peer knows, its own included.

    A restarted peer counts from zero again, but other members remember its earlier lives. A report of this peer that
    exceeds its own comes from an earlier life. It becomes the base to which the present counts are added.

    Args:
        me: id of this peer.
        signer: signs its own report.
    """

    def __init__(self, me: bytes, signer: Signer) -> None:
        self._me, self._signer = me, signer
        self._reports: OrderedDict[bytes, Progress] = OrderedDict()
        self._behind: dict[bytes, None] = {}
        """peers whose own report was behind the one known here; they are told that one"""
        self._base = self._life = self._recovered = (0, 0, 0)
        self._clock = self._furthest = 0
        self._known = 0
        """network clock at the last `report`"""
        self._losses: tuple[float | None, float | None] = (None, None)
        self._made = 0
        """steps between the last two reports that had any"""
        self.refused = 0

    @property
    def mine(self) -> Progress:
        """The own report, earlier lives included."""
        counts = zip(self._base, self._life, self._recovered, strict=True)
        steps, samples, rounds = map(sum, counts)
        totals = (min(steps, MOST_COUNTED), min(samples, MOST_COUNTED), min(rounds, _U32))
        return Progress(self._me, self._clock, *totals, UNSIGNED, *self._losses)

    def of(self, peer: bytes) -> Progress | None:
        """The report of `peer`; None if there is none."""
        return self.mine if peer == self._me else self._reports.get(peer)

    def reports(self) -> list[Progress]:
        """All reports, the own one included once there is one."""
        return list(self._reports.values())

    def clock(self) -> int:
        """The network's clock in steps: the furthest believed clock of any peer."""
        return self._furthest

    def steps(self) -> int:
        """Sum of the steps of all peers, ever."""
        return min(_U63, sum(report.steps for report in self._reports.values()))

    def samples(self) -> int:
        """Sum of the samples of all peers, ever."""
        return min(_U63, sum(report.samples for report in self._reports.values()))

    def report(self, *, clock: int, steps: int, samples: int, rounds: int) -> None:
        """Report this peer's progress.

        If the network's clock has stood since the last report, the steps since then are counted from it.

        Args:
            clock: the clock adopted at the join, plus own steps since.
            steps: own steps since this process started.
            samples: own samples since then.
            rounds: own rounds since then.
        """
        made = max(0, steps - self._life[0])
        stood = made > 0 and self._furthest == self._known
        counted = min(made, SOME * self._made) if self._made else made
        counts = (self._clock + made, self._furthest + counted if stood else 0)
        self._clock, self._made = min(max(clock, *counts), LARGEST), made or self._made
        before, now = self._life, (steps, samples, rounds)
        self._life = (max(before[0], now[0]), max(before[1], now[1]), max(before[2], now[2]))
        self._write_mine()
        self._known = self._furthest

    def adopt(self, clock: int) -> None:
        """Report at least this clock, in steps, without steps of this peer's own."""
        self._clock = max(self._clock, clock)
        self._write_mine()

    def note_losses(self, loss: float, eval_loss: float) -> None:
        """Put these losses into the next report of larger counts. NaN and what no field holds count as unknown."""
        known = (each if abs(each) <= LARGEST_LOSS else None for each in (loss, eval_loss))
        self._losses = (next(known), next(known))

    def recover(self, steps: int, samples: int) -> None:
        """Add the progress that a live training process made in an earlier life of this peer and that was not reported.

        The clock does not count these steps: the next `report` gets its clock from that process.
        """
        self._recovered = self._recovered[0] + steps, self._recovered[1] + samples, 0

    def news(self, report: Progress, source: bytes) -> bool:
        """Whether `report`, told by `source`, would change anything. If not, its signature need not be checked."""
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
        """Merge reports whose clocks are believed at once, such as the own one of an earlier start."""
        for report in reports:
            if self.take(report):
                self.believe(report.clock)

    def take(self, report: Progress, members: Mapping[bytes, Member] = NO_MEMBERS) -> bool:
        """Merge a report whose signature has been checked.

        Args:
            members: the records that this peer knows. They tell which peers are live, if there is no more room.

        Returns:
            Whether it is another peer's, and claims a later clock than the network's.
        """
        if not self.news(report, b""):
            return False
        if report.id == self._me:
            self._merge_mine(report)
            return False
        if report.id not in self._reports:
            # One place is kept for the own report.
            full = len(self._reports) - (self._me in self._reports) >= MAX_REPORTS - 1
            if full and not (_lives(report.id, members) and self._make_room(members)):
                self.refused += 1
                return False
        self._behind.pop(report.id, None)
        self._write(report)
        return report.clock > self._furthest

    def believe(self, clock: int) -> None:
        """The network's clock is at `clock` steps at least."""
        self._furthest = max(self._furthest, clock)

    def _make_room(self, members: Mapping[bytes, Member]) -> bool:
        """Forget the report of a peer that is not live. Returns whether there was one."""
        for peer in reversed(self._reports):
            if peer != self._me and not _lives(peer, members):
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
        """Write the own report. An unchanged one keeps its signature."""
        mine, before = self.mine, self._reports.get(self._me)
        if before is None or _counts(before) != _counts(mine):
            self._write(mine)
            self.believe(mine.clock)

    def _write(self, report: Progress) -> None:
        self._reports[report.id] = report
        self._reports.move_to_end(report.id, last=False)

    def page(self, limit: int, to: bytes = b"") -> tuple[Progress, ...]:
        """Up to `limit` reports to piggyback on a message to `to`.

        The own report is first, then that of `to` if its last report was behind, then those that changed last, in turn
        with all others.
        """
        mine = self._reports.get(self._me)
        if mine is not None and mine.signature == UNSIGNED:
            mine = self._reports[self._me] = self._signer.sign_progress(mine)
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


def _lives(peer: bytes, members: Mapping[bytes, Member]) -> bool:
    member = members.get(peer)
    return member is not None and member.state in (State.ALIVE, State.SUSPECT)


def _counts(report: Progress) -> tuple[int, int, int, int]:
    return report.clock, report.steps, report.samples, report.rounds


def _ahead(report: Progress, known: Progress) -> bool:
    """Whether `report` is behind `known` in no field and ahead in one."""
    new, old = _counts(report), _counts(known)
    return new != old and all(after >= before for after, before in zip(new, old, strict=True))
