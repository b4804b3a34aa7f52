"""Networks of T1 in which some peers cannot be dialled: the same plans and invariants, and links that only one opens.

    python -m simulations.campaigns.outbound_only --first 0 --seeds 300 --dialled half two
    python -m simulations.campaigns.outbound_only --first 1191 --seeds 1 --dialled one two

Of each network half of the peers can be dialled, or only the first two, whom newcomers dial, or only the first. All
that `cluster` checks must hold, and no two of the others may ever exchange. How a peer keeps its links is not for here.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from typing import Final

from gossipdp.protocol.events import Event, ExchangeEnded, MemberChanged, OfferRefused
from gossipdp.protocol.membership.membership import PRESETS
from gossipdp.protocol.pairwise.matching import guests_per_round
from gossipdp.protocol.wire.messages import State
from simulations.simulator.cluster import FALLS, NOISE, Cluster, Plan
from simulations.simulator.host import Host

__all__ = ["DIALLED", "Behind", "main", "play"]

DIALLED: Final[Mapping[str, Callable[[int], int]]] = {
    "half": lambda peers: peers - peers // 2,
    "two": lambda peers: 2,
    "one": lambda peers: 1,
}
"""how many of so many peers can be dialled, by name"""
RECORD: Final = 115.0
"""bytes that tell of a member, about"""


class Behind(Cluster):
    """A cluster whose last `outbound` peers cannot be dialled; what each peer's events said is kept."""

    def __init__(self, seed: int, plan: Plan, outbound: int) -> None:
        super().__init__(seed, plan)
        self.outbound = self.network.hosts[-outbound:]
        for host in self.outbound:
            host.outbound = True
        self.failed: list[tuple[float, str, str, str]] = []
        """when, who said so, of whom, and what"""
        self.silent: list[tuple[str, str]] = []
        """who offered, and to whom"""
        self.matched: Counter[frozenset[bytes]] = Counter()
        """sides of exchanges that mixed something, by pair"""

    def _heard(self, host: Host, event: Event) -> None:
        super()._heard(host, event)
        match event:
            case MemberChanged(member) if member.state in (State.SUSPECT, State.FAILED):
                self.failed.append((self.network.now, host.name, member.name, member.state.name))
            case OfferRefused(partner, "silent"):
                self.silent.append((host.name, partner[:4].hex()))
            case ExchangeEnded(partner, chunks=chunks) if chunks:
                self.matched[frozenset((host.id, partner))] += 1

    def _dialled(self, drawn: int) -> int:
        return drawn if len(self.network.hosts) - len(self.outbound) > 1 else 0

    def _check_agreement(
        self, start: float, worst: Sequence[float], left: float, rounds: float, met: Sequence[bool]
    ) -> None:
        """Of many that have only one or two to meet, some meet nobody for most of the faults. Those are far from all
        others by the end, and where nobody trains clipping lets them come nearer by ever shorter steps. Of 63 guests of
        one each has hardly more than an exchange in a third of the rounds: that halves their squared distance."""
        direct, up = self._direct(), [host for host in self.network.hosts if host.peer is not None]
        if len(direct) >= len(up) / 4:
            return super()._check_agreement(start, worst, left, rounds, met)
        assert left <= 0.1 * start + NOISE, f"I4: squared distance {start:.3g} -> {left:.3g} in {rounds:.0f} rounds"
        each = len(direct) * self._a_round(up) * rounds / 3 / len(up)
        falls = min(FALLS, 2.0 ** (each / 2))
        assert worst[1] <= worst[0] / falls + NOISE, f"I4: squared distance does not fall geometrically: {worst}"

    def _least_ends(self, made: Mapping[int, int]) -> float:
        """All exchanges are with those who can be dialled, who make so many in a round of their own and no more: half
        of that, or what is wanted of everybody."""
        direct, up = self._direct(), [host for host in self.network.hosts if host.peer is not None]
        return min(super()._least_ends(made), self._a_round(up) * sum(made[host.index] for host in direct))

    @staticmethod
    def _a_round(up: Sequence[Host]) -> int:
        """Exchanges that one who can be dialled has in it, at the most."""
        return 1 + guests_per_round([host.running.membership.me for host in up])[0]

    def _check_views(self) -> None:
        """All that the others know they have from those few, who say no more than their budgets allow, and are asked as
        seldom as anybody."""
        plan, outbound, preset = self.plan, len(self.outbound), PRESETS[self.plan.preset]
        told = RECORD * plan.peers * outbound / (plan.peers - outbound) / preset.bulk_rate
        self.network.run(self.network.now + told + preset.push_pull_interval)
        super()._check_views()

    def _direct(self) -> list[Host]:
        return [host for host in self.network.hosts if host.peer is not None and not host.outbound]

    def pairs(self, left: Sequence[Host], right: Sequence[Host]) -> list[int]:
        return [self.matched[frozenset((a.id, b.id))] for a in left for b in right if a is not b]


def play(seed: int, dialled: str) -> int:
    """One network of T1 with its faults; the exchanges there were, 0 if it has nobody who could be behind a NAT.

    Raises:
        AssertionError: an invariant is broken, or two have exchanged that cannot.
    """
    plan = Plan.draw(seed)
    outbound = plan.peers - DIALLED[dialled](plan.peers)
    if outbound < 1:
        return 0
    cluster = Behind(seed, plan, outbound)
    try:
        cluster.run()
    except Exception as error:
        when = f"{plan.peers} peers, {outbound} of them behind a NAT, at {cluster.network.now:.3f} s"
        raise AssertionError(f"{type(error).__name__}: {error}\n  {when}") from error
    assert sum(cluster.pairs(cluster.outbound, cluster.outbound)) == 0, "two exchanged who cannot be dialled"
    assert sum(cluster.matched.values()) > 0, "nobody exchanged"
    return sum(cluster.matched.values())


def _told(seed: int, dialled: str) -> tuple[int, str]:
    """Exchanges, and what was violated."""
    try:
        return play(seed, dialled), ""
    except AssertionError as error:
        return 0, str(error)


def _played(seeds: Sequence[int], dialled: str, processes: int) -> Iterator[tuple[int, str]]:
    if processes == 1:
        yield from map(partial(_told, dialled=dialled), seeds)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(_told, dialled=dialled), seeds, chunksize=4)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--dialled", nargs="+", choices=DIALLED, default=list(DIALLED), help="how many can be dialled")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    failed = 0
    for dialled in options.dialled:
        seeds = range(options.first, options.first + options.seeds)
        networks = exchanges = violations = 0
        for seed, (made, told) in zip(seeds, _played(seeds, dialled, options.jobs), strict=True):
            networks, exchanges = networks + bool(made or told), exchanges + made
            if told:
                violations += 1
                replay = f"python -m simulations.campaigns.outbound_only --first {seed} --seeds 1 --dialled {dialled}"
                print(f"seed {seed} FAILED: {told}\n  replay: {replay}", flush=True)
        print(f"{dialled:5} {networks:6} networks {exchanges:9,} exchanges {violations:4} failed", flush=True)
        failed += violations
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
