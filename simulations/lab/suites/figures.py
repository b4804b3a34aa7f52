"""Figures of suites: means over known seeds, their text, and the marks they meet.

    >>> ours, theirs = Figure([1.9, 1.8]), Figure([1.7, 1.7])
    >>> formatted(ours - theirs, 2)
    '0.15 (0.10 to 0.20; 2 seeds)'

Arithmetic works seed by seed, so a difference has a spread of its own. A failed seed is NaN, and so is every mean that
contains it. NaN meets no mark. This module knows no run and no arm.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from simulations.check import Check

__all__ = ["Check", "Figure", "Reported", "check", "formatted", "reported"]

FEW: Final = 3
"""fewest seeds whose number is not stated"""
COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Reported:
    """A figure without a mark."""

    name: str
    measured: str


class Figure(float):
    """Mean of the values of seeds 0, 1, ...; NaN if one of them failed, or there is none.

    Arithmetic of two figures uses the seeds that both have.
    """

    each: tuple[float, ...]

    def __new__(cls, each: Iterable[float]) -> Figure:
        values = tuple(map(float, each))
        # fmean would raise for infinities of both signs.
        made = super().__new__(cls, sum(values) / len(values) if values else math.nan)
        made.each = values
        return made

    def _with(self, other: float, of: Callable[[float, float], float]) -> Figure:
        others = other.each if isinstance(other, Figure) else repeat(float(other))
        return Figure(of(a, b) for a, b in zip(self.each, others, strict=False))

    def __add__(self, other: float, /) -> Figure:
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: float, /) -> Figure:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: float, /) -> Figure:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: float, /) -> Figure:
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, other: float, /) -> Figure:
        return self._with(other, _quotient)

    def __rtruediv__(self, other: float, /) -> Figure:
        return self._with(other, lambda a, b: _quotient(b, a))

    def __neg__(self) -> Figure:
        return Figure(-value for value in self.each)

    def __abs__(self) -> Figure:
        return Figure(map(abs, self.each))


def _quotient(a: float, b: float) -> float:
    return a / b if b else math.nan


def formatted(values: float | Sequence[float], digits: int = 3, unit: str = "") -> str:
    """Text of a figure: mean, range, number of seeds if few, and failed seeds.

    A plain number is formatted alone.
    """
    if isinstance(values, Figure):
        each: Sequence[float] = values.each
    elif isinstance(values, Sequence):
        each = values
    else:
        return _number(values, digits) + unit
    if not each:
        return "failed"
    good = [value for value in each if not math.isnan(value)]
    if not good:
        return _number(math.nan, digits)
    spread = [f"{_number(min(good), digits)} to {_number(max(good), digits)}"] if max(good) != min(good) else []
    if len(each) < FEW:
        spread.append("1 seed" if len(each) == 1 else f"{len(each)} seeds")
    if len(good) < len(each):
        spread.append(f"{len(each) - len(good)} of {len(each)} seeds failed")
    return f"{_number(Figure(good), digits)}{unit}" + (f" ({'; '.join(spread)})" if spread else "")


def _number(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return {math.inf: "never", -math.inf: "-inf"}.get(value, "-")
    return f"{value:,.{digits}f}" if abs(value) < 10_000 else f"{value:,.0f}"


def check(name: str, must: str, measured: float, digits: int = 3, *, replicas: float | None = None) -> Check:
    """A mark. It is not met if a seed failed.

    Args:
        must: the condition on the mean, such as "<= 0.05".
        replicas: the same figure of single replicas, shown beside it.
    """
    sign, _, limit = must.partition(" ")
    if sign not in COMPARED:
        raise ValueError(f"a mark is one of {', '.join(COMPARED)} and a number, not {must!r}")
    return Check(name, must, _beside(measured, replicas, digits), COMPARED[sign](measured, float(limit)))


def reported(name: str, measured: float, *, replicas: float | None = None) -> Reported:
    return Reported(name, _beside(measured, replicas))


def _beside(measured: float, replicas: float | None, digits: int = 3) -> str:
    alone = "" if replicas is None else f"; single replicas {formatted(replicas, digits)}"
    return formatted(measured, digits) + alone
