"""Notices parameters that change although no step is counted. Nothing is exchanged then (GD-321).

A thread looks at a few parameters every `LOOK` seconds: at their address, at torch's count of changes and, on the CPU,
at some elements, because `parameter.data` changes them uncounted. It waits for no device. Nothing here knows a daemon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from torch import nn

from gossipdp.training.messages import log
from gossipdp.training.tensors.schema import local, unwrap

__all__ = ["Uncounted"]

LOOK: Final = 2.0
"""seconds between two looks"""
CHANGES: Final = 5
"""looks with a change since the last step before a warning; an evaluation with averaged weights makes two"""
WITHIN: Final = 10.0
"""seconds since the last step before a warning"""
CLOSES_WITHIN: Final = 5.0
"""seconds that `close` waits for a look"""
AGAIN: Final = 600.0
"""seconds between two warnings"""
PARAMETERS: Final = 16
"""parameters that a look compares, at most"""
ELEMENTS: Final = 4
"""elements compared of each parameter on the CPU"""

_Seen: TypeAlias = list[tuple[object, ...]]


class Uncounted:
    """The watching thread and what it saw last.

    Args:
        model: the attached model.
        report: called after a warning, in the watching thread.
        stepping: set while a step or a step boundary is under way. What changes then is counted afterwards.
    """

    def __init__(self, model: nn.Module, report: Callable[[], None], stepping: threading.Event) -> None:
        self._model, self._report, self._stepping = unwrap(model), report, stepping
        self._steps = 0
        """steps counted so far"""
        self._seen: _Seen = []
        self._steps_seen = self._changes = 0
        self._since = self._warned_at = -AGAIN
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipdp uncounted", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._since = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """End, and wait for a look under way: a process that exits while another thread is in torch aborts."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSES_WITHIN)

    def step_counted(self) -> None:
        """A step was counted."""
        self._steps += 1

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            try:
                self.look(time.monotonic())
            except Exception as error:  # the model changes meanwhile, or has an unusual kind of tensor
                log.debug("the parameters cannot be read: %r", error)

    def look(self, now: float) -> None:
        """Compare the parameters with the last look; `now` in seconds."""
        if self._stepping.is_set():
            return
        before, self._seen = self._seen, self._look()
        if self._steps != self._steps_seen:
            self._steps_seen, self._changes, self._since = self._steps, 0, now
            return
        self._changes += bool(before) and before != self._seen
        if self._changes < CHANGES or now - self._since < WITHIN or now - self._warned_at < AGAIN:
            return
        self._warned_at = now
        log.warning(
            "GD-321 parameters have changed for %.0f s, but no step was counted: nothing is exchanged with the "
            "network; do: attach the optimizer whose step() is called, or call peer.step() after each update",
            now - self._since,
        )
        self._report()

    def _look(self) -> _Seen:
        parameters = [each for each in self._model.parameters() if each.requires_grad]
        some = parameters[:: -(-len(parameters) // PARAMETERS) or 1]
        return [(each._version, local(each).data_ptr(), *_elements(each)) for each in some]


def _elements(parameter: nn.Parameter) -> Iterator[float]:
    held = local(parameter)
    if held.is_cpu and held.numel():
        for place in range(ELEMENTS):
            yield held[tuple(place * (size - 1) // (ELEMENTS - 1) for size in held.shape)].item()
