"""A step that a thread repeats."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeated(step: Callable[[], object]) -> Iterator[None]:
    """A thread repeats `step` meanwhile."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            step()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
