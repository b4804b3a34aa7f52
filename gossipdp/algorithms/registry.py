"""The registry of algorithms: the arithmetic of each strategy, by the strategy's name."""

from __future__ import annotations

from typing import Final

from gossipdp.algorithms.algorithm import Algorithm
from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.algorithms.pairwise import Pairwise

__all__ = ["ALGORITHMS", "Epidemic", "Pairwise"]

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {"pairwise": Pairwise, "epidemic": Epidemic}
