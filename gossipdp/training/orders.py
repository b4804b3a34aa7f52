"""What a session asks its training process to move between the live tensors and the shared memory. Plain data."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.wire.encoding import Buffer

__all__ = [
    "Drain",
    "Keep",
    "Load",
    "LoadMoments",
    "LoadState",
    "Order",
    "SendMoments",
    "Snapshot",
    "Write",
]


class Write(NamedTuple):
    """into := the live parameters. The daemon has shared its memory, and compares models."""

    into: NDArray[np.float32]


class Load(NamedTuple):
    """x := values, on the whole flat vector. A session begins with this model, its clock and its carried state.

    reset: the optimizer's state begins anew, too.
    """

    session: int
    values: NDArray[np.float32]
    clock: int
    carried: Carried = NOTHING
    reset: bool = False


class Keep(NamedTuple):
    """The live parameters stay. The daemon made them the model, and a session begins at this clock."""

    session: int
    clock: int


class LoadState(NamedTuple):
    """Carried state := state. The daemon fetched another model."""

    session: int
    state: Buffer


class Drain(NamedTuple):
    """x += values on these spans [start, stop) of the flat vector."""

    session: int
    slot: int
    spans: tuple[tuple[int, int], ...]
    values: NDArray[np.float32]


class Snapshot(NamedTuple):
    """into := the live parameters, plus what stands there on the spans `plus`. It then holds slots up to `applied`.

    plus: spans [start, stop) of a slot that the live parameters do not hold.
    """

    session: int
    number: int
    applied: int
    into: NDArray[np.float32]
    plus: tuple[tuple[int, int], ...] = ()


class SendMoments(NamedTuple):
    """into := both of the optimizer's moments, encoded (`codecs.moments`)."""

    session: int
    number: int
    into: NDArray[np.uint8]


class LoadMoments(NamedTuple):
    """Both of the optimizer's moments := what is encoded in a buffer. steps: optimizer steps behind them."""

    steps: int
    encoded: NDArray[np.uint8]


Order: TypeAlias = Write | Load | Keep | LoadState | Drain | Snapshot | SendMoments
