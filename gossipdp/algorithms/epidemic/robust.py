"""Robust aggregation: one vector for the increments of many contributors, some of them bad (algorithms section 8).

A rule sees whole vectors although work comes chunk by chunk, so it runs in two passes. The first adds up `Distances`
between contributors over all chunks; `plan` then says once which rows count and how much; the second pass gives each
chunk to `Plan.combine`. Between the passes nothing larger than n x n is held:

    nearest neighbours      y_i = weighted mean of the n - f rows nearest to x_i, itself included (NNM)
    geometric median        always an affine combination of the rows, and the distances to such a point follow from
                            those between the rows:  z = sum_j l_j x_j, sum_j l_j = 1
                            ||x_i - z||^2 = sum_j l_j ||x_i - x_j||^2 - 1/2 sum_jk l_j l_k ||x_j - x_k||^2
    trimmed mean            by coordinate, so it alone waits for the chunks

**Replicas that see the same chunks in the same order compute the same bits, on whatever processor.** Only + - * /,
sqrt, comparisons and stable sorts are used, elementwise and in float64: IEEE 754 fixes the result of each, and no two
are fused. Every sum has its order written here (`_sum`, `_times`), for numpy's own sums and any BLAS may take another
one on another processor. Masses are integers. Ties go to the lower row.

References: NNM and (f, kappa)-robustness: Allouah et al. 2023, arXiv 2302.01772. Trimmed mean: Yin et al. 2018, arXiv
1803.01498. Smoothed Weiszfeld: Pillutta, Kakade & Harchaoui 2019, arXiv 1912.13445. What pairwise does against bad
partners is part of its exchange (`pairwise`). No peer, message, codec or outer step may stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "RULES",
    "SHARE",
    "Distances",
    "Plan",
    "Points",
    "Rule",
    "aggregate",
    "geometric_median",
    "mean",
    "nearest_neighbour_mixing",
    "plan",
    "together",
    "tolerated",
    "trimmed_mean",
]

Doubles: TypeAlias = NDArray[np.float64]
Masses: TypeAlias = NDArray[np.int64]
Matrix: TypeAlias = NDArray[np.floating]
"""rows are contributors, shape (n, d)"""

SHARE: Final = 0.2
"""of the contributors that may be bad: f = floor(SHARE n), so none of fewer than five"""
STRIP: Final = 4096
"""parameters of one sum, so that a strip of all rows stays in the cache; replicas must have the same"""
UNIT: Final = 2**20
"""mass of a contributor of median weight"""
HEAVIEST: Final = 2
"""A sender states its own weight; a robust rule believes it up to this many times the median."""
ITERATIONS: Final = 32
"""of Weiszfeld, each at n x n numbers"""
SMOOTHING: Final = 1e-6
"""nu, as a share of the median distance from the most central row"""
FAR: Final = 4096.0
"""median distances; a row further off has no say in a geometric median: it could pull by its mass at the most, and its
squared distance would leave no digits for those of the others"""


class Distances:
    """Squared distances between n contributors, added up chunk by chunk; all replicas add the same chunks in the same
    order, and the contributors by id. One row each: whoever sent more than once is the sum of it, not so many voices.

    About 3 ns of a core a parameter and a pair of contributors.
    """

    def __init__(self, contributors: int) -> None:
        self.squared: Doubles = np.zeros((contributors, contributors))
        self.finite: NDArray[np.bool_] = np.ones(contributors, np.bool_)
        """whose every value so far was"""

    def add(self, rows: Matrix) -> None:
        """The increments of all contributors on one chunk, shape (n, d)."""
        if rows.ndim != 2 or len(rows) != len(self.finite):
            raise ValueError(f"increments of shape {rows.shape} of {len(self.finite)} contributors")
        finite = np.isfinite(rows).all(axis=1)
        self.finite &= finite
        for start in range(0, rows.shape[1], STRIP):
            strip = rows[:, start : start + STRIP].astype(np.float64)
            strip[~finite] = 0.0
            for row in range(len(rows) - 1):
                apart = strip[row + 1 :] - strip[row]
                apart *= apart
                self.squared[row, row + 1 :] += _sum(apart)
                self.squared[row + 1 :, row] = self.squared[row, row + 1 :]


@dataclass(frozen=True)
class Points:
    """Affine combinations of the rows: the rows themselves, or what mixing has made of them."""

    combination: Doubles
    """of each point, shape (points, n); each sums to 1"""
    squared: Doubles
    """distances between points, shape (points, points)"""
    masses: Masses
    """weights as integers, so that trimming leaves nothing of a row by a rounding error"""

    def believed(self) -> Masses:
        """No heavier than `HEAVIEST`, or a sender could outweigh everybody by its own word."""
        return np.minimum(self.masses, HEAVIEST * UNIT)

    def mixed(self, coefficients: Doubles) -> Points:
        """Points that are affine combinations of these, shape (points, points of these); masses stay."""
        return Points(_times(coefficients, self.combination), _between(coefficients, self.squared), self.masses)


@dataclass(frozen=True)
class Plan:
    """What a rule has decided; `combine` does it to a chunk."""

    combination: Doubles
    """of the points that are averaged, shape (points, n); zero for whoever is excluded"""
    masses: Masses
    """of the points"""
    trim: int = 0
    """mass cut off at each end of each coordinate; less than half of all"""

    def combine(self, rows: Matrix) -> Doubles:
        """The aggregate of one chunk, shape (d,): a weighted mean, not a sum; zero if all were excluded.

        Args:
            rows: increments of all n contributors, shape (n, d), as they were given to `Distances.add`.
        """
        combined = np.zeros(rows.shape[1])
        if len(self.masses):
            counting = np.flatnonzero((self.combination != 0.0).any(axis=0))
            for start in range(0, rows.shape[1], STRIP):
                strip = rows[counting, start : start + STRIP].astype(np.float64)
                points = _times(self.combination[:, counting], strip)
                combined[start : start + STRIP] = points[0] if len(points) == 1 else self._trimmed(points)
        return combined

    def _trimmed(self, points: Doubles) -> Doubles:
        # One row a coordinate: numpy sorts short contiguous rows fastest. -0.0 + 0.0 is 0.0, so equal means same bits.
        values = np.ascontiguousarray(points.T) + 0.0
        order = np.argsort(values, axis=1, kind="stable")
        values = np.take_along_axis(values, order, axis=1)
        above = np.cumsum(self.masses[order], axis=1)
        below = above - self.masses[order]
        kept = np.minimum(above, above[:, -1:] - self.trim) - np.maximum(below, self.trim)
        np.maximum(kept, 0, out=kept)
        # What is cut off may be huge, and zero times it still costs nothing.
        values *= kept
        return _sum(values) / float(self.masses.sum() - 2 * self.trim)


Rule: TypeAlias = Callable[[Points, int], Plan]
"""Given n points of which f may be bad, 2 f < n."""


def mean(points: Points, f: int) -> Plan:
    """The weighted mean: one bad contributor moves it as far as it likes, whatever f is hoped for."""
    return _average(points, points.masses)


def trimmed_mean(points: Points, f: int) -> Plan:
    """By coordinate: the mean without the lowest and the highest values, as many as f contributors can have sent.

    As much *mass* is cut off at each end as the f heaviest have; where that would leave nothing, the weighted median
    stays. Of increments that are mostly zeros, little but zeros is left: mix them first. kappa = 6 f / (n - 2 f) (1 + f
    / (n - 2 f)) at equal weights.
    """
    merged: dict[bytes, int] = {}
    masses: list[int] = []
    rows: list[int] = []
    believed = points.believed()
    for row, mass in enumerate(believed):
        # Mixing makes equal points of all who have the same neighbours; then the second pass need not mix them twice.
        place = merged.setdefault(points.combination[row].tobytes(), len(rows))
        if place == len(rows):
            rows.append(row)
            masses.append(0)
        masses[place] += int(mass)
    heaviest = sum(sorted(believed.tolist())[len(believed) - f :])
    return Plan(points.combination[rows], np.array(masses, np.int64), min(heaviest, (sum(masses) - 1) // 2))


def geometric_median(points: Points, f: int) -> Plan:
    """The point whose distances to all points, weighted, sum to the least: Weiszfeld's iteration, smoothed.

    It needs no f and holds up to just under half of the mass. kappa = 4 (1 + f / (n - 2 f))^2 at equal weights.
    """
    masses = points.believed()
    if len(masses) == 2:  # Every point between them is one, and either alone would be deaf to the other for ever.
        return _average(points, masses)
    apart = np.sqrt(points.squared)
    central = int(np.argmin(_sum(apart * masses)))
    near = _median(apart[central], masses)
    if near == 0.0:  # Half of the mass or more is in one place, which is then the median itself.
        return _average(points, np.where(apart[central] == 0.0, masses, 0))
    heard = apart[central] <= FAR * near
    masses = np.where(heard, masses, 0)
    squared = np.where(heard[:, None] & heard[None, :], points.squared, 0.0)
    share = np.where(apart[central] <= near, masses, 0) / float(masses[apart[central] <= near].sum())
    for _ in range(ITERATIONS):
        towards = _times(share[None], squared)[0]
        away = towards - 0.5 * _sum((share * towards)[None])[0]
        pull = masses / np.sqrt(np.maximum(away, (SMOOTHING * near) ** 2))
        share = pull / _sum(pull[None])[0]
    return Plan(_times(share[None], points.combination), np.ones(1, np.int64))


def nearest_neighbour_mixing(rule: Rule) -> Rule:
    """`rule` on points each of which is the weighted mean of its n - f nearest, itself included.

    At equal weights a (f, kappa)-robust rule becomes (f, 8 f / (n - f) (kappa + 1))-robust: the result is within
    sqrt(that) times the standard deviation of any n - f contributors from their mean, wherever the others are.
    """

    def mixing(points: Points, f: int) -> Plan:
        count = len(points.masses)
        nearest = np.argsort(points.squared, axis=1, kind="stable")[:, : count - f]
        chosen = np.zeros((count, count), np.bool_)
        np.put_along_axis(chosen, nearest, True, axis=1)
        masses = np.where(chosen, points.believed(), 0)
        return rule(points.mixed(masses / masses.sum(axis=1, keepdims=True)), f)

    return mixing


RULES: Final[Mapping[str, Rule]] = {
    "mean": mean,
    "trimmed": trimmed_mean,
    "median": geometric_median,
    "nnm-trimmed": nearest_neighbour_mixing(trimmed_mean),
    "nnm-median": nearest_neighbour_mixing(geometric_median),
}


def tolerated(share: float, contributors: int) -> int:
    """f = floor(share n), less than half of them."""
    if not 0.0 <= share < 0.5:
        raise ValueError(f"a share of bad contributors of {share} is not in [0, 1/2)")
    # 0.29 of 100 is 29, whatever its binary form.
    return max(0, min(math.floor(share * contributors + 1e-9), (contributors - 1) // 2))


def plan(rule: Rule, distances: Distances, weights: Sequence[float], share: float = SHARE) -> Plan:
    """Between the passes.

    Whoever sent NaN or Inf, or a weight that is not positive and finite, is excluded from everything, and f is counted
    among those who are left: of share n bad ones, e of them excluded, at most share (n - e) remain.

    Args:
        weights: of the contributors, in any unit; a robust rule believes at most twice their lower median.
        share: of the contributors that may be bad.
    """
    if len(weights) != len(distances.finite):
        raise ValueError(f"{len(weights)} weights of {len(distances.finite)} contributors")
    stated = [float(weight) for weight in weights]
    usable = [row for row, weight in enumerate(stated) if distances.finite[row] and 0.0 < weight < math.inf]
    f = tolerated(share, len(usable))
    if not usable:
        return Plan(np.zeros((0, len(stated))), np.zeros(0, np.int64))
    typical = sorted(stated[row] for row in usable)[(len(usable) - 1) // 2]
    # Bounded below, or a tiny weight would weigh nothing; and above, so that all masses together are exact in a double.
    masses = [int(min(max(stated[row] / typical, 1.0 / UNIT), UNIT) * UNIT + 0.5) for row in usable]
    rows = np.eye(len(stated))[usable]
    return rule(Points(rows, distances.squared[np.ix_(usable, usable)], np.array(masses, np.int64)), f)


def together(weights: Sequence[float]) -> float:
    """What contributors weigh together, none of them more than a rule believes, and at most everything."""
    if not weights:
        return 0.0
    typical = sorted(weights)[(len(weights) - 1) // 2]
    return min(1.0, math.fsum(min(weight, HEAVIEST * typical) for weight in weights))


def aggregate(rule: Rule, rows: Matrix, weights: Sequence[float], share: float = SHARE) -> Doubles:
    """Both passes over increments that are at hand in one piece, shape (n, d)."""
    distances = Distances(len(rows))
    distances.add(rows)
    return plan(rule, distances, weights, share).combine(rows)


# -- sums in an order of our own --------------------------------------------------------------------------------------


def _sum(values: Doubles) -> Doubles:
    """Of each row: the second half is added to the first until one column is left, whatever vectors a processor has."""
    width = (values.shape[1] + 1) // 2
    sums = values[:, :width].copy()
    sums[:, : values.shape[1] - width] += values[:, width:]
    while width > 1:
        half = (width + 1) // 2
        sums[:, : width - half] += sums[:, half:width]
        width = half
    return sums[:, 0] if width else np.zeros(len(values))


def _times(left: Doubles, right: Doubles) -> Doubles:
    """The matrix product, terms added in order of the inner index."""
    product: Doubles = np.zeros((left.shape[0], right.shape[1]))
    for inner in range(left.shape[1]):
        product += left[:, inner, None] * right[inner]
    return product


def _between(coefficients: Doubles, squared: Doubles) -> Doubles:
    """Squared distances between affine combinations: -1/2 u^T D u, where u is the difference of two rows, sums to 0."""
    between = np.empty((len(coefficients), len(coefficients)))
    for row, combination in enumerate(coefficients):
        apart = coefficients - combination
        between[row] = -0.5 * _sum(apart * _times(apart, squared))
    return np.maximum(between, 0.0)


def _median(values: Doubles, masses: Masses) -> float:
    """The least value that half of the mass does not exceed."""
    order = np.argsort(values, kind="stable")
    reached = 2 * np.cumsum(masses[order]) >= masses.sum()
    return float(values[order[int(np.argmax(reached))]])


def _average(points: Points, masses: Masses) -> Plan:
    return Plan(_times((masses / masses.sum())[None], points.combination), np.ones(1, np.int64))
