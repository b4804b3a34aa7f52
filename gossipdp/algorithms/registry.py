"""The registry of algorithms: the arithmetic of each strategy, by the strategy's name."""

from __future__ import annotations

from typing import Final, TypeAlias

from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.algorithms.pairwise import Pairwise

__all__ = ["ALGORITHMS", "Algorithm", "Epidemic", "Pairwise"]

Algorithm: TypeAlias = Pairwise | Epidemic

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {"pairwise": Pairwise, "epidemic": Epidemic}
