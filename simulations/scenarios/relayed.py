"""Do a few relays carry a network of hidden peers? Whole peers in virtual time, most of which nobody can dial.

    python -m simulations.scenarios.relayed --peers 1000 --hidden 0.8 --relays 0.05

The first hosts are relays and the last ones are hidden; all train. They stand in four regions, whose round trips are
short within a region and long between two. All start within 80 s. Each relay carries exchanges within a budget,
the pairs in turn. Its own exchanges, and all control messages, do not wait for it. The budget is scaled with the
model: 960 kB a round for 16,384 parameters are about the ratio of 400 Mbit/s to a billion parameters and rounds of 20
minutes. Measured in the last six rounds, all but the last two figures:

    control     bytes a second that a peer sends on control lanes, and with what a relay carries there
    a round     exchanges of a hidden peer in a round, and of one that can be dialled
    peers       that a relay carries to
    data        bytes that a relay carries on data lanes, as a share of its budget
    offers      of exchanges, in a second, that a relay carries
    first       longest time to a peer's first exchange, in rounds, from the start of its training on
    left out    longest time without an exchange of any peer, in rounds, that begins when all have started
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from gossipdp.protocol import presets
from gossipdp.protocol.events import Event, ExchangeEnded, SessionOpened
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.messages import Lane
from simulations.check import Check
from simulations.simulator.conditions import Conditions
from simulations.simulator.host import Host
from simulations.simulator.network import Network
from simulations.simulator.settings import peer_config
from simulations.simulator.trainer import Trainer, TrainerConfig

__all__ = ["BUDGET", "BUSIEST", "Outcome", "Relayed", "Spread", "play"]

EVERY: Final = 10
ROUND: Final = 60.0
"""seconds"""
SIZE: Final = 16_384
BUDGET: Final = 960_000.0
"""bytes a round"""
SEEDS: Final = 3
JOINING: Final = 80.0
"""seconds within which all start"""
SETTLING: Final = 60.0
"""seconds from then to the measured rounds"""
ROUNDS: Final = 6
BUSIEST: Final = 2.0
"""what the busiest relay may carry, as a multiple of the mean of all relays"""
LEFT_OUT: Final = 3.0
"""rounds that any peer may be without an exchange"""
REGIONS: Final = 4
NEAR: Final = 0.01
"""seconds one way within a region"""
FAR: Final = 0.04
"""the same between two regions"""


@dataclass(frozen=True)
class Spread:
    """A figure of several hosts."""

    mean: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(float(np.mean(values)), float(np.max(values))) if len(values) else cls(0.0, 0.0)

    @property
    def ratio(self) -> float:
        """The busiest, as a multiple of the mean."""
        return self.most / self.mean if self.mean else 1.0


@dataclass(frozen=True)
class Outcome:
    """Figures of one run."""

    seed: int
    peers: int
    relays: int
    control: Spread
    """bytes per second that a host sends or carries on control lanes"""
    hidden: float
    """exchanges a round"""
    dialable: float
    carried_to: Spread
    """hosts of a relay"""
    load: Spread
    """share of its budget that a relay carries"""
    offers: Spread
    """offers a second that a relay carries"""
    first: float
    """rounds: the longest time from the start of a peer's training to its first exchange"""
    left_out: float
    """rounds: the longest time without an exchange that begins when all have started"""
    unrelayed: int
    """hidden hosts that no relay carries to"""
    events: int
    seconds: float
    """virtual seconds"""
    log_hash: str
    cpu: float
    """seconds"""

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """What, the mean, and the most."""
        control, data = self.control, self.load
        return [
            ("control traffic of a peer, kB/s", f"{control.mean / 1e3:.2f}", f"{control.most / 1e3:.1f}"),
            ("exchanges of a hidden peer in a round", f"{self.hidden:.2f}", ""),
            ("exchanges of a dialable peer in a round", f"{self.dialable:.2f}", ""),
            ("rounds to the first exchange", "", f"{self.first:.2f}"),
            ("rounds without an exchange after that", "", f"{self.left_out:.2f}"),
            ("hidden peers without a relay", f"{self.unrelayed}", ""),
            ("peers that a relay carries to", f"{self.carried_to.mean:.1f}", f"{self.carried_to.most:.0f}"),
            ("data that a relay carries, of its budget", f"{data.mean:.0%}", f"{data.most:.0%}"),
            ("offers that a relay carries, a second", f"{self.offers.mean:.2f}", f"{self.offers.most:.2f}"),
        ]

    @property
    def checks(self) -> list[Check]:
        """The marks."""
        spreads = (("peers", self.carried_to), ("data", self.load), ("offers", self.offers))
        return [
            Check(
                "longest time without an exchange, once all have started",
                f"<= {LEFT_OUT:g} rounds",
                f"{self.left_out:.2f}",
                self.left_out <= LEFT_OUT,
            ),
            *(
                Check(
                    f"{name} at the busiest relay",
                    f"<= {BUSIEST:g} x mean",
                    f"{spread.ratio:.2f}",
                    spread.ratio <= BUSIEST,
                )
                for name, spread in spreads
            ),
        ]


class Relayed:
    """The network of one seed.

    Args:
        hidden: share of the peers that nobody can dial.
        relays: share of the peers that carry.
        budget: bytes a round that each relay carries.
        round_seconds: seconds of a round.
    """

    def __init__(
        self, seed: int, peers: int, hidden: float, relays: float, budget: float, round_seconds: float
    ) -> None:
        self.seed, self.budget, self.round_seconds = seed, budget / round_seconds, round_seconds
        self.network = Network(seed, Conditions(latency=FAR, job=0.002), listen=self._heard, latency=self._latency)
        config = peer_config(presets.WAN, settings=b"of a relayed run", every=EVERY, warmup_steps=0, early_steps=0)
        self._region = self.network.random("regions")
        self.regions = [self._region.randrange(REGIONS) for _ in range(peers)]
        carriers = max(1, round(relays * peers))
        for index in range(peers):
            host = self.network.add(config, outbound=index >= peers - round(hidden * peers), carries=index < carriers)
            host.budget = self.budget
        self.hosts = self.network.hosts
        self.relays = self.hosts[:carriers]
        self._schema = Schema.of([("weight", (SIZE,), "float32", "parameter")])
        self._trainers: dict[int, Trainer] = {}
        self.met: dict[int, list[float]] = {}
        """host -> when its training began, and when each of its exchanges ended that mixed something"""

    def _latency(self, sender: Host, target: Host) -> float:
        return NEAR if self.regions[sender.index] == self.regions[target.index] else FAR

    def _heard(self, host: Host, event: Event) -> None:
        trainer = self._trainers.get(host.index)
        if trainer is not None:
            trainer.hear(event)
        match event:
            case SessionOpened():
                self.met.setdefault(host.index, [self.network.now])
            case ExchangeEnded() if event.chunks and host.index in self.met:
                self.met[host.index].append(self.network.now)

    def _start(self, host: Host) -> None:
        self.network.start(host, seeds=self.hosts[:SEEDS], found=host.index == 0)
        config = TrainerConfig(step_time=self.round_seconds / EVERY)
        self._trainers[host.index] = Trainer(
            self.network, host, self._schema, config, host.index, lambda trainer, what, chunks: None
        )

    def run(self) -> Outcome:
        """Play it."""
        began, network = time.process_time(), self.network
        starts = network.random("starts")
        for host in self.hosts:
            at = float(host.index) if host.index < SEEDS else starts.uniform(SEEDS, JOINING)
            network.at(at, "start", None, partial(self._start, host))
        since = JOINING + SETTLING
        network.run(since)
        before = [(host.sent.copy(), host.carried.copy(), host.offers) for host in self.hosts]
        seconds = ROUNDS * self.round_seconds
        network.run(since + seconds)
        control, load, offers = [], [], []
        for host, (sent, carried, offered) in zip(self.hosts, before, strict=True):
            lane = Lane.CONTROL
            control.append((host.sent[lane] - sent[lane] + host.carried[lane] - carried[lane]) / seconds)
            if host.carries:
                load.append((host.carried[Lane.DATA] - carried[Lane.DATA]) / seconds / self.budget)
                offers.append((host.offers - offered) / seconds)
        behind = [host for host in self.hosts if host.outbound]
        first, later = [0.0], [0.0]
        for host in self.hosts:
            met = [*self.met.get(host.index, [0.0]), network.now]
            first.append(met[1] - met[0])
            later += [end - begin for begin, end in itertools.pairwise(met) if begin >= since]
        return Outcome(
            self.seed,
            len(self.hosts),
            len(self.relays),
            Spread.of(control),
            self._a_round(behind, since),
            self._a_round([host for host in self.hosts if not host.outbound], since),
            Spread.of([len(relay.attending) for relay in self.relays]),
            Spread.of(load),
            Spread.of(offers),
            max(first) / self.round_seconds,
            max(later) / self.round_seconds,
            sum(not any(host.id in relay.attending for relay in self.relays) for host in behind),
            network.events,
            network.now,
            network.log_hash,
            time.process_time() - began,
        )

    def _a_round(self, hosts: Sequence[Host], since: float) -> float:
        ended = sum(at > since for host in hosts for at in self.met.get(host.index, [0.0])[1:])
        return ended / max(1, len(hosts)) / ROUNDS


def play(
    seed: int,
    peers: int = 1000,
    *,
    hidden: float = 0.8,
    relays: float = 0.05,
    budget: float = BUDGET,
    round_seconds: float = ROUND,
) -> Outcome:
    """Play one seed. Arguments as of `Relayed`."""
    # A run makes little garbage before its end.
    gc.disable()
    try:
        return Relayed(seed, peers, hidden, relays, budget, round_seconds).run()
    finally:
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures. The exit status is 1 if a mark is missed."""
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.relayed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--hidden", type=float, default=0.8, metavar="SHARE", help="of the peers (%(default)s)")
    parser.add_argument("--relays", type=float, default=0.05, metavar="SHARE", help="of the peers (%(default)s)")
    parser.add_argument("--budget", type=float, default=BUDGET, help="bytes a round of a relay (%(default)s)")
    parser.add_argument("--round", type=float, default=ROUND, metavar="SECONDS", help="of a round (%(default)s)")
    options = parser.parse_args(arguments)
    shares = {"hidden": options.hidden, "relays": options.relays, "budget": options.budget}
    one = play(options.seed, options.peers, **shares, round_seconds=options.round)
    print(f"{one.peers} peers, {one.relays} relays, seed {one.seed}; {one.events} events, {one.cpu:.0f} s")
    for row in (("", "mean", "most"), *one.rows):
        print("{:45}{:>9}{:>9}".format(*row))
    for check in one.checks:
        print(f"{'met' if check.passed else 'MISSED':7} {check.name}: {check.measured} ({check.mark})")
    return int(not all(check.passed for check in one.checks))


if __name__ == "__main__":
    sys.exit(main())
