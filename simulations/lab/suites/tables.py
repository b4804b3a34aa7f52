"""Tables of outcomes: losses, curves, losses at equal bytes. Also which outcome is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from simulations.lab.core import Curve
from simulations.lab.suites.base import Outcome, Table
from simulations.lab.suites.figures import formatted, mean

__all__ = ["LOSSES", "best", "bytes_table", "curves_table", "in_time", "loss_cells"]

LOSSES: Final = ("loss", "single replicas", "finished model")
"""columns of `loss_cells`"""


def loss_cells(outcome: Outcome) -> tuple[str, str, str]:
    """Loss of the method's model, of single replicas, and of the model that the end of a run leaves.

    A method that leaves replicas far apart may have the better mean.
    """
    return formatted(outcome.losses), formatted(outcome.replica_losses), formatted(outcome.finished_losses)


def best(
    outcomes: Mapping[str, Outcome],
    labels: Iterable[str] | None = None,
    of: Callable[[Outcome], float] = lambda outcome: outcome.loss,
) -> str:
    """Label of the least value. NaN, as of a failed seed, loses against any number."""

    def height(label: str) -> tuple[bool, float]:
        value = of(outcomes[label])
        return math.isnan(value), value

    return min(outcomes if labels is None else labels, key=height)


def in_time(outcomes: Mapping[str, Outcome], clock: str) -> dict[str, Outcome]:
    """Outcomes that ended no later than that of label `clock`, a method that does not wait.

    A single round of another method may last longer than the whole time.
    """
    limit = 1.02 * mean(outcomes[clock].last(lambda point: point.seconds))
    return {
        label: outcome
        for label, outcome in outcomes.items()
        if not mean(outcome.last(lambda point: point.seconds)) > limit
    }


def curves_table(title: str, outcomes: Mapping[str, Outcome], note: str = "") -> Table:
    columns = ("method", *LOSSES, "bytes a parameter", "simulated s", "steps", "consensus distance")
    rows = [
        (
            label,
            *loss_cells(outcome),
            formatted(outcome.last(lambda point: point.bytes), 1),
            formatted(outcome.last(lambda point: point.seconds), 0),
            formatted(outcome.last(lambda point: point.steps), 0),
            formatted(outcome.last(lambda point: point.distance)),
        )
        for label, outcome in outcomes.items()
    ]
    return Table(title, columns, rows, note)


def bytes_table(outcomes: Mapping[str, Outcome], budgets: Sequence[float], *, replicas: bool = False) -> Table:
    """Loss after given bytes per parameter, interpolated; empty beyond the end of a run.

    Args:
        budgets: bytes per parameter.
        replicas: use single replicas, not the model.
    """

    def at(curve: Curve, budget: float) -> float:
        spent = [point.bytes for point in curve.points]
        losses = [point.replica_loss if replicas else point.loss for point in curve.points]
        return float(np.interp(budget, spent, losses)) if spent[0] <= budget <= spent[-1] else math.nan

    def cell(outcome: Outcome, budget: float) -> str:
        # A seed that received fewer bytes has not failed.
        within = not any(math.isnan(at(curve, budget)) for curve in outcome.curves)
        return formatted(outcome.each(lambda curve: at(curve, budget)) if within else math.nan)

    rows = [(label, *(cell(outcome, budget) for budget in budgets)) for label, outcome in outcomes.items()]
    return Table(
        f"Loss{' of single replicas' if replicas else ''} at equal bytes",
        ("method", *(f"{budget:g} B a parameter" for budget in budgets)),
        rows,
        "Losses during the run, at learning rates that have not fallen yet. A run that ended there would do better. "
        "The other tables have the losses at the end of the runs.",
    )
