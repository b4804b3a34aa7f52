"""How kernels are compiled. One thread, without the GIL, and never with fast-math: see `kernels`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

__all__ = ["kernel"]

Untyped: Any = FunctionCache

log = logging.getLogger("gossipdp.codecs")

P = ParamSpec("P")
R = TypeVar("R")

OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` at its first call, and keep the outcome if there is a place for it.

    A service without a home may find none, and its package's folder read-only: then each process compiles anew.
    """
    compiled: Any = numba.njit(**OPTIONS)(function)
    with suppress(RuntimeError):
        compiled._cache = _Cache(function)
    return cast(Callable[P, R], compiled)


class _Cache(Untyped):  # type: ignore[misc]
    """numba's, which is begun anew where it is damaged: a power cut leaves empty files."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever unpickling a damaged file raises
            log.warning("GD-603 compiled kernels in %s are damaged, and are compiled anew: %s", self.cache_path, error)
            try:
                self.flush()
            except OSError:
                self.disable()
            return None
