"""Does membership carry a thousand members? A join storm, then quiet, with every byte counted (safety.md, T21).

    python -m simulations.scenarios.scale --peers 1000

Three seeds are there; all others start within five seconds and know them. Measured: how long after the last start
everybody knows everybody alive, the control traffic from the first start until then and of a quiet minute, per peer and
of the busiest one, in bytes as `wire` encodes them and by what was said, and the events the machines handle in a second
of CPU time. Membership alone, but all of it: probes, gossip, progress reports, and views compared. The exit status is 1
if a seed did not converge, or a peer's traffic was above 8 kB/s on average.

N members hold N^2 records between them, and each must be told of all others. A record has 130 bytes, 64 of them its
signature: a thousand members cannot know each other after 30 seconds for less than 4.3 kB a second, nor 10,000 for less
than 43. Those keep to the budget and take longer. Nothing of the
protocol may stand here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gossipdp.protocol.events import Event, MemberChanged
from gossipdp.protocol.membership.membership import PRESETS
from gossipdp.protocol.membership.view import MAX_MEMBERS
from gossipdp.protocol.wire.messages import State
from simulations.scenarios.members import Host, Members

__all__ = ["CONTROL", "Scale", "run"]

CONTROL = 8000.0
"""bytes a second of control traffic a peer may send"""
SEEDS = 3
STORM = 30.0
"""seconds after the last start in which all should converge"""


@dataclass(frozen=True)
class Scale:
    """What one run came to. Traffic in bytes a second that a peer sends."""

    seed: int
    peers: int
    preset: str
    converged: float | None
    """virtual seconds from the last start until everybody knows everybody alive; None if that did not happen"""
    storm: float
    """from the first start until all had converged, or until `within` after the last; mean over the peers"""
    storm_busiest: float
    quiet: float
    quiet_busiest: float
    kinds: dict[str, float]
    """of the storm's traffic, what each peer spent on which messages"""
    doubts: int
    """times that somebody was suspected or failed; nobody had died"""
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
        within: seconds after the last start for which convergence is waited for.
        settling: seconds after the storm before the quiet time is measured: anti-entropy becomes rarer by and by.
        quiet: seconds measured.
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
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="lan")
    parser.add_argument("--within", type=float, default=STORM, help="seconds in which all must converge (%(default)s)")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds of quiet, after twice as many (%(default)s)")
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
