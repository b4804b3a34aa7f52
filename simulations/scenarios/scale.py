"""Does membership carry a thousand members? A join storm, then a quiet minute, with every byte counted (campaign T21).

    python -m simulations.scenarios.scale --peers 1000

Three seeds run. All others start within five seconds and know the seeds. Measured are the time until all members know
all others, the control traffic of a peer during the storm and in the quiet minute, and the events that the machines
handle in a second of CPU time. Traffic is counted by kind, in encoded bytes. Only membership runs, but all of it:
probes, gossip, progress reports and comparing views. The exit status is 1 if a seed did not converge, or if a peer sent
more than 8 kB/s on average.

N members hold N^2 records, and each member must receive a record of every other. A record has 130 bytes, 64 of them its
signature. So a thousand members need at least 4.3 kB/s each to converge in 30 seconds, and 10,000 need 43 kB/s. Larger
networks keep to the budget and take longer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gossipdp.protocol.events import Event, MemberChanged
from gossipdp.protocol.membership.config import PRESETS
from gossipdp.protocol.membership.view import MAX_MEMBERS
from gossipdp.protocol.wire.messages import State
from simulations.scenarios.members import Host, Members

__all__ = ["CONTROL", "Scale", "run"]

CONTROL = 8000.0
"""bytes per second of control traffic that a peer may send"""
SEEDS = 3
STORM = 30.0
"""seconds after the last start within which all should converge"""


@dataclass(frozen=True)
class Scale:
    """Result of one run. Traffic in bytes per second that a peer sends."""

    seed: int
    peers: int
    preset: str
    converged: float | None
    """virtual seconds from the last start until all members know all others alive; None if they never did"""
    storm: float
    """mean traffic from the first start until all converged, or until `within` seconds after the last start"""
    storm_busiest: float
    """the same of the busiest peer"""
    quiet: float
    quiet_busiest: float
    kinds: dict[str, float]
    """traffic of the storm by kind of message"""
    doubts: int
    """times that a member was suspected or failed; no member died"""
    events: int
    cpu: float
    """seconds"""

    @property
    def rate(self) -> float:
        """Events handled in a second of CPU time."""
        return self.events / self.cpu


def run(
    seed: int,
    peers: int = 1000,
    preset: str = "lan",
    *,
    joining: float = 5.0,
    within: float = STORM,
    settling: float = 120.0,
    quiet: float = 60.0,
    latency: float = 0.02,
) -> Scale:
    """Play one seed.

    Args:
        joining: seconds within which all start.
        within: longest wait in seconds for convergence after the last start.
        settling: seconds between storm and quiet time, in which anti-entropy becomes rarer.
        quiet: seconds of the quiet time.
        latency: seconds one way.
    """
    began = time.process_time()
    known = doubts = 0

    def listen(host: Host, event: Event) -> None:
        nonlocal known, doubts
        if isinstance(event, MemberChanged):
            alive = event.member.state == State.ALIVE
            known += alive - (event.before == State.ALIVE)
            doubts += not alive

    network = Members(seed, PRESETS[preset], peers, latency=latency, listen=listen)
    starts = network.random("starts")
    for host in network.hosts:
        at = 0.0 if host.index < SEEDS else starts.uniform(0.0, joining)
        network.at(at, partial(network.start, host, network.hosts[:SEEDS]))
    network.run(joining)
    while network.now < joining + within and known < peers * (peers - 1):
        network.run(network.now + 0.1)
    converged = network.now - joining if known == peers * (peers - 1) else None
    storm = [host.sent / network.now for host in network.hosts]
    kinds = {kind: size / network.now / peers for kind, size in sorted(network.traffic.items())}
    network.run(network.now + settling)
    before = [host.sent for host in network.hosts]
    network.run(network.now + quiet)
    calm = [(host.sent - sent) / max(quiet, 1e-9) for host, sent in zip(network.hosts, before, strict=True)]
    return Scale(
        seed,
        peers,
        preset,
        converged,
        sum(storm) / peers,
        max(storm),
        sum(calm) / peers,
        max(calm),
        kinds,
        doubts,
        network.events,
        time.process_time() - began,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.scale", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --seed on")
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="lan")
    parser.add_argument("--within", type=float, default=STORM, help="seconds until all must know all (%(default)s)")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds of the quiet time (%(default)s)")
    options = parser.parse_args(arguments)
    if options.peers > MAX_MEMBERS:
        parser.error(f"a member knows at most {MAX_MEMBERS} members, so {options.peers} cannot converge")
    print(f"{'seed':>5} {'peers':>6} {'converged':>10} {'storm kB/s':>11} {'busiest':>8} {'quiet kB/s':>11} "
          f"{'busiest':>8} {'doubts':>7} {'events':>9} {'events/s':>9} {'CPU s':>7}")  # fmt: skip
    missed = False
    for seed in range(options.seed, options.seed + options.seeds):
        outcome = run(
            seed,
            options.peers,
            options.preset,
            within=options.within,
            settling=2.0 * options.quiet,
            quiet=options.quiet,
        )
        dear = max(outcome.storm, outcome.quiet) > CONTROL
        missed = missed or dear or outcome.converged is None
        when = "never" if outcome.converged is None else f"{outcome.converged:.1f} s"
        print(
            f"{seed:5d} {outcome.peers:6d} {when:>10} {outcome.storm / 1e3:11.2f} {outcome.storm_busiest / 1e3:8.1f} "
            f"{outcome.quiet / 1e3:11.2f} {outcome.quiet_busiest / 1e3:8.1f} {outcome.doubts:7d} {outcome.events:9d} "
            f"{outcome.rate:9.0f} {outcome.cpu:7.1f}"
        )
        parts = ", ".join(f"{kind} {rate / 1e3:.2f}" for kind, rate in outcome.kinds.items())
        print(f"      of the storm's kB/s: {parts}{f'; more than {CONTROL / 1e3:g} kB/s' * dear}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
