"""Tables of outcomes: losses and curves. Also which outcome is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from simulations.lab.suites.base import Outcome, Table
from simulations.lab.suites.figures import Figure, formatted

__all__ = ["LOSSES", "best", "curves_table", "in_time", "loss_cells"]

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
    limit = 1.02 * Figure(outcomes[clock].last(lambda point: point.seconds))
    return {
        label: outcome
        for label, outcome in outcomes.items()
        if not Figure(outcome.last(lambda point: point.seconds)) > limit
    }


def curves_table(title: str, outcomes: Mapping[str, Outcome]) -> Table:
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
    return Table(title, columns, rows)
