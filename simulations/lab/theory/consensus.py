"""How fast replicas agree, in closed form and measured: every line of the table of algorithms section 7.

`measure` returns the table: the contraction of the disagreement, its growth under outer momentum, and the stationary
distance of replicas of a quadratic with known noise.

Matchings are vectorised draws. Schedules are the product's own, and lines that name `pairwise` run its exchanges
(`methods/pairwise.py`). All peers meet at once here.

    python -m simulations.lab.theory.consensus
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.rounds.usual_step import usual_step
from simulations.lab.core import Setting, play
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Dialogue
from simulations.lab.problems import Consensus, Quadratic

__all__ = [
    "Row",
    "exact_on",
    "exponential",
    "growth",
    "matching",
    "measure",
    "momentum",
    "stationary",
]

Values = NDArray[np.float64]

WITHIN: Final = 0.01
"""largest relative deviation of a factor"""
WITHIN_NOISE: Final = 0.1
"""the same of a squared stationary distance (algorithms section 9, 13)"""
EXACT: Final = 1e-24
"""share of a sum of squares that rounding errors may leave"""
SIZES: Final = (4, 8, 16, 64)
MOMENTA: Final = (0.5, 0.8, 0.9)
LR: Final = 0.7


class Row(NamedTuple):
    """One line: the formula in words, its value, the measured value, and their relative deviation."""

    formula: str
    expected: float
    measured: float
    deviation: float
    ok: bool


# -- closed forms --------------------------------------------------------------------------------------------------


def matching(peers: int, weight: float = 0.5) -> float:
    """Factor of sum ||a_i - mean||^2 by a random perfect matching that moves both sides by `weight` of their
    difference.
    """
    rho = (peers - 2) / (2.0 * (peers - 1))
    return 1.0 - 4.0 * weight * (1.0 - weight) * (1.0 - rho)


def fragment(peers: int, parts: int) -> float:
    """The same for a matching of one coordinate in `parts`."""
    return 1.0 - (1.0 - matching(peers)) / parts


def one_pair(peers: int) -> float:
    """The same for one random pair."""
    return 1.0 - 1.0 / (peers - 1)


def push_sum(peers: int) -> float:
    """Factor of Kempe's potential if every peer sends half to a random target, itself included.

    Source: Kempe, Dobra, Gehrke 2003, "Gossip-based computation of aggregate information", section 2.
    """
    return 0.5 - 0.25 / peers


def momentum(peers: int, mu: float, kappa: float, lr: float = LR) -> float:
    """Growth per round of the root mean square disagreement when no peer learns.

    It is the spectral radius of the map of a round on E[a^2], E[a v], E[v^2] of the deviations. Those of two peers
    correlate by -1/(N - 1).

    Outer step with D = 0: v' = mu v, a' = a - lr mu v'. Mixing of i with j: with d = (a_j - a_i)/2, a' = a + d and v' =
    v - (kappa/lr) d.
    """
    c, g, k = 1.0 / (peers - 1), kappa / lr, lr * mu * mu
    mixing = [[(1.0 - c) / 2.0, 0.0, 0.0], [0.0, (1.0 - c) / 2.0, 0.0], [g * g * (1.0 + c) / 2.0, g * (1.0 + c), 1.0]]
    step = [[1.0, -2.0 * k, k * k], [0.0, mu, -k * mu], [0.0, 0.0, mu * mu]]
    return float(np.abs(np.linalg.eigvals(np.array(mixing) @ np.array(step))).max() ** 0.5)


def stationary(peers: int, curvature: float, lr: float, every: int, noise: float) -> float:
    """Stationary CD^2 after the mixing of a round, for replicas that average parameters (alpha 1, mu 0) in random
    pairs.

    The replicas make `every` SGD steps per round on a quadratic, with E||noise of a gradient||^2 = noise^2.

        CD^2 = rho (lambda CD^2 + sigma^2),   lambda = (1 - lr curvature)^(2 every)

    Without curvature this is rho sigma^2/(1 - rho) of algorithms section 9. A share 1 - 1/N of each peer's noise lies
    off the mean of all.
    """
    rho, shrink = matching(peers), (1.0 - lr * curvature) ** 2
    steps = float(sum(shrink**step for step in range(every)))
    sigma2 = (1.0 - 1.0 / peers) * steps * (lr * noise) ** 2
    return rho * sigma2 / (1.0 - rho * shrink**every)


# -- measurements --------------------------------------------------------------------------------------------------


def _disagreement(x: Values) -> float:
    """Sum of squared distances to the mean over the peers, which are the next to last axis."""
    return float(np.square(x - x.mean(-2, keepdims=True)).sum())


def _pairs(random: np.random.Generator, trials: int, peers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A random perfect matching per trial: both sides, each of shape (trials, peers // 2)."""
    order = random.random((trials, peers)).argsort(1)
    return order[:, 0::2], order[:, 1::2]


def _line(trials: int, peers: int) -> Values:
    """Peers on a line, so that the choice of partners matters; shape (trials, peers, 1)."""
    return np.tile(np.arange(peers, dtype=np.float64)[:, None], (trials, 1, 1))


def _mix(x: Values, first: NDArray[np.int64], second: NDArray[np.int64], weight: float | Values) -> None:
    rows = np.arange(len(x))[:, None]
    change = weight * (x[rows, second] - x[rows, first])
    x[rows, first] += change
    x[rows, second] -= change


def measured_matching(peers: int, weight: float, parts: int, trials: int, seed: int, rounds: int = 3) -> float:
    """Measured factor of random perfect matchings of one coordinate in `parts`; geometric mean over the rounds."""
    random = np.random.default_rng(seed)
    x = _line(trials, peers)
    before = _disagreement(x)
    for _ in range(rounds):
        chosen = (random.permutation(trials) % parts == 0).astype(np.float64)[:, None, None]
        _mix(x, *_pairs(random, trials, peers), weight * chosen)
    return math.exp(math.log(_disagreement(x) / before) / rounds)


def measured_pairwise(peers: int, weight: float, parts: int, seed: int, size: int = 2**16) -> float:
    """Measured factor of one round of the product's `pairwise` with random partners.

    The coordinates begin at independent points. So one matching acts on many of them as many matchings would on
    average, and coordinates replace trials.
    """
    options = PairwiseOptions(
        lr=1.0,
        momentum=0.0,
        codec="fp32",
        schedule="",
        early=0.0,
        exchanges=1,
        clip=math.inf,
        weight=weight,
        fragments=parts,
        landing="at once",
    )
    setting = Setting(peers=peers, every=1, rounds=1, inner="sgd", decay=False, seed=seed)
    curve = play(Consensus(peers=peers, size=size), PairwiseGossip(options), setting)
    before, after = (point.distance**2 for point in curve.points)
    return after / before


def measured_one_pair(peers: int, trials: int, seed: int) -> float:
    """Measured factor of one random pair; geometric mean over as many ticks as there are peers."""
    random = np.random.default_rng(seed)
    x = _line(trials, peers)
    before = _disagreement(x)
    for _ in range(peers):
        first, second = _pairs(random, trials, peers)
        _mix(x, first[:, :1], second[:, :1], 0.5)
    return math.exp(math.log(_disagreement(x) / before) / peers)


def measured_push_sum(peers: int, trials: int, seed: int, rounds: int = 3) -> float:
    """Measured factor of sum_ij (v_ij - w_i / N)^2.

    v_ij is the mass of peer j at peer i, and w_i is the sum of v_ij over j.
    """
    random = np.random.default_rng(seed)
    v = np.tile(np.eye(peers), (trials, 1, 1))
    rows = np.arange(trials)

    def potential() -> float:
        return float(np.square(v - v.sum(2, keepdims=True) / peers).sum())

    before = potential()
    for _ in range(rounds):
        targets = random.integers(peers, size=(trials, peers))
        v *= 0.5
        sent = v.copy()
        for peer in range(peers):
            v[rows, targets[:, peer]] += sent[:, peer]
    return math.exp(math.log(potential() / before) / rounds)


def exact_after(peers: int, seed: int = 0) -> int:
    """Steps of the product's schedule after which all peers hold the mean; sys.maxsize if one cycle is not enough."""
    ids = [number.to_bytes(32, "big") for number in range(peers)]
    schedule = Schedule(ids, seed.to_bytes(8, "big"))
    x = np.random.default_rng(seed).standard_normal((peers, 64))
    before = _disagreement(x)
    for step in range(schedule.period):
        met = [schedule.partner(peer, step) for peer in ids]
        x = np.array(
            [
                own if other is None else own + other[1] * (x[int.from_bytes(other[0], "big")] - own)
                for own, other in zip(x, met, strict=True)
            ]
        )
        if _disagreement(x) < EXACT * before:
            return step + 1
    return sys.maxsize


def exponential(count: int, exchange: int) -> NDArray[np.int64]:
    """One-peer exponential graph (Ying et al. 2021, arXiv 2110.13363): i hears i - 2^(t mod log2 N).

    It is exact after log2 N exchanges if N = 2^m.
    """
    turns, own = (count - 1).bit_length(), np.arange(count)[:, None]
    return (own - (1 << exchange % turns)) % count if turns else own[:, :0]


def exact_on(graph: Callable[[int, int], NDArray[np.int64]], peers: int, seed: int = 0) -> int:
    """Steps on `graph` after which all peers hold the mean; sys.maxsize if 2 N are not enough."""
    x = np.random.default_rng(seed).standard_normal((peers, 64))
    before = _disagreement(x)
    for step in range(2 * peers):
        heard = graph(peers, step)
        x = (x + x[heard].sum(1)) / (heard.shape[1] + 1.0)
        if _disagreement(x) < EXACT * before:
            return step + 1
    return sys.maxsize


def growth(peers: int, mu: float, kappa: float, trials: int, seed: int, rounds: int = 16) -> float:
    """The growth that `momentum` predicts, over independent trials. The first half of the rounds is a burn-in."""
    random = np.random.default_rng(seed)
    a, v = random.standard_normal((2, trials, peers, 1))
    rows, middle = np.arange(trials)[:, None], 0.0
    for number in range(2 * rounds):
        if number == rounds:
            middle = _disagreement(a)
        v *= mu
        a -= LR * mu * v
        first, second = _pairs(random, trials, peers)
        change = 0.5 * (a[rows, second] - a[rows, first])
        a[rows, first] += change
        a[rows, second] -= change
        v[rows, first] -= kappa / LR * change
        v[rows, second] += kappa / LR * change
    return math.exp(0.5 * math.log(_disagreement(a) / middle) / rounds)


def measured_growth(
    peers: int, mu: float, kappa: float, seed: int, runs: int, size: int = 256, rounds: int = 16
) -> float:
    """The same with the product's `pairwise` and no training, over `runs` runs.

    The first half of the rounds is a burn-in, because momentum begins at zero. All coordinates of a run share its
    matchings, so they are no independent trials.
    """
    options = PairwiseOptions(
        lr=LR,
        momentum=mu,
        kappa=kappa,
        codec="fp32",
        schedule="",
        early=0.0,
        exchanges=1,
        clip=math.inf,
        landing="at once",
    )
    setting = Setting(peers=peers, every=1, rounds=rounds, inner="sgd", lr=0.0, decay=False)
    middle, squares = rounds // 2, np.zeros(2)
    for run in range(runs):
        played = replace(setting, seed=runs * seed + run, evaluate_every=middle)
        points = play(Consensus(peers=peers, size=size), PairwiseGossip(options), played).points
        squares += [point.distance**2 for point in points[1:]]
    return float((squares[1] / squares[0]) ** (0.5 / (rounds - middle)))


class _WholeWeight(PairwiseGossip):
    """Noise around an optimum swings, which lowers weights. The formula is of the whole weight."""

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        return replace(super()._dialogue(first, second, weight), weight=weight)


def measured_stationary(
    peers: int, curvature: float, lr: float, every: int, noise: float, size: int, rounds: int, seed: int
) -> float:
    """Mean CD^2 over `rounds` rounds of the product's `pairwise` on replicas of a quadratic."""
    options = PairwiseOptions(lr=1.0, momentum=0.0, codec="fp32", schedule="", early=0.0, exchanges=1, clip=math.inf)
    forget = 12
    setting = Setting(peers=peers, every=every, rounds=forget + rounds, inner="sgd", lr=lr, decay=False, seed=seed)
    curve = play(Quadratic(size=size, curvature=curvature, noise=noise), _WholeWeight(options), setting)
    return float(np.mean([point.distance**2 for point in curve.points[forget + 1 :]]))


# -- the table -----------------------------------------------------------------------------------------------------


def _row(formula: str, expected: float, measured: float, within: float = WITHIN) -> Row:
    deviation = abs(measured / expected - 1.0)
    return Row(formula, expected, measured, deviation, deviation <= within)


def _factor(formula: str, expected: float, measured: float) -> Row:
    """A row of a contraction. The rate, the logarithm, must match too, because any two factors near 1 are close."""
    deviation = max(abs(measured / expected - 1.0), abs(math.log(measured) / math.log(expected) - 1.0))
    return Row(formula, expected, measured, deviation, deviation <= WITHIN)


def contraction(trials: int, seed: int, sizes: Sequence[int] = SIZES) -> Iterable[Row]:
    """The table of algorithms section 7."""
    # With fewer peers, fewer trials have any disagreement left.
    many = {peers: trials * max(1, 16 // peers) for peers in sizes}
    for peers in sizes:
        measured = measured_matching(peers, 0.5, 1, many[peers], seed)
        yield _factor(f"random matching, N {peers}: (N-2)/(2(N-1))", matching(peers), measured)
    for parts in (2, 4):
        measured = measured_matching(16, 0.5, parts, trials, seed)
        yield _factor(f"fragment 1/{parts}, N 16: 1-(1-rho)/M", fragment(16, parts), measured)
    for peers in sizes:
        measured = measured_one_pair(peers, many[peers], seed)
        yield _factor(f"one pair a tick, N {peers}: 1-1/(N-1)", one_pair(peers), measured)
    for peers in sizes[:3]:
        measured = measured_push_sum(peers, many[peers], seed)
        yield _factor(f"push-sum, N {peers}: 1/2-1/(4N)", push_sum(peers), measured)
    for power in (2, 3, 4, 5):
        yield _row(f"hypercube, N {1 << power}: exact after log2 N", power, exact_after(1 << power, seed), 0.0)
        formula = f"one-peer exponential graph, N {1 << power}: exact after log2 N"
        yield _row(formula, power, exact_on(exponential, 1 << power, seed), 0.0)
    for peers in (6, 7, 12):
        # N = 2^s q, q odd: s steps, and 2 floor(log2 q) + 1 more.
        s = (peers & -peers).bit_length() - 1
        steps = s + 2 * ((peers >> s).bit_length() - 1) + 1
        yield _row(f"Base-2 graph, N {peers}: exact after s+2 floor(log2 q)+1", steps, exact_after(peers, seed), 0.0)
    for weight in (0.1, 0.25, 0.4):
        measured = measured_matching(16, weight, 1, trials, seed)
        yield _factor(f"gamma {weight}, N 16: 1-4 gamma (1-gamma)(1-rho)", matching(16, weight), measured)
    for peers, weight, parts in ((8, 0.5, 1), (16, 0.5, 1), (16, 0.25, 1), (16, 0.5, 4)):
        expected = 1.0 - (1.0 - matching(peers, weight)) / parts
        measured = measured_pairwise(peers, weight, parts, seed)
        yield _factor(f"a round of pairwise, N {peers}, gamma {weight}, 1/{parts} of the chunks", expected, measured)


def momenta(trials: int, seed: int) -> Iterable[Row]:
    """Decoupled (kappa 0), the default kappa 0.3, and coupled (kappa 1)."""
    for kappa in (0.0, 0.3, 1.0):
        for mu in MOMENTA:
            measured = growth(16, mu, kappa, trials, seed)
            yield _row(f"growth, kappa {kappa}, mu {mu}, N 16", momentum(16, mu, kappa), measured)


def product(runs: int, seed: int) -> Iterable[Row]:
    """The shipped momentum of late rounds, and one that does not agree, by the daemon's own code."""
    ships = usual_step(early=False, fill=0.0, spread=0.0, peers=16).momentum
    for kappa, mu in ((PairwiseOptions().kappa, ships), (1.0, 0.9)):
        measured = measured_growth(16, mu, kappa, seed, runs)
        yield _row(f"growth by pairwise, kappa {kappa}, mu {mu}, N 16", momentum(16, mu, kappa), measured)


def quadratic(seed: int, size: int = 1024, rounds: int = 40) -> Iterable[Row]:
    """Stationary consensus distance, without and with curvature."""
    for peers, curvature in ((8, 0.0), (16, 0.0), (16, 2.0)):
        expected = stationary(peers, curvature, 0.1, 4, 1.0)
        measured = measured_stationary(peers, curvature, 0.1, 4, 1.0, size, rounds, seed)
        formula = f"CD^2 of a quadratic, N {peers}, curvature {curvature:g}: rho sigma^2/(1 - rho lambda)"
        yield _row(formula, expected, measured, WITHIN_NOISE)


def measure(trials: int = 80_000, seed: int = 0) -> list[Row]:
    """Every line of the table. B7 passes if all are ok."""
    return [
        *contraction(trials, seed),
        *momenta(trials // 4, seed),
        *product(max(1, trials // 80), seed),
        *quadratic(seed),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    program = "python -m simulations.lab.theory.consensus"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=80_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rows = measure(options.trials, options.seed)
    for row in rows:
        told = f"{row.expected:9.4f} {row.measured:9.4f} {100.0 * row.deviation:7.2f} %"
        print(f"{row.formula:70} {told} {'' if row.ok else '  missed'}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
