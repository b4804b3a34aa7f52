"""Notices parameters that change although no step is counted: then nothing is exchanged (GD-321).

A thread looks at a few parameters now and then: at their memory, at torch's count of their changes and, on the CPU, at
some numbers, which `parameter.data` changes uncounted. It waits for no device. Nothing here may know a daemon.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Final, TypeAlias

from torch import nn

from gossipdp.training.boundaries import HOOKED
from gossipdp.training.tensors.schema import local, unwrap

__all__ = ["Uncounted"]

log = logging.getLogger("gossipdp.training")

LOOK: Final = 2.0
"""seconds between two looks"""
CHANGES: Final = 5
"""looks that find a change since the last step, before anything is said: an evaluation with averaged weights puts them
in and back"""
WITHIN: Final = 10.0
"""seconds since the last step, before anything is said"""
CLOSES_WITHIN: Final = 5.0
"""seconds that a look may take, at the most"""
AGAIN: Final = 600.0
"""seconds until it is said again"""
PARAMETERS: Final = 16
NUMBERS: Final = 4
"""looked at of each parameter on the CPU"""

_Seen: TypeAlias = list[tuple[object, ...]]


class Uncounted:
    """Args:

    model: what is attached.
    tell: called when it has been said, in the thread that looks.
    boundary: the code that runs between two steps; what changes meanwhile is no training.
    """

    def __init__(self, model: nn.Module, tell: Callable[[], None], boundary: CodeType) -> None:
        self._model, self._tell, self._quiet = unwrap(model), tell, {HOOKED, boundary}
        self.steps = 0
        """counted so far"""
        self._seen: _Seen = []
        self._steps = self._changes = 0
        self._since = self._said_at = -AGAIN
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipdp uncounted", daemon=True)

    def start(self) -> None:
        self._since = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """End, and wait for a look that is under way: a process that exits while another thread is in torch aborts."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSES_WITHIN)

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            try:
                self.look(time.monotonic())
            except Exception as error:  # of a model that is changed meanwhile, or of an unusual kind of tensor
                log.debug("parameters could not be looked at: %r", error)

    def look(self, now: float) -> None:
        """Compare the parameters with the last look; `now` in seconds."""
        if self._running():
            return
        before, self._seen = self._seen, self._look()
        if self.steps != self._steps:
            self._steps, self._changes, self._since = self.steps, 0, now
            return
        self._changes += bool(before) and before != self._seen
        if self._changes < CHANGES or now - self._since < WITHIN or now - self._said_at < AGAIN:
            return
        self._said_at = now
        log.warning(
            "GD-321 parameters change and no step is counted, for %.0f s: nothing is exchanged with the network; "
            "do: attach the optimizer whose step() is called, or call peer.step() after each update",
            now - self._since,
        )
        self._tell()

    def _look(self) -> _Seen:
        parameters = [each for each in self._model.parameters() if each.requires_grad]
        some = parameters[:: -(-len(parameters) // PARAMETERS) or 1]
        return [(each._version, local(each).data_ptr(), *_numbers(each)) for each in some]

    def _running(self) -> bool:
        """Does any thread make a step now? What changes in it is counted when it is over."""
        for frame in sys._current_frames().values():
            caller: FrameType | None = frame
            while caller is not None:
                if caller.f_code in self._quiet:
                    return True
                caller = caller.f_back
        return False


def _numbers(parameter: nn.Parameter) -> Iterator[float]:
    held = local(parameter)
    if held.is_cpu and held.numel():
        for place in range(NUMBERS):
            yield held[tuple(place * (size - 1) // (NUMBERS - 1) for size in held.shape)].item()
