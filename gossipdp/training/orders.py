"""What a session tells its training process to do between the live tensors and the shared memory. Plain data."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.link import Moment

__all__ = [
    "MOMENTS",
    "Drain",
    "Keep",
    "Load",
    "Order",
    "Recall",
    "Renew",
    "Snapshot",
    "Tell",
    "Write",
    "moment_of",
]


class Write(NamedTuple):
    """into := the live parameters, all of them: the daemon has a region, and wants to know the model it is of."""

    into: NDArray[np.float32]


class Load(NamedTuple):
    """x := values, on the whole flat vector: a session begins, at this clock of the network, with what
    goes with it.

    reset: the optimizer's state begins anew, too.
    """

    session: int
    values: NDArray[np.float32]
    clock: int
    carried: Carried = NOTHING
    reset: bool = False


class Keep(NamedTuple):
    """The live parameters stay: the daemon has made them the model, and a session begins at this clock."""

    session: int
    clock: int


class Renew(NamedTuple):
    """The model is another's: what is not exchanged := state."""

    session: int
    state: Buffer


class Drain(NamedTuple):
    """x += values on these spans (start, stop) of the flat vector."""

    session: int
    slot: int
    spans: tuple[tuple[int, int], ...]
    values: NDArray[np.float32]


class Snapshot(NamedTuple):
    """into := the live parameters, in which slots up to `applied` are."""

    session: int
    number: int
    applied: int
    into: NDArray[np.float32]


class Tell(NamedTuple):
    """into := one of the optimizer's moments, `moment_of(number)`."""

    session: int
    number: int
    into: NDArray[np.float32]


class Recall(NamedTuple):
    """One of the optimizer's moments := values, on the whole flat vector; it had made so many steps."""

    which: Moment
    steps: int
    values: NDArray[np.float32]


Order: TypeAlias = Write | Load | Keep | Renew | Drain | Snapshot | Tell


MOMENTS: Final[tuple[Moment, Moment]] = ("second", "first")
"""in the order in which they travel"""


def moment_of(number: int) -> Moment:
    """Which of the moments is told under this number."""
    return MOMENTS[(number + 1) % 2]
