"""T1's networks with peers that cannot be dialled: the same plans and invariants.

    python -m simulations.campaigns.outbound_only --first 0 --seeds 300 --dialled half two
    python -m simulations.campaigns.outbound_only --first 1191 --seeds 1 --dialled one two

Half of the peers can be dialled, or only the first two, which newcomers dial, or only the first. All checks of
`cluster` must hold, and two undialable peers must never exchange.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from typing import Final

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.events import Event, ExchangeEnded, MemberChanged, OfferRefused
from gossipdp.protocol.membership.config import PRESETS
from gossipdp.protocol.pairwise.matching import guests_per_round
from gossipdp.protocol.wire.messages import State
from simulations.simulator.agreement import FALLS, Agreement
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host

__all__ = ["DIALLED", "Behind", "main", "play"]

DIALLED: Final[Mapping[str, Callable[[int], int]]] = {
    "half": lambda peers: peers - peers // 2,
    "two": lambda peers: 2,
    "one": lambda peers: 1,
}
"""name -> how many of n peers can be dialled"""
RECORD: Final = 115.0
"""approximate bytes of a member's record"""


class Behind(Cluster):
    """A cluster whose last `outbound` peers cannot be dialled. It keeps what peers report of each other."""

    def __init__(self, seed: int, plan: Plan, outbound: int) -> None:
        super().__init__(seed, plan, outbound=outbound)
        self.outbound = self.network.hosts[-outbound:]
        self.failed: list[tuple[float, str, str, str]] = []
        """(time, observer, member, state) of each suspicion and failure"""
        self.silent: list[tuple[str, str]] = []
        """(offering peer, partner) of each offer without an answer"""
        self.matched: Counter[frozenset[bytes]] = Counter()
        """pair of ids -> sides of exchanges that mixed something"""

    def _heard(self, host: Host, event: Event) -> None:
        super()._heard(host, event)
        match event:
            case MemberChanged(member) if member.state in (State.SUSPECT, State.FAILED):
                self.failed.append((self.network.now, host.name, member.name, member.state.name))
            case OfferRefused(partner, Objection.SILENT):
                self.silent.append((host.name, partner[:4].hex()))
            case ExchangeEnded(partner=partner, chunks=chunks) if chunks:
                self.matched[frozenset((host.id, partner))] += 1

    def _seed_that_must_run(self, drawn: int) -> int:
        return drawn if len(self.network.hosts) - len(self.outbound) > 1 else 0

    def _check_agreement(self, seen: Agreement) -> None:
        """Like the base class, unless less than a quarter of the peers can be dialled.

        Then some of the others meet no partner for most of the faults, and end far from the rest. Without training,
        clipping moves them back by ever shorter steps. Each of 63 guests of one dialable peer has an exchange in about
        a third of the rounds, which halves its squared distance.
        """
        direct, up = self._direct(), [host for host in self.network.hosts if host.peer is not None]
        if len(direct) >= len(up) / 4:
            super()._check_agreement(seen)
            return
        start, worst, left, rounds, _, noise = seen
        assert left <= 0.1 * start + noise, f"I4: squared distance {start:.3g} -> {left:.3g} in {rounds:.0f} rounds"
        each = len(direct) * self._a_round(up) * rounds / 3 / len(up)
        falls = min(FALLS, 2.0 ** (each / 2))
        assert worst[1] <= worst[0] / falls + noise, f"I4: squared distance does not fall geometrically: {worst}"

    def _least_exchange_ends(self, made: Mapping[int, int]) -> float:
        """Exchanges go through the dialable peers, each of which makes a limited number per round. Asks for half of
        that, or for what the base class wants."""
        direct, up = self._direct(), [host for host in self.network.hosts if host.peer is not None]
        return min(super()._least_exchange_ends(made), self._a_round(up) * sum(made[host.index] for host in direct))

    @staticmethod
    def _a_round(up: Sequence[Host]) -> int:
        """Most exchanges of a dialable peer in one round."""
        return 1 + guests_per_round([host.running.view.me for host in up])[0]

    def _check_views(self) -> None:
        """The undialable peers know all members from the few dialable ones, whose traffic has a budget. So they get
        more time."""
        plan, outbound, preset = self.plan, len(self.outbound), PRESETS[self.plan.preset]
        told = RECORD * plan.peers * outbound / (plan.peers - outbound) / preset.bulk_rate
        self.network.run(self.network.now + told + preset.push_pull_interval)
        super()._check_views()

    def _direct(self) -> list[Host]:
        return [host for host in self.network.hosts if host.peer is not None and not host.outbound]

    def pairs(self, left: Sequence[Host], right: Sequence[Host]) -> list[int]:
        return [self.matched[frozenset((a.id, b.id))] for a in left for b in right if a is not b]


def play(seed: int, dialled: str) -> int:
    """Play one network of T1 with its faults.

    Returns:
        the number of exchanges; 0 if no peer can be undialable.

    Raises:
        AssertionError: an invariant broke, or two undialable peers exchanged.
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
    assert sum(cluster.pairs(cluster.outbound, cluster.outbound)) == 0, "two undialable peers exchanged"
    assert sum(cluster.matched.values()) > 0, "no peers exchanged"
    return sum(cluster.matched.values())


def _told(seed: int, dialled: str) -> tuple[int, str]:
    """Number of exchanges, and what broke."""
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
    parser.add_argument("--dialled", nargs="+", choices=DIALLED, default=list(DIALLED), help="number of dialable peers")
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
