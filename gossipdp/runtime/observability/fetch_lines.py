"""Lines about a fetch that lasts: how much of the model or of its moments has come, the rate, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gossipdp.protocol import events
from gossipdp.runtime.progress import Progress, Say

__all__ = ["FetchLines"]

EACH: Final = 2
"""bytes a parameter of a model in bfloat16, and of both moments"""


class FetchLines:
    """Follows the events of one peer.

    Args:
        say: gets each line.
        clock: seconds.
    """

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._what = ""
        """what is being fetched; "" for nothing"""
        self._chunks = 0
        self._progress: Progress | None = None

    def observe(self, event: events.Event, parameters: int) -> None:
        """An event of the peer. parameters: of the model."""
        match event:
            case events.TransferProgress(_, chunks, of):
                self._came("fetching the model", chunks, of, EACH * parameters)
            case events.MomentsProgress(_, chunks, of):
                self._came("fetching the optimizer's moments", chunks, of, EACH * parameters)
            case events.StateReady() | events.ResyncEnded():
                self._what = ""

    def _came(self, what: str, chunks: int, of: int, total: int) -> None:
        if self._progress is None or what != self._what or chunks < self._chunks:
            self._what, self._chunks = what, chunks
            self._progress = Progress(what, total * (of - chunks) // of, self._say, self._clock)
        self._progress.advance(total * (chunks - self._chunks) // of)
        self._chunks = chunks
