"""Variants of the outer momentum. Late averages, and few long rounds, need less momentum than B1's setting.

This module defines no arm and no mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from simulations.lab.suites.base import Outcome, Table
from simulations.lab.suites.figures import formatted
from simulations.lab.suites.tables import best

__all__ = ["MUS", "Clocked", "at_momenta", "best_momentum", "momenta_table"]

Clocked: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any], int]]
"""method, options and H, by label"""

MUS: Final = (0.0, 0.4, 0.6, 0.8)


def at_momenta(ways: Clocked) -> dict[str, tuple[str, dict[str, Any], int]]:
    """Every variant at every momentum."""
    return {
        _label(label, mu): (method, {**options, "momentum" if method == "pairwise" else "mu": mu}, every)
        for label, (method, options, every) in ways.items()
        for mu in MUS
    }


def _label(label: str, mu: float) -> str:
    return f"{label}, mu {mu:g}"


def best_momentum(label: str, usual: Outcome, varied: Mapping[str, Outcome]) -> tuple[str, Outcome]:
    """The best of `usual` and its variants of the momentum, with the suffix of its label."""
    found = {"": usual} | {f", mu {mu:g}": varied[_label(label, mu)] for mu in MUS if _label(label, mu) in varied}
    least = best(found)
    return least, found[least]


def momenta_table(title: str, outcomes: Mapping[str, Outcome], labels: Iterable[str]) -> Table:
    rows = [(label, *(_cell(outcomes[_label(label, mu)]) for mu in MUS)) for label in labels]
    return Table(title, ("loss (and of single replicas)", *(f"mu {mu:g}" for mu in MUS)), rows)


def _cell(outcome: Outcome) -> str:
    return f"{formatted(outcome.losses)}; {formatted(outcome.replica_loss)}"
