"""Lines of JSON on a long run, printed as they become known: a run that is cut off still says something."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["Report"]


class Report:
    """Lines of the run, each with the seconds since its start."""

    def __init__(self, limit: float = math.inf) -> None:
        self._began, self._limit = time.monotonic(), limit

    @property
    def left(self) -> float:
        return self._limit - (time.monotonic() - self._began)

    def line(self, what: str, **figures: Any) -> None:
        at = time.monotonic() - self._began
        print(json.dumps({"at": round(at, 1), "what": what, **figures}), flush=True)

    @contextlib.contextmanager
    def phase(self, what: str, **figures: Any) -> Iterator[dict[str, Any]]:
        """Print how long the block takes, with what it adds to the dictionary that it gets."""
        began, found = time.monotonic(), dict(figures)
        yield found
        self.line(what, seconds=round(time.monotonic() - began, 2), **found)
