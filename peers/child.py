"""One command that the supervisor keeps running: its process, its restarts and its end."""

from __future__ import annotations

import logging
import math
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from peers.processes import MARK, Ending, Guard, family
from peers.relay import Relay

__all__ = ["Backoff", "Child", "Policy", "ended"]

log = logging.getLogger("gossipdp.supervisor")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Times in seconds."""

    first: float = 0.5
    """before the first restart; every further one waits twice as long"""
    longest: float = 30.0
    good: float = 60.0
    """after living so long a child starts from `first` again"""
    grace: float = 11.5
    """from SIGTERM to SIGKILL: the 10 s in which a daemon leaves, and some slack; one that says that it is saving its
    last checkpoint has as long as that takes"""


class Backoff:
    """How long to wait before the next start."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._failures = policy, 0

    def after(self, lived: float) -> float:
        """A child has died that lived so long."""
        if lived >= self._policy.good:
            self._failures = 0
        delay = min(self._policy.longest, self._policy.first * 2.0 ** min(self._failures, 64))
        self._failures += 1
        return delay


@dataclass
class Child:
    """One command and the process that runs it, if any. Times are those of time.monotonic()."""

    name: str
    argv: list[str]
    environment: Mapping[str, str]
    guard: Guard
    backoff: Backoff
    mark: str
    adopted: Callable[[], set[int]] = set
    """what this process has adopted and must be of the command"""
    busy: Callable[[], bool] | None = None
    """puts off the kill at a stop"""
    process: subprocess.Popen[bytes] | None = None
    attempts: int = 0
    due: float = 0.0
    """not to be started before"""
    captured: bool = False
    """Whether the next start's standard error passes through here, for its last lines."""
    relay: Relay | None = None
    _started: float = 0.0
    _ending: Ending | None = None
    _refused: int | None = None
    """The shell's exit code for a command that the system did not start."""
    _said: str = ""

    @property
    def leader(self) -> set[int]:
        """The command's own process, if it runs."""
        return set() if self.process is None else {self.process.pid}

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def quiet(self) -> bool:
        """Neither the command nor anything it started is there."""
        return self.process is None and self._ending is None and self._refused is None

    @property
    def look_at(self) -> float:
        """When there may be something to do that no signal announces."""
        if self._refused is not None:
            return -math.inf
        if self._ending is None:
            return math.inf
        return self._ending.due if self.running else -math.inf

    @property
    def last_lines(self) -> list[str]:
        """On standard error, if that was captured; or why the system did not start the command."""
        return [self._said] if self._said else [] if self.relay is None else self.relay.lines()

    def lived(self, now: float) -> float:
        return now - self._started

    def start(self, now: float) -> None:
        variables = {**self.environment, MARK: self.mark, "GOSSIPDP_ATTEMPT": str(self.attempts)}
        self._started, self._said = now, ""
        self.attempts += 1
        self.relay = Relay() if self.captured else None
        try:
            self.process = subprocess.Popen(
                self.argv,
                env=variables,
                stdin=subprocess.DEVNULL,
                stderr=None if self.relay is None else self.relay.write_end,
                process_group=0,
                preexec_fn=self.guard.watch,  # noqa: PLW1509  (there are no threads here)
            )
        except OSError as error:
            self._refused, self._said = 127 if isinstance(error, FileNotFoundError) else 126, str(error)
            log.error("%s cannot be started: %s", self.name, error)
        else:
            log.info("%s started, process %d", self.name, self.process.pid)
        if self.relay is not None:
            self.relay.take_over()

    def reap(self, now: float, grace: float) -> int | None:
        """The exit code, once, when the command has ended; negative for a signal. What it has left behind is ended."""
        code, self._refused = self._refused, None
        if self.relay is not None and self.relay.open:
            self.relay.pass_on()
        if self.process is not None and (code := self.process.poll()) is not None:
            self.guard.forget(self.process.pid)
            self.process = None
            self._end(now, grace)
        if self._ending is not None and now >= self.look_at and not self._ending.look(now) and not self.running:
            self._ending = None
        if self.relay is not None and self.relay.open and self.quiet:
            self.relay.close()
        return code

    def postpone(self, now: float, code: int) -> None:
        """It ended with `code` and is to be started again, later."""
        delay = self.backoff.after(self.lived(now))
        self.due = now + delay
        log.warning("%s %s; again in %.1f s", self.name, ended(code), delay)

    def stop(self, now: float, grace: float) -> None:
        """Have it end in `grace` seconds."""
        if self.running:
            self._end(now, grace).look(now)

    def kill(self) -> None:
        if self._ending is not None:
            self._ending.hurry()

    def _end(self, now: float, grace: float) -> Ending:
        if self._ending is None:
            self._ending = Ending(self.name, self._family, now, grace, self.busy)
        return self._ending

    def _family(self) -> list[psutil.Process]:
        return family(self.mark, self.leader | self.adopted())


def ended(code: int) -> str:
    return f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
