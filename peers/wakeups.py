"""A loop that selects gets signals and ends of children as bytes on a socket. Main thread only."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator

__all__ = ["wakeups"]


@contextlib.contextmanager
def wakeups() -> Iterator[socket.socket]:
    """A socket that becomes readable at a signal or the end of a child. Its bytes are the numbers of the signals."""
    read, write = socket.socketpair()
    for end in (read, write):
        end.setblocking(False)
    numbers = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    previous = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(previous)
        for number, action in before.items():
            signal.signal(number, action)
        read.close()
        write.close()
