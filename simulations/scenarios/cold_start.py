"""Does a whole network that comes back after a power cut go on from its latest checkpoint?

    python -m simulations.scenarios.cold_start --seeds 200

All peers train, and each has a checkpoint of another age when all stop at one moment. They start again in random order
within `spread` seconds, over links that lose messages. The peer with the latest checkpoint should restore it, and all
others should fetch that state. With `--late`, the host with the latest checkpoint comes back long after the others. It
must follow them and keep its checkpoint. Every invariant of the simulator is checked too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from gossipdp.protocol.events import CheckpointAhead, Event, StateReady
from gossipdp.protocol.transfer.arrived import Origin
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions

__all__ = ["ColdStart", "run"]

LATE = 25.0
"""seconds by which a late host comes back after the others"""
AHEAD = 70.0
"""time of the power cut with a late host: its checkpoint must stay ahead of the others' progress meanwhile"""


@dataclass(frozen=True)
class ColdStart:
    """Result of one run. Hosts are numbers, clocks are steps of the network's clock."""

    seed: int
    peers: int
    loss: float
    latest: int
    """the host that held the latest checkpoint"""
    origins: dict[int, Origin] = field(default_factory=dict)
    """host -> how it got its model"""
    clocks: dict[int, int] = field(default_factory=dict)
    """host -> clock of the model it went on from"""
    saved: dict[int, int] = field(default_factory=dict)
    """host -> clock of its checkpoint before the restart"""
    ahead: dict[int, CheckpointAhead] = field(default_factory=dict)
    """host -> its report of a checkpoint later than the fetched model"""
    kept: dict[int, int] = field(default_factory=dict)
    """host -> clock of the later checkpoint that it pinned"""
    seconds: float = 0.0
    """virtual seconds from the last start until all hosts had the model"""

    @property
    def restored(self) -> list[int]:
        """Hosts that restored their checkpoint."""
        return sorted(host for host, origin in self.origins.items() if origin is Origin.RESTORED)


def run(
    seed: int,
    peers: int | None = None,
    *,
    loss: float | None = None,
    spread: float = 3.0,
    late: bool = False,
    lasts: float = 40.0,
) -> ColdStart:
    """Play one seed.

    Args:
        peers, loss: number of hosts and share of lost messages; drawn by default.
        spread: seconds within which the hosts come back.
        late: the host with the latest checkpoint comes back `LATE` seconds after the others.
        lasts: seconds until links are perfect again.

    Raises:
        AssertionError: an invariant is broken.
    """
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
    latest = _cut_power(cluster, random, late=late)
    outcome = ColdStart(seed, peers, loss, latest, saved={h.index: h.checkpoint.clock for h in hosts if h.checkpoint})
    ready_at: list[float] = []

    def listen(host: Host, event: Event) -> None:
        match event:
            case StateReady(origin, clock):
                outcome.origins[host.index], outcome.clocks[host.index] = origin, clock
                ready_at.append(network.now)
            case CheckpointAhead():
                outcome.ahead[host.index] = event

    cluster.listeners.append(listen)
    network.set_conditions(conditions)
    begun = network.now
    for host in hosts:
        after = LATE if late and host.index == latest else random.uniform(0.0, spread)
        network.at(begun + after, "start", None, partial(cluster.restart, host))
    network.run(begun + lasts + (LATE if late else 0.0))
    network.set_conditions(Conditions())
    network.run(network.now + 12.0)
    cluster.check_rest()
    outcome.kept.update({index: kept[-1].clock for index, kept in cluster.later_checkpoints.items()})
    return replace(outcome, seconds=max(ready_at) - begun - (LATE if late else spread))


def _cut_power(cluster: Cluster, random: Random, *, late: bool) -> int:
    """Form a network, save checkpoints at random times, stop all hosts at once.

    Returns:
        the host with the latest checkpoint.
    """
    network, hosts = cluster.network, cluster.network.hosts
    for host in hosts:
        after = 0.0 if host.index == 0 else random.uniform(0.0, 3.0)
        network.at(after, "start", None, partial(cluster.restart, host))
    network.run(8.0)
    cut, favourite = (AHEAD if late else 20.0), random.randrange(len(hosts))
    for host in hosts:
        at = cut - 0.1 if late and host.index == favourite else random.uniform(9.0, 19.9)
        network.at(at, "checkpoint", None, partial(cluster.save, host))
    network.run(cut)
    for host in hosts:
        cluster.kill_trainer(host)
        cluster.stop(host)
    saved = [host.checkpoint for host in hosts]
    assert all(saved), "a host had no model to save"
    order = [(c.clock, c.rounds, [-byte for byte in h.id]) for c, h in zip(saved, hosts, strict=True) if c is not None]
    return order.index(max(order))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.cold_start", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --seed on")
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
