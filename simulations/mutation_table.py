"""All the mistakes that `mutations` makes, one at a time. None stands here: see `mistakes`, one table a subject."""

from __future__ import annotations

from typing import Final

from simulations.mistakes import exchange, increments, judging, members, rumours, states
from simulations.mistakes.base import TESTS, Mutation

__all__ = ["MUTATIONS", "TESTS", "Mutation"]

MUTATIONS: Final = (
    *exchange.MUTATIONS,
    *members.MUTATIONS,
    *states.MUTATIONS,
    *rumours.MUTATIONS,
    *increments.MUTATIONS,
    *judging.MUTATIONS,
)
