"""Robust aggregation: one vector from the increments of many contributors, some of them bad (algorithms section 8).

A rule compares whole vectors, but increments come chunk by chunk. It therefore runs in two passes. The first pass adds
up the `Distances` between contributors over all chunks. `plan` then decides once which rows count and how much. The
second pass gives each chunk to `Plan.combine`. Between the passes nothing larger than n x n is kept:

    nearest neighbours      y_i = weighted mean of the n - f rows nearest to x_i, itself included (NNM)
    geometric median        an affine combination of the rows; the distances between the rows give the distances to it:
                            z = sum_j l_j x_j, sum_j l_j = 1
                            ||x_i - z||^2 = sum_j l_j ||x_i - x_j||^2 - 1/2 sum_jk l_j l_k ||x_j - x_k||^2
    trimmed mean            by coordinate, in the second pass

**Replicas that see the same chunks in the same order compute the same bits on every processor.** The code uses only
+ - * /, sqrt, comparisons and stable sorts, elementwise and in float64. IEEE 754 fixes the result of each, and none are
fused. `_sum` and `_times` fix the order of every sum, because numpy and BLAS choose an order by processor. Masses are
integers. A tie goes to the lower row.

References: NNM and (f, kappa)-robustness: Allouah et al. 2023, arXiv 2302.01772. Trimmed mean: Yin et al. 2018, arXiv
1803.01498. Smoothed Weiszfeld: Pillutta, Kakade & Harchaoui 2019, arXiv 1912.13445. No peer, message, codec or outer
step belongs here.
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
    "tolerated",
    "total_weight",
    "trimmed_mean",
]

Doubles: TypeAlias = NDArray[np.float64]
Masses: TypeAlias = NDArray[np.int64]
Matrix: TypeAlias = NDArray[np.floating]
"""one row for each contributor, shape (n, d)"""

SHARE: Final = 0.2
"""default share of bad contributors: f = floor(SHARE n), so 0 for fewer than five contributors"""
STRIP: Final = 4096
"""parameters of one sum, so that a strip of all rows stays in the cache. All replicas must use the same value"""
UNIT: Final = 2**20
"""mass of a contributor of median weight"""
HEAVIEST: Final = 2
"""largest weight that a robust rule believes, in medians: a sender states its own weight"""
ITERATIONS: Final = 32
"""iterations of Weiszfeld, each on n x n numbers"""
SMOOTHING: Final = 1e-6
"""nu, relative to the median distance from the most central row"""
FAR: Final = 4096.0
"""largest distance that counts in a geometric median, in median distances. A row further away could pull by its mass at
most, and its squared distance would cost the other distances all their digits"""


class Distances:
    """Squared distances between n contributors, added up chunk by chunk.

    All replicas add the same chunks in the same order, with contributors sorted by id. A contributor has one row: the
    sum of all its increments. Costs about 3 ns of one core for each parameter and pair of contributors.
    """

    def __init__(self, contributors: int) -> None:
        self.squared: Doubles = np.zeros((contributors, contributors))
        self.finite: NDArray[np.bool_] = np.ones(contributors, np.bool_)
        """by contributor, whether all its values were finite; False excludes it"""

    def exclude(self, row: int) -> None:
        """Exclude a contributor whose increment is malformed."""
        self.finite[row] = False

    def add(self, rows: Matrix) -> None:
        """Add one chunk.

        Args:
            rows: increments of all contributors on the chunk, shape (n, d).

        Raises:
            ValueError: another number of rows.
        """
        if rows.ndim != 2 or len(rows) != len(self.finite):
            raise ValueError(f"increments of shape {rows.shape} for {len(self.finite)} contributors")
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
    """Affine combinations of the rows: the rows themselves, or mixtures of them."""

    combination: Doubles
    """coefficients of each point, shape (points, n); each row sums to 1"""
    squared: Doubles
    """squared distances between points, shape (points, points)"""
    masses: Masses
    """integer weights, so that no rounding error leaves part of a trimmed row"""

    def believed(self) -> Masses:
        """The masses, each cut to `HEAVIEST` medians, so that no sender outweighs the others by its own statement."""
        return np.minimum(self.masses, HEAVIEST * UNIT)

    def mixed(self, coefficients: Doubles) -> Points:
        """New points as affine combinations of these, with the same masses.

        Args:
            coefficients: shape (new points, points).
        """
        return Points(_times(coefficients, self.combination), _between(coefficients, self.squared), self.masses)


@dataclass(frozen=True)
class Plan:
    """The decision of a rule. `combine` carries it out on a chunk."""

    combination: Doubles
    """coefficients of the averaged points, shape (points, n); zero for an excluded contributor"""
    masses: Masses
    """masses of the points"""
    trim: int = 0
    """mass cut off at each end of each coordinate, less than half of the total"""

    def combine(self, rows: Matrix) -> Doubles:
        """Aggregate one chunk.

        Args:
            rows: increments of all n contributors, shape (n, d), as given to `Distances.add`.

        Returns:
            A weighted mean (not a sum), shape (d,). Zero if every contributor is excluded.
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
        # One row for each coordinate, because numpy sorts short contiguous rows fastest. Adding 0.0 removes the
        # sign of a zero.
        values = np.ascontiguousarray(points.T) + 0.0
        order = np.argsort(values, axis=1, kind="stable")
        values = np.take_along_axis(values, order, axis=1)
        above = np.cumsum(self.masses[order], axis=1)
        below = above - self.masses[order]
        kept = np.minimum(above, above[:, -1:] - self.trim) - np.maximum(below, self.trim)
        np.maximum(kept, 0, out=kept)
        # A trimmed value may be huge, but it is finite, so zero times it is zero.
        values *= kept
        return _sum(values) / float(self.masses.sum() - 2 * self.trim)


Rule: TypeAlias = Callable[[Points, int], Plan]
"""A decision for n points of which f may be bad, 2 f < n."""


def mean(points: Points, f: int) -> Plan:
    """The weighted mean. It is not robust: one bad contributor can move it to any place."""
    return _average(points, points.masses)


def trimmed_mean(points: Points, f: int) -> Plan:
    """By coordinate: the mean without the lowest and the highest values that f contributors may have sent.

    Each end loses the *mass* of the f heaviest points. If that would leave nothing, the weighted median stays. Sparse
    increments must be mixed first, because trimming leaves mostly their zeros. kappa = 6 f / (n - 2 f) (1 + f / (n - 2
    f)) at equal weights (Allouah et al. 2023).
    """
    merged: dict[bytes, int] = {}
    masses: list[int] = []
    rows: list[int] = []
    believed = points.believed()
    for row, mass in enumerate(believed):
        # Mixing gives equal points to contributors with equal neighbours. The second pass mixes each only once.
        place = merged.setdefault(points.combination[row].tobytes(), len(rows))
        if place == len(rows):
            rows.append(row)
            masses.append(0)
        masses[place] += int(mass)
    heaviest = sum(sorted(believed.tolist())[len(believed) - f :])
    return Plan(points.combination[rows], np.array(masses, np.int64), min(heaviest, (sum(masses) - 1) // 2))


def geometric_median(points: Points, f: int) -> Plan:
    """The point with the least weighted sum of distances to all points, by smoothed Weiszfeld iteration.

    It needs no f, and tolerates bad points with less than half of the mass. kappa = 4 (1 + f / (n - 2 f))^2 at equal
    weights (Allouah et al. 2023).
    """
    masses = points.believed()
    if len(masses) == 2:  # Every point between the two is a median. The mean hears both.
        return _average(points, masses)
    apart = np.sqrt(points.squared)
    central = int(np.argmin(_sum(apart * masses)))
    near = _median(apart[central], masses)
    if near == 0.0:  # At least half of the mass is in one place, which is the median.
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
    """Apply `rule` to mixed points: each is the weighted mean of its n - f nearest points, itself included.

    At equal weights a (f, kappa)-robust rule becomes (f, 8 f / (n - f) (kappa + 1))-robust (Allouah et al. 2023): for
    any n - f contributors, the result is within sqrt(8 f / (n - f) (kappa + 1)) standard deviations of their mean.
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
    """f = floor(share n), but less than half of the contributors.

    Raises:
        ValueError: `share` is not in [0, 1/2).
    """
    if not 0.0 <= share < 0.5:
        raise ValueError(f"the share of bad contributors is {share}, allowed 0 to less than 1/2")
    # The small term makes 0.29 of 100 give 29, in spite of its binary form.
    return max(0, min(math.floor(share * contributors + 1e-9), (contributors - 1) // 2))


def plan(rule: Rule, distances: Distances, weights: Sequence[float], share: float = SHARE) -> Plan:
    """Decide between the passes which rows count.

    A contributor is excluded if it sent NaN or Inf, or its weight is not positive and finite. f is floor(share n) of
    the contributors that remain: if e of share n bad ones are excluded, at most share (n - e) bad ones remain.

    Args:
        weights: one for each contributor, in any unit. A robust rule believes at most twice their lower median.
        share: share of the contributors that may be bad.

    Raises:
        ValueError: another number of weights, or a share outside [0, 1/2).
    """
    if len(weights) != len(distances.finite):
        raise ValueError(f"{len(weights)} weights for {len(distances.finite)} contributors")
    stated = [float(weight) for weight in weights]
    usable = [row for row, weight in enumerate(stated) if distances.finite[row] and 0.0 < weight < math.inf]
    f = tolerated(share, len(usable))
    if not usable:
        return Plan(np.zeros((0, len(stated))), np.zeros(0, np.int64))
    typical = sorted(stated[row] for row in usable)[(len(usable) - 1) // 2]
    # The lower bound keeps a tiny weight above zero. The upper bound keeps the sum of masses exact in a double.
    masses = [int(min(max(stated[row] / typical, 1.0 / UNIT), UNIT) * UNIT + 0.5) for row in usable]
    rows = np.eye(len(stated))[usable]
    return rule(Points(rows, distances.squared[np.ix_(usable, usable)], np.array(masses, np.int64)), f)


def total_weight(weights: Sequence[float]) -> float:
    """Sum of the contributors' weights, each cut to HEAVIEST medians; at most 1."""
    if not weights:
        return 0.0
    typical = sorted(weights)[(len(weights) - 1) // 2]
    return min(1.0, math.fsum(min(weight, HEAVIEST * typical) for weight in weights))


def aggregate(rule: Rule, rows: Matrix, weights: Sequence[float], share: float = SHARE) -> Doubles:
    """Both passes over whole increments, shape (n, d). Returns shape (d,)."""
    distances = Distances(len(rows))
    distances.add(rows)
    return plan(rule, distances, weights, share).combine(rows)


# -- sums in a fixed order --------------------------------------------------------------------------------------------


def _sum(values: Doubles) -> Doubles:
    """Sum of each row: add the second half to the first until one column is left. The order is the same everywhere."""
    width = (values.shape[1] + 1) // 2
    sums = values[:, :width].copy()
    sums[:, : values.shape[1] - width] += values[:, width:]
    while width > 1:
        half = (width + 1) // 2
        sums[:, : width - half] += sums[:, half:width]
        width = half
    return sums[:, 0] if width else np.zeros(len(values))


def _times(left: Doubles, right: Doubles) -> Doubles:
    """The matrix product, with terms added in the order of the inner index."""
    product: Doubles = np.zeros((left.shape[0], right.shape[1]))
    for inner in range(left.shape[1]):
        product += left[:, inner, None] * right[inner]
    return product


def _between(coefficients: Doubles, squared: Doubles) -> Doubles:
    """Squared distances between affine combinations: -1/2 u^T D u, where u is a difference of coefficient rows."""
    between = np.empty((len(coefficients), len(coefficients)))
    for row, combination in enumerate(coefficients):
        apart = coefficients - combination
        between[row] = -0.5 * _sum(apart * _times(apart, squared))
    return np.maximum(between, 0.0)


def _median(values: Doubles, masses: Masses) -> float:
    """The lower weighted median: the least value up to which at least half of the mass lies."""
    order = np.argsort(values, kind="stable")
    reached = 2 * np.cumsum(masses[order]) >= masses.sum()
    return float(values[order[int(np.argmax(reached))]])


def _average(points: Points, masses: Masses) -> Plan:
    return Plan(_times((masses / masses.sum())[None], points.combination), np.ones(1, np.int64))
