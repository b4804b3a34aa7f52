"""How fast pairwise averaging agrees, by the choice of partners: random matching, hypercube and Base-2 schedules.

Numbers stand for models and meetings for exchanges. There are no messages and no vectors. Peers want `exchanges`
meetings per round and begin their rounds out of step. A meeting lasts `LASTING` ticks. It may fail, and then mixes
nothing. A peer without a partner looks again after a pause. A meeting that is not held by the end of the round is
dropped.

`python -m simulations.lab.theory.matchings` prints two tables:

    agreement     sum of squared distances to the mean after n rounds, as a share of the sum at the start
    training      every peer adds unit noise in each round, as an outer step does. The figure is the sum of squared
                  distances / (N - 1) at the ends of rounds; without averaging it grows by 1 a round
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from gossipdp.config import Exchange
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.pairwise.timetable import exchanges_per_round

__all__ = ["POLICIES", "Conditions", "Meetings", "agreement", "training"]

TICKS = 40
"""ticks of a round"""
LASTING = 4
"""ticks of one meeting"""
LONGEST_PAUSE = 16
SIZES = (8, 12, 16, 33)
AFTER = (1, 2, 3, 4, 5, 6, 8, 11, 16)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    spread: float = 0.0
    """rounds between the earliest and the latest begin of a round, at most"""
    failing: float = 0.0
    """share of the meetings that fail"""
    exchanges: int = 1
    """meetings wanted in each round"""


@dataclass(frozen=True)
class Policy:
    """How peers choose partners: `patience` ticks for the scheduled one, then a random one if `otherwise`."""

    name: str
    scheduled: bool = True
    patience: int = TICKS // 2
    otherwise: bool = True
    halves: bool = False
    """every meeting has weight 1/2, whatever the schedule says"""
    ahead: float = 1
    """rounds' worth of meetings that a peer accepts before it wants them; it wants as many fewer in the next round. 1,
    as in the product; 0: both must want; infinite: any number, and none fewer wanted
    """


CONDITIONS = (
    ("in step", Conditions()),
    ("up to 1/4 round, 10 % fail", Conditions(spread=0.25, failing=0.1)),
    ("up to 1 round, 10 % fail", Conditions(spread=1.0, failing=0.1)),
)
POLICIES = (
    Policy("offer and accept", scheduled=False),
    Policy("the same, both must want", scheduled=False, ahead=0),
    Policy("the same, any free peer", scheduled=False, ahead=math.inf),
    Policy("schedule", otherwise=False),
    Policy("schedule, else random"),
    Policy("the same, weights 1/2", halves=True),
)


class Meetings:
    """Peers that look for partners in virtual time under one policy; `x` is what they average, shape (N, trials)."""

    def __init__(self, count: int, policy: Policy, conditions: Conditions, seed: int, columns: int) -> None:
        self._count, self._policy, self._conditions = count, policy, conditions
        self._random, self._normal = Random(seed), np.random.default_rng(seed)
        self.x: NDArray[np.float64] = self._normal.standard_normal((count, columns))
        ids = [number.to_bytes(32, "big") for number in range(count)]
        self._schedule, self._ids = Schedule(ids, seed.to_bytes(8, "big")), ids
        self._begins = [self._random.randrange(round(conditions.spread * TICKS) or 1) for _ in ids]
        self._reached, self._done = [0] * count, [0] * count
        """per peer: steps allowed, and steps done"""
        self._since = [0] * count
        """per peer: the tick when it began to look for its current meeting"""
        self._ahead = [0] * count
        """per peer: meetings held that no round has wanted yet"""
        self._given_up = [False] * count
        """per peer: whether it takes any partner for its current step"""
        self._free_at, self._look_at, self._pause = [0] * count, [0] * count, [1] * count
        self._held: list[tuple[int, int, int, float, bool, bool]] = []
        self.tick = 0
        self.meetings = 0

    def run(self, rounds: int, noise: float = 0.0) -> None:
        """Run `rounds` more rounds. Each peer adds `noise` at the begin of each of its rounds."""
        for _ in range(rounds * TICKS):
            self._end_meetings()
            for peer, begins in enumerate(self._begins):
                if self.tick % TICKS == begins:
                    self._begin_round(peer, noise)
            looking = [peer for peer in range(self._count) if self._looks(peer)]
            self._random.shuffle(looking)
            for peer in looking:
                if self._looks(peer):
                    self._look(peer)
            self.tick += 1

    def disagreement(self) -> float:
        """Sum of squared distances to the mean; mean over the trials."""
        return _disagreement(self.x)

    def _begin_round(self, peer: int, noise: float) -> None:
        if noise:
            self.x[peer] += noise * self._normal.standard_normal(self.x.shape[1])
        wanted = self._conditions.exchanges
        self._reached[peer] += wanted
        held = min(wanted, self._ahead[peer]) if math.isfinite(self._policy.ahead) else 0
        self._ahead[peer] = 0
        if self._done[peer] < self._reached[peer] - wanted + held:
            self._step(peer, self._reached[peer] - wanted + held)
        self._since[peer], self._pause[peer] = self.tick, 1

    def _step(self, peer: int, done: int) -> None:
        self._done[peer], self._since[peer], self._given_up[peer], self._pause[peer] = done, self.tick, False, 1

    def _looks(self, peer: int) -> bool:
        idle = self._free_at[peer] <= self.tick >= self._look_at[peer]
        return idle and self._done[peer] < self._reached[peer]

    def _look(self, peer: int) -> None:
        if not self._policy.scheduled or self._given_up[peer]:
            return self._look_at_random(peer)
        step = self._done[peer]
        met = self._schedule.partner(self._ids[peer], step)
        if met is None:
            return self._step(peer, step + 1)
        partner = int.from_bytes(met[0], "big")
        if self._done[partner] == step and self._free_at[partner] <= self.tick and not self._given_up[partner]:
            # The partner may not have reached this step, but it has finished the one before, which is what counts.
            self._meet(peer, partner, 0.5 if self._policy.halves else met[1], True)
        elif (
            self._done[partner] > step
            or self._given_up[partner]
            or self.tick - self._since[peer] >= self._policy.patience
        ):
            self._miss(peer)

    def _miss(self, peer: int) -> None:
        """The meeting of the current step failed or will not happen."""
        if not self._policy.scheduled or self._policy.otherwise:
            self._given_up[peer] = True
        else:
            self._step(peer, self._done[peer] + 1)

    def _look_at_random(self, peer: int) -> None:
        partner = self._random.randrange(self._count - 1)
        partner += partner >= peer
        wants = self._done[partner] < self._reached[partner]
        # A peer that follows the schedule keeps its own meeting when it accepts another one.
        counts = wants and (self._given_up[partner] or not self._policy.scheduled)
        room = self._ahead[partner] < self._policy.ahead * self._conditions.exchanges
        if self._free_at[partner] <= self.tick and (counts or room):
            self._meet(peer, partner, 0.5, counts)
        else:
            self._look_at[peer] = self.tick + self._pause[peer] + self._random.randrange(self._pause[peer] + 1)
            self._pause[peer] = min(2 * self._pause[peer], LONGEST_PAUSE)

    def _meet(self, peer: int, partner: int, weight: float, counts: bool) -> None:
        end = self.tick + LASTING
        self._free_at[peer] = self._free_at[partner] = end
        works = self._random.random() >= self._conditions.failing
        self._held.append((end, peer, partner, weight, counts, works))

    def _end_meetings(self) -> None:
        while self._held and self._held[0][0] <= self.tick:
            _, peer, partner, weight, counts, works = self._held.pop(0)
            if works:
                change = weight * (self.x[partner] - self.x[peer])
                self.x[peer] += change
                self.x[partner] -= change
                self.meetings += 1
            self._ahead[partner] += works and not counts
            for side in (peer, partner) if counts else (peer,):
                if works:
                    self._step(side, self._done[side] + 1)
                else:
                    self._miss(side)


def perfect(count: int, failing: float, seed: int, columns: int) -> Iterable[NDArray[np.float64]]:
    """Values after each step of random perfect matchings in lock step, which only a central matcher reaches."""
    normal = np.random.default_rng(seed)
    x = normal.standard_normal((count, columns))
    while True:
        order = normal.permutation(count)[: count // 2 * 2].reshape(-1, 2)
        first, second = order[normal.random(len(order)) >= failing].T
        x[first] = x[second] = 0.5 * (x[first] + x[second])
        yield x


def agreement(
    count: int, policy: Policy | None, conditions: Conditions, after: Sequence[int], trials: int
) -> tuple[list[float], float]:
    """The share of disagreement left after each number of rounds in `after`, and the meetings per peer and round.

    Args:
        policy: None for perfect matchings.
    """
    left, held = np.zeros(len(after)), 0.0
    for seed in range(trials):
        if policy is None:
            steps = perfect(count, conditions.failing, seed, 32)
            values = [_disagreement(x) for x, _ in zip(steps, range(after[-1]), strict=False)]
            left += [values[rounds - 1] / (count - 1) for rounds in after]
            held += 1.0 - conditions.failing - count % 2 / count
        else:
            meetings = Meetings(count, policy, conditions, seed, 32)
            first = meetings.disagreement()
            for place, rounds in enumerate(after):
                meetings.run(rounds - meetings.tick // TICKS)
                left[place] += meetings.disagreement() / first
            held += 2.0 * meetings.meetings / (count * after[-1])
    return [float(share) for share in left / trials], held / trials


def training(count: int, policy: Policy, conditions: Conditions, rounds: int, trials: int) -> tuple[float, float]:
    """The stationary share of unit noise per round, and the meetings per peer and round."""
    left, held, warmup = [], 0, 20
    for seed in range(trials):
        meetings = Meetings(count, policy, conditions, seed, 16)
        meetings.run(warmup, 1.0)
        before = meetings.meetings
        for _ in range(rounds):
            meetings.run(1, 1.0)
            left.append(meetings.disagreement() / (count - 1))
        held += meetings.meetings - before
    return float(np.mean(left)), 2.0 * held / (count * rounds * trials)


def _disagreement(x: NDArray[np.float64]) -> float:
    """Sum of squared distances to the mean; mean over the trials."""
    return float(np.square(x - x.mean(0)).sum(0).mean())


def main(arguments: Sequence[str] | None = None) -> int:
    program = "python -m simulations.lab.theory.matchings"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, metavar="N")
    options = parser.parse_args(arguments)
    print("agreement: share of the sum of squared distances left after so many rounds, one meeting wanted in each")
    for name, conditions in (CONDITIONS[0], CONDITIONS[-1]):
        print(f"\n  {name}\n  {'N':>4} {'':25}{'held':>5}" + "".join(f"{rounds:>7}" for rounds in AFTER))
        for count in options.sizes:
            for policy in (None, *POLICIES):
                left, held = agreement(count, policy, conditions, AFTER, options.trials)
                told = "perfect random matching" if policy is None else policy.name
                print(f"  {count:>4} {told:25}{held:5.2f}" + "".join(f"{_power(share):>7}" for share in left))
    print("\ntraining: what stays of unit noise a round (meetings of a peer a round), wanting 1 and several")
    print(f"\n  {'N':>4} {'':25}" + "".join(f"{name:>28}" for name, _ in CONDITIONS))
    for count in options.sizes:
        several = exchanges_per_round(count, Exchange().early_exchanges)
        for policy in POLICIES:
            line = f"  {count:>4} {policy.name:25}"
            for _, conditions in CONDITIONS:
                for exchanges in (1, several):
                    wanted = replace(conditions, exchanges=exchanges)
                    stays, held = training(count, policy, wanted, 60, max(1, options.trials // 4))
                    line += f"{stays:8.3f} ({held:3.1f})"
            print(line)
    return 0


def _power(share: float) -> str:
    """Two digits of a share; "exact" if only rounding errors are left."""
    return "exact" if share < 1e-28 else f"{share:.0e}" if share < 0.01 else f"{share:.2f}"


if __name__ == "__main__":
    sys.exit(main())
