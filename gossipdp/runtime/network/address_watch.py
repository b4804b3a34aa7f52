"""Notices that this host has other addresses now: by DHCP, on another network, on a spot host that was moved.

A thread looks, because names are resolved for it, which may block. What it finds comes back through a queue; a
descriptor becomes readable.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Final

from gossipdp.runtime.network.addresses import Choice

__all__ = ["AddressWatch"]

EVERY: Final = 5.0
"""seconds between two looks. Two in a row must find the same, because an interface may be on its way up"""
GOODBYE: Final = 2.0
"""most seconds that the end waits for a look"""


class AddressWatch:
    """Looks at the addresses of this host.

    Args:
        look: returns the addresses to advertise now.
        choice: those that are advertised already.
        every: seconds between two looks.
    """

    def __init__(self, look: Callable[[], Choice], choice: Choice, every: float = EVERY) -> None:
        self._look, self._told, self._every = look, choice, every
        self._found: queue.SimpleQueue[Choice] = queue.SimpleQueue()
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipdp-addresses", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when `collect` has something new."""
        return self._read.fileno()

    def collect(self) -> Choice | None:
        """The addresses to advertise, if they have changed since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._read.recv(64)
        found = None
        while not self._found.empty():
            found = self._found.get_nowait()
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join(GOODBYE)
        self._read.close()
        self._write.close()

    def _run(self) -> None:
        before = self._told.addresses
        while not self._stop.wait(self._every):
            seen = self._look()
            if seen.addresses == before and before != self._told.addresses:
                self._told = seen
                self._found.put(seen)
                with contextlib.suppress(OSError):
                    self._write.send(b"!")
            before = seen.addresses
