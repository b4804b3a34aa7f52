"""The decorator that compiles a kernel: one thread, without the GIL, and never with fast-math (see `kernels`)."""

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
    """Compile `function` at its first call, and cache the result if a folder is writable.

    If neither the package's folder nor a home is writable, each process compiles again.
    """
    compiled: Any = numba.njit(**OPTIONS)(function)
    with suppress(RuntimeError):
        compiled._cache = _Cache(function)
    return cast(Callable[P, R], compiled)


class _Cache(Untyped):  # type: ignore[misc]
    """numba's cache, cleared when a file in it is damaged, as after a power cut."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # unpickling a damaged file may raise anything
            log.warning("GD-603 compiled kernels in %s are damaged and are compiled again: %s", self.cache_path, error)
            try:
                self.flush()
            except OSError:
                self.disable()
            return None
