"""Where an exchange fills its round: do the same few peers meet again and again, and do replicas drift apart?

    python -m simulations.scenarios.crowded --peers 8 16 64

Real peers exchange in virtual time over links so slow that an exchange lasts as long as a round, or longer. Their
replicas make random walks, so nothing but exchanges holds them together. Each line compares them with the same network
on a fast link. Columns:

    lasts       length of an exchange, in rounds
    a round     exchanges of a peer in a round; those that are cut count by their share of the chunks
    again       share of the exchanges with the partner of the exchange before, and of the one before that
    gap         spectral gap of a round: 1 minus the factor by which a round shrinks differences, at least
    distance    consensus distance of the anchors, as a multiple of a round's step, and of that on the fast link

Random partners would meet again in 1 of N - 1 exchanges.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import Event, ExchangeEnded, RoundDone
from simulations.scenarios.observed import ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.conditions import Conditions
from simulations.simulator.host import Host

__all__ = ["Crowded", "Ended", "Outcome", "gap", "play", "repeated"]

STEP: Final = 2.0
EVERY: Final = 10
"""steps of a round, of a peer of the usual speed"""
SIZE: Final = 16 * 8192
FORMING: Final = 60.0
SETTLING: Final = 12
"""rounds after the link became slow that are left out"""
POLICIES: Final = {"schedule": "hypercube", "random": ""}
FAST: Final = Conditions(latency=0.02, bandwidth=1e9, job=0.002)
BYTES: Final = 0.85
"""bytes a parameter of an exchange on the simulated link, both ways and all waits included, as measured"""


@dataclass(frozen=True)
class Outcome:
    """Figures of one run, as the columns of the table."""

    lasts: float
    exchanges: float
    again: float
    before: float
    gap: float
    distance: float


@dataclass(frozen=True)
class Ended:
    """An exchange that mixed at least one chunk."""

    at: float
    hosts: tuple[int, int]
    seconds: float
    share: float
    """of the chunks"""


class Crowded(ObservedCluster):
    """A network whose link becomes slow once all have the model. No fault strikes.

    Args:
        policy: how partners are chosen, a value of `POLICIES`.
        rounds: played on the slow link.
    """

    def __init__(self, seed: int, plan: Plan, policy: str, rounds: int) -> None:
        self._policy, self._rounds = policy, rounds
        self.ended: list[Ended] = []
        self.moved: list[tuple[float, float]] = []
        """(time, RMS of an outer step)"""
        super().__init__(seed, plan)

    def _config(self) -> PeerConfig:
        config = super()._config()
        averaging = replace(config.averaging, schedule=self._policy)
        return replace(config, warmup_steps=0, early_steps=0, averaging=averaging)

    def run(self) -> None:
        network = self.network
        for host in network.hosts:
            network.at(0.2 * host.index, "start", None, partial(self.restart, host))
        network.run(FORMING)
        network.set_conditions(self.plan.conditions)
        network.run(FORMING + self._rounds * EVERY * STEP)

    def _heard(self, host: Host, event: Event) -> None:
        super()._heard(host, event)
        now = self.network.now
        match event:
            case ExchangeEnded() if event.chunks and event.initiator:
                pair = (host.index, self._index(event.partner))
                share = event.chunks / host.algorithm.ledger.chunks
                self.ended.append(Ended(now, pair, event.duration, share))
            case RoundDone():
                self.moved.append((now, event.movement))

    def outcome(self) -> Outcome:
        """The figures of the rounds after the first `SETTLING` ones."""
        since = FORMING + SETTLING * EVERY * STEP
        ended = [one for one in self.ended if one.at > since]
        rounds = (self.network.now - since) / (EVERY * STEP)
        again, before = repeated(ended)
        distance = _rms([one.distance for one in self.observations if one.at > since])
        return Outcome(
            lasts=float(np.mean([one.seconds for one in ended])) / (EVERY * STEP) if ended else 0.0,
            exchanges=2.0 * sum(one.share for one in ended) / self.plan.peers / rounds,
            again=again,
            before=before,
            gap=gap(ended, self.plan.peers, rounds),
            distance=distance / _rms([moved for at, moved in self.moved if at > since]),
        )


def repeated(ended: Sequence[Ended]) -> tuple[float, float]:
    """Share of the exchanges with the partner of the exchange before, and with that of the one before it."""
    met: dict[int, list[int]] = {}
    sides = again = before = 0
    for one in ended:
        for side, other in (one.hosts, one.hosts[::-1]):
            last = met.setdefault(side, [])
            sides, again, before = sides + 1, again + (last[-1:] == [other]), before + (last[-2:-1] == [other])
            last.append(other)
    return again / max(1, sides), before / max(1, sides)


def gap(ended: Sequence[Ended], peers: int, rounds: float) -> float:
    """Spectral gap of a round, from the product of all mixing matrices."""
    product: NDArray[np.float64] = np.eye(peers) - 1.0 / peers
    scale = 0.0
    for one in ended:
        first, second = one.hosts
        change = 0.5 * one.share * (product[second] - product[first])
        product[first] += change
        product[second] -= change
        norm = float(np.linalg.norm(product, 2))
        if norm < 1e-150:
            return 1.0
        product, scale = product / norm, scale + float(np.log(norm))
    return 1.0 - float(np.exp(scale / rounds))


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values else float("nan")


def play(peers: int, lateness: float, speeds: Sequence[float], policy: str, *, rounds: int, seed: int) -> Outcome:
    """Play one network.

    Args:
        lateness: length of an exchange of all chunks in rounds, about; 0: the fast link.
        speeds: of the hosts, relative to each other, repeated up to `peers`.
        policy: a key of `POLICIES`.
        rounds: on the slow link.
    """
    each = np.resize(np.array(speeds, np.float64), peers)
    slow = replace(FAST, jitter=0.5, bandwidth=BYTES * SIZE / (lateness * EVERY * STEP)) if lateness else FAST
    plan = Plan(
        peers=peers,
        size=SIZE,
        conditions=slow,
        before=FAST,
        every=EVERY,
        window=2,
        forming=FORMING,
        step_time=STEP,
        slowness=tuple(np.median(each) / each),
        preset="lan",
        pull=0.0005,
    )
    cluster = Crowded(seed, plan, POLICIES[policy], rounds)
    cluster.run()
    return cluster.outcome()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.crowded", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peers", type=int, nargs="+", default=[8], metavar="N")
    parser.add_argument("--lateness", type=float, nargs="+", default=[0.5, 1.0, 1.5], metavar="ROUNDS")
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0], metavar="SPEED")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    print(
        f"{'N':>4} {'partners':10}{'lasts':>6}{'a round':>9}{'again':>7}{'':6}{'gap':>7}{'distance':>10}{'of fast':>9}"
    )
    for peers in options.peers:
        fast = play(peers, 0.0, options.speeds, "schedule", rounds=options.rounds, seed=options.seed)
        print(_line(peers, "fast link", fast, fast), flush=True)
        for lateness in options.lateness:
            for policy in POLICIES:
                found = play(peers, lateness, options.speeds, policy, rounds=options.rounds, seed=options.seed)
                print(_line(peers, policy, found, fast), flush=True)
    return 0


def _line(peers: int, name: str, found: Outcome, fast: Outcome) -> str:
    return (
        f"{peers:4} {name:10}{found.lasts:6.2f}{found.exchanges:9.2f}{found.again:7.2f}{found.before:6.2f}"
        f"{found.gap:7.2f}{found.distance:10.2f}{found.distance / fast.distance:9.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
