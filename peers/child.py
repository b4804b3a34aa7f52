"""One command that the supervisor keeps running: its process, its restarts and its end."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import psutil

from gossipdp.runtime.unix_sockets import ATTEMPT
from peers.error_pipe import ErrorPipe
from peers.processes import MARK, Ending, family, tie

__all__ = ["Backoff", "Child", "Policy", "ended"]

log = logging.getLogger("gossipdp.supervisor")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Times in seconds."""

    first: float = 0.5
    """pause before the first restart; it doubles with every further one"""
    longest: float = 30.0
    """longest pause"""
    good: float = 60.0
    """life after which the next pause is `first` again"""
    grace: float = 11.5
    """from SIGTERM to SIGKILL. A daemon leaves within 10 s; one that saves its last checkpoint gets more time."""
    grace_each: float = 20e-9
    """additional grace of the training command per parameter: it copies its last steps, and the daemon takes them"""


class Backoff:
    """Pauses before restarts."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._failures = policy, 0

    def after(self, lived: float) -> float:
        """The pause after a child that lived for `lived` seconds."""
        if lived >= self._policy.good:
            self._failures = 0
        delay = min(self._policy.longest, self._policy.first * 2.0 ** min(self._failures, 64))
        self._failures += 1
        return delay


class Child:
    """One command and its process. Times are those of time.monotonic().

    Args:
        name: for the log.
        argv: the command.
        environment: its variables.
        record: takes the pid of each start's process, there and here.
        backoff: pauses before restarts.
        mark: value of the variable `MARK`, which all descendants inherit.
        adopted: takes the pids of the command's own process, and returns those of orphans that belong to the command.
        busy: puts off SIGKILL while it is true.
    """

    def __init__(
        self,
        name: str,
        argv: list[str],
        environment: Mapping[str, str],
        record: Callable[[int], object],
        backoff: Backoff,
        mark: str,
        *,
        adopted: Callable[[set[int]], set[int]] | None = None,
        busy: Callable[[], bool] | None = None,
    ) -> None:
        self.name, self._argv, self._environment, self._record = name, argv, environment, record
        self._backoff, self._mark, self._adopted, self._busy = backoff, mark, adopted, busy
        self.process: subprocess.Popen[bytes] | None = None
        self.attempts = 0
        """starts"""
        self.due = 0.0
        """earliest time of the next start"""
        self.errors: ErrorPipe | None = None
        self._capture = False
        """whether the next start's standard error goes through `errors`, which keeps its last lines"""
        self._started = 0.0
        self._ending: Ending | None = None
        self._not_started: int | None = None
        """exit code, as of a shell, for a command that the system did not start"""
        self._reason = ""
        """why the system did not start it"""

    @property
    def leader(self) -> set[int]:
        """Pid of the command's own process; empty if it does not run."""
        return set() if self.process is None else {self.process.pid}

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def quiet(self) -> bool:
        """Whether the command and all its descendants are gone."""
        return self.process is None and self._ending is None and self._not_started is None

    @property
    def look_at(self) -> float:
        """Time of the next `reap` that no signal announces."""
        if self._not_started is not None:
            return -math.inf
        if self._ending is None:
            return math.inf
        return self._ending.due if self.running else -math.inf

    @property
    def last_lines(self) -> list[str]:
        """The last lines of captured standard error, or the reason why the system did not start the command."""
        return [self._reason] if self._reason else [] if self.errors is None else self.errors.lines()

    def lived(self, now: float) -> float:
        return now - self._started

    def start(self, now: float) -> None:
        variables = {**self._environment, MARK: self._mark, ATTEMPT: str(self.attempts)}
        self._started, self._reason = now, ""
        self.attempts += 1
        self.errors = ErrorPipe() if self._capture else None
        try:
            self.process = subprocess.Popen(
                self._argv,
                env=variables,
                stdin=subprocess.DEVNULL,
                stderr=None if self.errors is None else self.errors.write_end,
                process_group=0,
                preexec_fn=partial(self._enter, os.getpid()),  # noqa: PLW1509  (this process has one thread)
            )
        except OSError as error:
            self._not_started, self._reason = 127 if isinstance(error, FileNotFoundError) else 126, str(error)
            log.error("%s cannot be started: %s", self.name, error)
        else:
            self._record(self.process.pid)
            log.info("%s started, process %d", self.name, self.process.pid)
        if self.errors is not None:
            self.errors.take_over()

    def _enter(self, parent: int) -> None:
        """In the new process, before it becomes the command: from now on it never runs unknown."""
        tie(parent)
        self._record(os.getpid())

    def reap(self, now: float, grace: float) -> int | None:
        """Return the exit code once, after the command has ended; negative for a signal. End its descendants."""
        code, self._not_started = self._not_started, None
        if self.errors is not None and self.errors.open:
            self.errors.pass_on()
        if self.process is not None and (code := self.process.poll()) is not None:
            self.process = None
            self._end(now, grace)
        if self._ending is not None and now >= self.look_at and not self._ending.look(now) and not self.running:
            self._ending = None
        if self.errors is not None and self.errors.open and self.quiet:
            self.errors.close()
        return code

    def postpone(self, now: float, code: int, *, capture: bool = False) -> None:
        """Set the time of the next start, after an end with `code`.

        Args:
            capture: keep the last lines that the next start writes to standard error.
        """
        self._capture = capture
        delay = self._backoff.after(self.lived(now))
        self.due = now + delay
        log.warning("%s %s; again in %.1f s", self.name, ended(code), delay)

    def stop(self, now: float, grace: float) -> None:
        """Send SIGTERM now, and SIGKILL after `grace` seconds."""
        if self.running:
            self._end(now, grace).look(now)

    def kill(self) -> None:
        """Send SIGKILL at the next `reap`, if the command was told to stop."""
        if self._ending is not None:
            self._ending.hurry()

    def _end(self, now: float, grace: float) -> Ending:
        if self._ending is None:
            self._ending = Ending(self.name, self._family, now, grace, self._busy)
        return self._ending

    def _family(self) -> list[psutil.Process]:
        adopted = set() if self._adopted is None else self._adopted(self.leader)
        return family(self._mark, self.leader | adopted)


def ended(code: int) -> str:
    """How a process ended, for a log line."""
    return f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
