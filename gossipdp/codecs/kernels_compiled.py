"""How kernels are compiled. One thread, without the GIL, and never with fast-math: see `kernels`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

__all__ = ["kernel"]

P = ParamSpec("P")
R = TypeVar("R")

OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` at its first call, and keep the outcome if there is a place for it.

    A service without a home may find none, and its package's folder read-only: then each process compiles anew.
    """
    try:
        compiled: Callable[P, R] = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:
        compiled = numba.njit(**OPTIONS)(function)
    return compiled
