"""Keeps a host's two processes alive: the peer daemon and the training command, so that neither takes the other along.

    supervisor ─┬─ peer daemon          restarted unless its exit code says that no restart can help
                ├─ training command     started when the daemon listens; exit code 0 ends the run
                └─ guard                ends both if the supervisor itself is killed

Nothing of the network or of training may be here. `run` is the whole process from the moment it is called: it takes
over signals and logging, and must be on the main thread. Every child leads a process group, so that what a launcher
such as torchrun or a shell started goes with it, and Ctrl-C in a terminal reaches the supervisor alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gossipdp.errors import ConfigError, DataError, HardwareError, MismatchError, RefusedError
from gossipdp.runtime.link_socket import socket_path
from peers import logs

__all__ = ["Backoff", "Policy", "run"]

log = logging.getLogger("gossipdp.supervisor")

FINAL = frozenset(
    {2} | {error.exit_code for error in (ConfigError, RefusedError, MismatchError, HardwareError, DataError)}
)
"""the daemon's exit codes (and 2, usage) that starting it again cannot cure"""
FAULT = 70
LOOK = 0.1
"""seconds between looks at what no signal announces: the link's socket, processes a child has left behind"""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Times in seconds."""

    first: float = 0.5
    """before the first restart; every further one waits twice as long"""
    longest: float = 30.0
    good: float = 60.0
    """after living so long a child starts from `first` again"""
    grace: float = 11.5
    """from SIGTERM to SIGKILL: the 10 s in which a daemon leaves, and some slack"""


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


class Guard:
    """A process that does nothing until the supervisor is gone, and then ends the groups it was told of.

    It waits for the end of a pipe that only the supervisor holds open. A child names its own group there before it
    becomes its command, so there is no instant at which it runs unwatched. (A parent-death signal would reach the
    leader of a group alone: the ranks of a killed launcher would live on.)
    """

    def __init__(self, grace: float) -> None:
        # Kept open here too: writing must not fail, nor a child die of SIGPIPE, should the guard itself be killed.
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._process = os.fork()
        if self._process == 0:
            try:
                os.close(self._write)
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                _end_groups(_groups_left(self._read), grace)
            finally:
                os._exit(0)

    def watch(self) -> None:
        """To be called in a new child, before it becomes its command."""
        self._tell(b"+%d\n" % os.getpid())

    def forget(self, group: int) -> None:
        self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, line)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        os.waitpid(self._process, 0)


def _groups_left(pipe: int) -> set[int]:
    groups: set[int] = set()
    with open(pipe, "rb") as lines:
        for line in lines:
            number = int(line[1:])
            groups.add(number) if line[:1] == b"+" else groups.discard(number)
    return groups


def _end_groups(groups: set[int], grace: float) -> None:
    left = {group for group in groups if _signal_group(group, signal.SIGTERM)}
    deadline = time.monotonic() + grace
    while left and time.monotonic() < deadline:
        time.sleep(LOOK)
        left = {group for group in left if _signal_group(group, 0)}
    for group in left:
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Whether anybody of `group` is still there; `number` 0 only asks."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@dataclass
class Child:
    """One command and the process that runs it, if any. Times are those of time.monotonic()."""

    name: str
    argv: list[str]
    environment: Mapping[str, str]
    guard: Guard
    backoff: Backoff
    process: subprocess.Popen[bytes] | None = None
    attempts: int = 0
    due: float = 0.0
    """not to be started before"""
    _started: float = 0.0
    _left: tuple[int, float] | None = field(default=None)
    """a group whose leader is gone, and when it is killed"""

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def quiet(self) -> bool:
        """Neither the command nor anything it started is there."""
        return self.process is None and self._left is None

    def start(self, now: float) -> None:
        environment = {**self.environment, "GOSSIPDP_ATTEMPT": str(self.attempts)}
        self._started = now
        self.attempts += 1
        try:
            self.process = subprocess.Popen(
                self.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=self.guard.watch,  # noqa: PLW1509  (there are no threads here)
            )
        except OSError as error:
            self.due = now + self.backoff.after(0.0)
            log.error("%s cannot be started: %s; again in %.1f s", self.name, error, self.due - now)
        else:
            log.info("%s started, process %d", self.name, self.process.pid)

    def reap(self, now: float, grace: float) -> int | None:
        """The exit code, once, when the command has ended; negative for a signal."""
        if self._left is not None:
            group, deadline = self._left
            if not _signal_group(group, 0) or (now >= deadline and _signal_group(group, signal.SIGKILL)):
                self.guard.forget(group)
                self._left = None
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self._left = (self.process.pid, now + grace)
        _signal_group(self.process.pid, signal.SIGTERM)
        self.process = None
        return code

    def postpone(self, now: float, code: int) -> None:
        """It ended with `code` and is to be started again, later."""
        delay = self.backoff.after(now - self._started)
        self.due = now + delay
        log.warning("%s %s; again in %.1f s", self.name, _ended(code), delay)

    def signal(self, number: int) -> None:
        for group in (self.process.pid if self.process else None, self._left[0] if self._left else None):
            if group is not None:
                _signal_group(group, number)


class Supervisor:
    """The loop of `run`. `listening` is the socket that tells that the daemon takes training processes."""

    def __init__(self, daemon: Child, training: Child | None, listening: Path, policy: Policy) -> None:
        self._daemon, self._training, self._listening, self._policy = daemon, training, listening, policy
        self._before: tuple[int, int] | None = None
        self._code: int | None = None
        self._deadline = math.inf

    def loop(self, wake: socket.socket) -> int:
        while True:
            now = time.monotonic()
            self._reap(now)
            children = [child for child in (self._daemon, self._training) if child is not None]
            if self._code is not None:
                if all(child.quiet for child in children):
                    return self._code
                if now >= self._deadline:
                    self._kill(children)
            else:
                self._start(now)
            readable, _, _ = select.select([wake], [], [], self._patience(now))
            if readable:
                self._signals(wake.recv(64))

    def _reap(self, now: float) -> None:
        daemon, training = self._daemon, self._training
        code = daemon.reap(now, self._policy.grace)
        if code is not None:
            if self._code is not None:
                if code != 0 and self._code == 0:
                    log.error("%s %s while leaving", daemon.name, _ended(code))
                    self._code = code if code > 0 else FAULT
            elif code == 0 or code in FINAL:
                self._stop(code, f"{daemon.name} {_ended(code)}")
            else:
                daemon.postpone(now, code)
        if training is None or (code := training.reap(now, self._policy.grace)) is None or self._code is not None:
            return
        if code == 0:
            self._stop(0, f"{training.name} has finished")
        else:
            training.postpone(now, code)

    def _start(self, now: float) -> None:
        if self._daemon.quiet and now >= self._daemon.due:
            self._before = _identity(self._listening)
            self._daemon.start(now)
        training = self._training
        if training is not None and training.quiet and now >= training.due and self._daemon_listens():
            training.start(now)

    def _daemon_listens(self) -> bool:
        """A socket that stood there before the daemon was started was left by one that is gone."""
        return self._daemon.running and _identity(self._listening) not in (None, self._before)

    def _patience(self, now: float) -> float | None:
        """Seconds until something is due that no signal announces; None: nothing is."""
        children = [child for child in (self._daemon, self._training) if child is not None]
        due = [now + LOOK] if any(child._left for child in children) else []
        if self._code is not None:
            due.append(self._deadline)
        else:
            due += [child.due for child in children if child.quiet and child.due > now]
            waiting = self._training is not None and self._training.quiet and self._training.due <= now
            if waiting and self._daemon.running:
                due.append(now + LOOK)
        soonest = min(due, default=math.inf)
        return max(0.0, soonest - now) if soonest < math.inf else None

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            if self._code is None:
                self._stop(0, signal.Signals(number).name)
            elif number == signal.SIGINT:
                self._deadline = time.monotonic()

    def _stop(self, code: int, why: str) -> None:
        log.info("stopping: %s", why)
        self._code = code
        self._deadline = time.monotonic() + self._policy.grace
        if self._training is not None:
            self._training.signal(signal.SIGTERM)
        self._daemon.signal(signal.SIGTERM)

    def _kill(self, children: Sequence[Child]) -> None:
        for child in children:
            if not child.quiet:
                log.warning("%s has not ended in time and is killed", child.name)
                child.signal(signal.SIGKILL)
        self._deadline = math.inf


def run(
    home: Path,
    command: Sequence[str],
    *,
    founder: bool,
    overrides: Mapping[str, str],
    log_format: str = "text",
    policy: Policy | None = None,
    daemon: Sequence[str] | None = None,
) -> int:
    """Keep the daemon of `home`, and `command` if there is one, running until the run ends; returns the exit code.

    Args:
        founder: this host may give the network its first model; the home says so to the daemon.
        overrides: configuration keys and values from the command line.
        daemon: stands in for the command line of the peer daemon.

    Raises:
        ConfigError: GD-316, there is no such training command.
    """
    if command and shutil.which(command[0]) is None:
        raise ConfigError(
            "GD-316",
            "the training command cannot be found",
            seen=command[0],
            do="write it after --, as it would be typed in a shell",
        )
    policy = policy or Policy()
    style = "json" if log_format == "json" else "text"
    logs.configure("supervisor", style)
    if founder:
        log.info("this host founds the network unless its home remembers one")
    if daemon is None:
        settings = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
        daemon = [sys.executable, "-m", "peers.daemon", "--home", str(home), "--log-format", style, *settings]
    # An invite holds the network's secret: who is already in has no use for it.
    environment = {key: value for key, value in os.environ.items() if key != "GOSSIPDP_INVITE"}
    environment["GOSSIPDP_HOME"] = str(home.absolute())
    # torchrun's agent keeps one store over its restarts, old keys and all: the ranks that start again would dial the
    # addresses (with NCCL, the unique id) of dead ones, and may wait for them until the group's own timeout.
    environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    guard = Guard(policy.grace)
    try:
        with _wakeups() as wake:
            peer = Child("peer daemon", list(daemon), environment, guard, Backoff(policy))
            trainer = Child("training command", list(command), environment, guard, Backoff(policy))
            return Supervisor(peer, trainer if command else None, socket_path(home), policy).loop(wake)
    finally:
        # With the pipe closed the guard ends whatever an exception may have left running.
        guard.close()


@contextlib.contextmanager
def _wakeups() -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal comes or a child ends; its bytes are the signals' numbers."""
    read, write = socket.socketpair()
    for end in (read, write):
        end.setblocking(False)
    numbers = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup stays what it is
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


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _ended(code: int) -> str:
    return f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
