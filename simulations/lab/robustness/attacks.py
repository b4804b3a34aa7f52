"""Attacks of campaign T13: what a bad peer may send, each by its paper's formula, and what the attack must know.

An attack has three methods. `anchor` is the anchor that a bad peer presents in an exchange. By default it follows from
`increments`, which turns honest rows into bad rows, as the papers state it. `labels` is for attacks on data; their
sender follows the protocol. A method that an attack does not override is honest.

Increments are pseudo-gradients D, so a model moves by -D. Colluders send the same row.

`python -m simulations.lab.robustness.convex` prints what every attack costs with and without clipping. This module
holds no defence and no training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIE", "ATTACKS", "IPM", "Attack", "Dissensus", "LabelFlip", "Meeting", "NaN", "Noise", "Scaled", "Sleeper"]

Matrix: TypeAlias = NDArray[np.floating[Any]]
Vector: TypeAlias = NDArray[np.floating[Any]]
Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What an omniscient bad peer knows before an exchange."""

    own: Vector
    """the anchor it would have if honest, shape (d,)"""
    start: Vector
    """`own` before its last round of training"""
    partner: Vector
    """the anchor of the honest partner"""
    honest: Matrix
    """the anchors of all honest peers, shape (h, d)"""
    bad: int
    """number of bad peers, itself included"""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack that is honest in everything."""

    knows: str = field(default="itself", init=False)
    """what it needs: "itself" (its own data) or "honest" (what all honest peers send, before they send it)"""

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        """The rows that the bad peers send in a round, counted from 0.

        Args:
            honest: increments of the honest peers, shape (h, d).
            own: increments that the bad peers would send if honest, shape (b, d).

        Returns:
            A new matrix, shape (b, d).
        """
        return own.copy()

    def anchor(self, meeting: Meeting, round: int, random: np.random.Generator) -> Vector:
        """The anchor that one bad peer presents, a new vector, shape (d,).

        By default it is the anchor of a peer whose movement since `start` is the increment it would send.
        """
        own = np.tile(meeting.start - meeting.own, (meeting.bad, 1))
        sent = self.increments(meeting.start - meeting.honest, own, round, random)
        told: Vector = meeting.start - sent[0]
        return told

    def labels(self, labels: Labels, classes: int, round: int) -> Labels:
        """The labels that a bad peer trains on in place of these."""
        return labels


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """scale * D: -1 flips the sign, 100 exaggerates an honest direction."""

    scale: float

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        sent: Matrix = own * own.dtype.type(self.scale)
        return sent


@dataclass(frozen=True, kw_only=True)
class NaN(Attack):
    """One value in a thousand is NaN or infinite: enough to poison a sum, too few for a check of samples."""

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        sent = own.copy()
        sent[:, ::1000] = np.nan
        sent[:, 1::2000] = np.inf
        return sent


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """D + scale ||D|| / sqrt(d) N(0, 1), drawn anew by each bad peer in each round."""

    scale: float = 10.0

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        size = np.sqrt(np.mean(own.astype(np.float64) ** 2, axis=1, keepdims=True))
        sent: Matrix = (own + self.scale * size * random.standard_normal(own.shape)).astype(own.dtype)
        return sent


@dataclass(frozen=True, kw_only=True)
class ALIE(Attack):
    """A Little Is Enough (Baruch, Baruch & Goldberg 2019, arXiv 1902.06156): mean - z std, by coordinate.

    It takes the largest z at which enough honest rows are further out than the bad rows, so that these look like a
    majority:

        s = floor(n / 2 + 1) - b supporters,   z_max = the z with Phi(z) = (n - b - s) / (n - b)

    For n = 16 it is 0.10 at b = 3 and 0.52 at b = 6: few colluders can hide only small changes. A given `z` (1.5 in the
    paper's experiments) hides less and pushes harder.
    """

    knows: str = field(default="honest", init=False)
    z: float | None = None

    @staticmethod
    def z_max(n: int, bad: int) -> float:
        supporters = n // 2 + 1 - bad
        share = (n - bad - supporters) / (n - bad)
        if supporters <= 0:
            raise ValueError(f"{bad} of {n} need no supporters")
        return max(0.0, NormalDist().inv_cdf(share))

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        z = self.z_max(len(honest) + len(own), len(own)) if self.z is None else self.z
        pushed = honest.mean(axis=0) - z * honest.std(axis=0, ddof=1)
        return np.tile(pushed.astype(own.dtype), (len(own), 1))


@dataclass(frozen=True, kw_only=True)
class IPM(Attack):
    """Inner product manipulation (Xie, Koyejo & Gupta 2019, arXiv 1903.03936): -epsilon mean.

    A small epsilon (0.1) hides near the honest rows and only slows training. From h / b on, the mean of all rows points
    uphill. None means twice that, which makes the mean the exact opposite.
    """

    knows: str = field(default="honest", init=False)
    epsilon: float | None = 0.1

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        epsilon = 2.0 * len(honest) / len(own) if self.epsilon is None else self.epsilon
        turned = -epsilon * honest.mean(axis=0)
        return np.tile(turned.astype(own.dtype), (len(own), 1))


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Trains on label classes - 1 - y and follows the protocol (Biggio et al. 2012 for the idea)."""

    def labels(self, labels: Labels, classes: int, round: int) -> Labels:
        flipped: Labels = classes - 1 - labels
        return flipped


@dataclass(frozen=True, kw_only=True)
class Dissensus(Attack):
    """Pushes its partner away from the other honest peers (He, Karimireddy & Jaggi 2022, arXiv 2202.01545):

        x_bad = x_i - epsilon sum_{k honest} W_ik (x_k - x_i) / sum_{j bad} W_ij

    with equal W of all peers that i may meet. At epsilon 1 the bad neighbours cancel what the honest ones do for i.
    Above 1, i drifts off.
    """

    knows: str = field(default="honest", init=False)
    epsilon: float = 1.5

    def anchor(self, meeting: Meeting, round: int, random: np.random.Generator) -> Vector:
        target = meeting.partner
        towards = (meeting.honest - target).sum(axis=0) / meeting.bad
        parted: Vector = (target - self.epsilon * towards).astype(target.dtype)
        return parted


@dataclass(frozen=True, kw_only=True)
class Sleeper(Attack):
    """Honest for `rounds` rounds, to earn trust, then `attack`."""

    attack: Attack
    rounds: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "knows", self.attack.knows)

    def _now(self, round: int) -> Attack:
        return Attack() if round < self.rounds else self.attack

    def increments(self, honest: Matrix, own: Matrix, round: int, random: np.random.Generator) -> Matrix:
        return self._now(round).increments(honest, own, round, random)

    def anchor(self, meeting: Meeting, round: int, random: np.random.Generator) -> Vector:
        return self._now(round).anchor(meeting, round, random)

    def labels(self, labels: Labels, classes: int, round: int) -> Labels:
        return self._now(round).labels(labels, classes, round)


ATTACKS: Final[Mapping[str, Attack]] = {
    "none": Attack(),
    "sign flip": Scaled(scale=-1.0),
    "sign flip x10": Scaled(scale=-10.0),
    "x100": Scaled(scale=100.0),
    "nan": NaN(),
    "noise": Noise(),
    "alie": ALIE(),
    "alie z=1.5": ALIE(z=1.5),
    "ipm": IPM(),
    "ipm reversing": IPM(epsilon=None),
    "label flip": LabelFlip(),
    "dissensus": Dissensus(),
    "sleeper": Sleeper(attack=IPM(epsilon=None)),
}
