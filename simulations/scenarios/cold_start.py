"""Does a whole network that comes back after a power cut go on from its latest checkpoint?

    python -m simulations.scenarios.cold_start --seeds 200

All peers train; each has a checkpoint of another age when all are cut off at one moment. They start again in random
order within `spread` seconds, over links that lose messages. Whoever holds the latest checkpoint should restore it, and
all others fetch that. With `--late`, the host that holds the latest comes back long after the others: it must follow
them, and keep what it holds. Every invariant of `simulations.simulator.invariants` is checked besides. Nothing of the
protocol may stand here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from gossipdp.protocol.events import CheckpointAhead, Event, StateReady
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions

__all__ = ["ColdStart", "run"]

LATE = 25.0
"""seconds after the others that a late host comes back"""
AHEAD = 70.0
"""when all are cut off, if the one that comes late is to be ahead of what the others do meanwhile"""


@dataclass(frozen=True)
class ColdStart:
    """What one run came to."""

    seed: int
    peers: int
    loss: float
    latest: int
    """the host that held the latest checkpoint"""
    origins: dict[int, str] = field(default_factory=dict)
    """how each host came by its model"""
    clocks: dict[int, int] = field(default_factory=dict)
    """steps of the network's clock each host went on from"""
    saved: dict[int, int] = field(default_factory=dict)
    """steps of the network's clock of each host's checkpoint"""
    ahead: dict[int, CheckpointAhead] = field(default_factory=dict)
    """what was said of checkpoints later than what was fetched"""
    kept: dict[int, int] = field(default_factory=dict)
    """clocks of the checkpoints that were put aside, by host"""
    seconds: float = 0.0
    """from the last start until everybody had the model"""

    @property
    def restored(self) -> list[int]:
        return sorted(host for host, origin in self.origins.items() if origin == "restored")


def run(
    seed: int,
    peers: int | None = None,
    *,
    loss: float | None = None,
    spread: float = 3.0,
    late: bool = False,
    lasts: float = 40.0,
) -> ColdStart:
    """Raises AssertionError when an invariant is broken."""
    random = Random(f"cold start/{seed}")
    peers = peers or random.choice((2, 3, 4, 5, 8, 12))
    loss = random.choice((0.0, 0.1, 0.3)) if loss is None else loss
    conditions = Conditions(
        latency=random.choice((0.002, 0.02, 0.1)),
        jitter=random.choice((0.2, 2.0)),
        loss=loss,
        duplicate=random.choice((0.0, 0.1)),
        reorder=random.choice((0.0, 0.2)),
    )
    cluster = Cluster(seed, Plan(peers=peers, size=8192 + 300, conditions=conditions, every=4, window=2))
    network, hosts = cluster.network, cluster.network.hosts
    for host in hosts:
        after = 0.0 if host.index == 0 else random.uniform(0.0, 3.0)
        network.at(after, "start", None, partial(cluster.restart, host))
    network.run(8.0)
    cut, favourite = (AHEAD if late else 20.0), random.randrange(peers)
    for host in hosts:
        at = cut - 0.1 if late and host.index == favourite else random.uniform(9.0, 19.9)
        network.at(at, "checkpoint", None, partial(cluster.save, host))
    network.run(cut)
    for host in hosts:
        cluster.kill_trainer(host)
        cluster.stop(host)
    held = [host.checkpoint for host in hosts]
    assert all(held), "a host had no model when it was to save one"
    order = [(c.clock, c.rounds, [-byte for byte in h.id]) for c, h in zip(held, hosts, strict=True) if c is not None]
    latest = order.index(max(order))
    outcome = ColdStart(seed, peers, loss, latest, saved={h.index: h.checkpoint.clock for h in hosts if h.checkpoint})
    ready_at: list[float] = []

    def heard(host: Host, event: Event) -> None:
        match event:
            case StateReady(origin, clock):
                outcome.origins[host.index], outcome.clocks[host.index] = origin, clock
                ready_at.append(network.now)
            case CheckpointAhead():
                outcome.ahead[host.index] = event

    cluster.listeners.append(heard)
    network.conditions = conditions
    begun = network.now
    for host in hosts:
        after = LATE if late and host.index == latest else random.uniform(0.0, spread)
        network.at(begun + after, "start", None, partial(cluster.restart, host))
    network.run(begun + lasts + (LATE if late else 0.0))
    network.conditions = Conditions()
    network.run(network.now + 12.0)
    cluster.check_rest()
    outcome.kept.update({index: kept[-1].clock for index, kept in cluster.kept.items()})
    return ColdStart(**{**vars(outcome), "seconds": max(ready_at) - begun - (LATE if late else spread)})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.cold_start", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    parser.add_argument("--peers", type=int)
    parser.add_argument("--loss", type=float)
    parser.add_argument("--spread", type=float, default=3.0, help="seconds in which the peers come back")
    parser.add_argument("--late", action="store_true", help="the latest checkpoint comes back long after the others")
    options = parser.parse_args(arguments)
    print(f"{'seed':>5} {'peers':>6} {'loss':>5} {'latest':>7} {'restored':>12} {'kept':>10} {'seconds':>8}")
    missed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        outcome = run(seed, options.peers, loss=options.loss, spread=options.spread, late=options.late)
        missed += (outcome.kept == {}) if options.late else outcome.restored != [outcome.latest]
        restored = ",".join(f"p{host}" for host in outcome.restored)
        kept = ",".join(f"p{host}" for host in outcome.kept)
        print(
            f"{seed:5d} {outcome.peers:6d} {outcome.loss:5.1f} {f'p{outcome.latest}':>7} {restored:>12} {kept:>10} "
            f"{outcome.seconds:8.1f}",
            flush=True,
        )
    print(f"missed: {missed} of {options.seeds}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
