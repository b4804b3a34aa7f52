"""Says what a call that blocks waits for, once it takes longer than some seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from gossipdp.runtime.link.wait_lines import WaitLines

__all__ = ["told"]

LOOK = 1.0
"""seconds between two looks at the clock"""


@contextlib.contextmanager
def told(what: str, say: Callable[[str], object]) -> Iterator[None]:
    """Pass lines that name `what` to `say`, from another thread, while the block takes long."""
    lines, over = WaitLines(), threading.Event()
    lines.look(what, time.monotonic())

    def watch() -> None:
        while not over.wait(LOOK):
            if line := lines.look(what, time.monotonic()):
                say(line)

    thread = threading.Thread(target=watch, name="gossipdp-waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
