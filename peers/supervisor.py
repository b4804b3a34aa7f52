"""Keeps a host's two processes alive: the peer daemon and the training command, so that neither takes the other along.

    supervisor ─┬─ peer daemon          restarted, except where no restart can help: its first start fails before it
                │                       listens, the network refuses it, or its home is a copy of a live one
                ├─ training command     started when the daemon listens; exit code 0 ends the run, and so do failures
                │                       in a row that no restart can cure (`verdict`)
                └─ guard                ends both if the supervisor itself is killed

Nothing of the network or of training may be here. `run` is the whole process from the moment it is called: it takes
over signals and logging, and must be on the main thread. Every child leads a process group, so that Ctrl-C in a
terminal, or its hang-up, reaches the supervisor alone. What a launcher such as torchrun or a shell started may lead
groups and sessions of its own: it goes with the training command all the same (`processes`), and nothing is started
again before it has.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from gossipdp.errors import (
    ConfigError,
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.runtime.network.duplicate_identity import CopyError
from gossipdp.runtime.unix_sockets import socket_path
from peers import environment, logs
from peers.control import ask
from peers.processes import LOOK, MARK, Ending, Guard, adopt, bury, family, orphans
from peers.relay import Relay
from peers.verdict import Verdict, gives_up, stays_alone

__all__ = ["Backoff", "Policy", "run"]

log = logging.getLogger("gossipdp.supervisor")

FINAL = frozenset(
    {2} | {error.exit_code for error in (ConfigError, RefusedError, MismatchError, HardwareError, DataError)}
)
"""the daemon's exit codes (and 2, usage) that starting it again cannot cure, if it has never listened"""
SECOND = CopyError.exit_code
"""the daemon's, when it has met one that has its identity and was started before"""
TURNED_AWAY = frozenset({RefusedError.exit_code, MismatchError.exit_code})
"""the daemon's, when everybody it was to dial has refused it: it has listened by then"""
PASSING = frozenset({UnreachableError.exit_code, 75})
"""the daemon's, when a port is busy, or a disk or device refuses: that may pass"""
STARTS = 10
"""of a daemon that has never listened, before it is given up; about three minutes"""
FAULT = 70
ALONE = 60.0
"""Seconds after the start of a training command at which it is told that it has not attached."""
ANSWER = 2.0
"""seconds that a daemon that is to leave may take to say that it is saving"""


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
        log.warning("%s %s; again in %.1f s", self.name, _ended(code), delay)

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


class Attachment:
    """Whether the training command has attached to the daemon of `home` since it was started."""

    def __init__(self, home: Path) -> None:
        self._home, self._before = home, ("", 0)

    def begin(self) -> None:
        """It is started now."""
        self._before = self._counted()

    def seen(self) -> bool | None:
        """None: the daemon does not answer, or was started again since."""
        (run, before), (now, count) = self._before, self._counted()
        return count > before if now and now == run else None

    def _counted(self) -> tuple[str, int]:
        """Which daemon it is, and how many processes have attached to it."""
        try:
            answer = ask(self._home, "status", timeout=ANSWER)
        except GossipdpError:
            return "", 0
        return str(answer.get("incarnation", "")), int(answer.get("attaches") or 0)


class Supervisor:
    """The loop of `run`.

    Args:
        listening: the socket that tells that the daemon takes training processes.
        attached: tells whether the training command has attached since its last start; None if unknown.
    """

    def __init__(
        self, daemon: Child, training: Child | None, listening: Path, policy: Policy, attached: Attachment
    ) -> None:
        self._daemon, self._training, self._listening, self._policy = daemon, training, listening, policy
        self._before: tuple[int, int] | None = None
        self._has_listened = False
        self._verdict, self._attached = Verdict(), attached
        self._ask_at = math.inf
        """when to ask whether the training command has attached"""
        self._code: int | None = None
        self._on_terminal = any(os.isatty(descriptor) for descriptor in (1, 2))  # once it has hung up it is none
        self._why: GossipdpError | None = None
        """said last, when all that ran here is gone"""

    @property
    def _children(self) -> list[Child]:
        return [child for child in (self._daemon, self._training) if child is not None]

    def loop(self, wake: socket.socket) -> int:
        while True:
            now = time.monotonic()
            bury([child.process for child in self._children if child.process])
            self._reap(now)
            if self._code is None:
                self._start(now)
            elif all(child.quiet for child in self._children):
                if self._why is not None:
                    level = logging.ERROR if self._code else logging.WARNING
                    log.log(level, "%s", self._why, extra={"code": self._why.code})
                return self._code
            sources: list[socket.socket | Relay] = [wake]
            sources += [child.relay for child in self._children if child.relay is not None and child.relay.open]
            readable, _, _ = select.select(sources, [], [], self._patience(now))
            if wake in readable:
                self._signals(wake.recv(64))

    def _reap(self, now: float) -> None:
        daemon, training = self._daemon, self._training
        code = daemon.reap(now, self._policy.grace)
        if code is None:
            if not self._has_listened and self._daemon_listens():
                self._has_listened = True
                log.info("%s listens", daemon.name)
        elif self._code is not None:
            self._left(code)
        elif code in (0, SECOND) or (code in FINAL and not self._has_listened) or self._turned_away(code):
            self._stop(code, f"{daemon.name} {_ended(code)}")
        elif code not in PASSING and not self._has_listened and daemon.attempts >= STARTS:
            log.error("%s has never listened, and crashed at each of its %d starts", daemon.name, STARTS)
            self._stop(_of_shell(code), f"{daemon.name} {_ended(code)}")
        else:
            daemon.postpone(now, code)
        if training is None or (code := training.reap(now, self._policy.grace)) is None or self._code is not None:
            if self._code is None and now >= self._ask_at:
                self._look_for_attach(now)
            return
        self._trained(training, code, now)

    def _trained(self, training: Child, code: int, now: float) -> None:
        """The training command has ended."""
        attached, self._ask_at = self._attached.seen(), math.inf
        if code == 0:
            if attached is False:
                self._why = stays_alone(f"it has ended after {training.lived(now):.0f} s")
            self._stop(0, f"{training.name} has finished")
        elif ends := self._verdict.judge(code, training.lived(now), attached):
            self._why = gives_up(_ended(code), ends, training.last_lines)
            self._stop(_of_shell(code), f"{training.name} {_ended(code)}, {ends} times in a row")
        else:
            training.captured = self._verdict.doubtful
            training.postpone(now, code)

    def _look_for_attach(self, now: float) -> None:
        attached = self._attached.seen()
        self._ask_at = now + ALONE if attached is None else math.inf
        if attached is False:
            told = stays_alone(f"it has run for {ALONE:.0f} s")
            log.warning("%s", told, extra={"code": told.code})

    def _turned_away(self, code: int) -> bool:
        return code in TURNED_AWAY and self._daemon.attempts == 1

    def _left(self, code: int) -> None:
        """The daemon has ended as it was told to; by the signal itself if it was still starting."""
        if self._code == 0 and code not in (0, -signal.SIGTERM, -signal.SIGINT):
            log.error("%s %s while leaving", self._daemon.name, _ended(code))
            self._code = code if code > 0 else FAULT

    def _start(self, now: float) -> None:
        if self._daemon.quiet and now >= self._daemon.due:
            self._before = _identity(self._listening)
            self._daemon.start(now)
        training = self._training
        if training is not None and training.quiet and now >= training.due and self._daemon_listens():
            self._attached.begin()
            self._ask_at = now + ALONE
            training.start(now)

    def _daemon_listens(self) -> bool:
        """A socket that stood there before the daemon was started was left by one that is gone."""
        return self._daemon.running and _identity(self._listening) not in (None, self._before)

    def _patience(self, now: float) -> float | None:
        """Seconds until something is due that no signal announces; None: nothing is."""
        due = [max(now + LOOK, child.look_at) for child in self._children]
        if self._code is None:
            due.append(self._ask_at)
            due += [child.due for child in self._children if child.quiet and child.due > now]
            waiting = self._training is not None and self._training.quiet and self._training.due <= now
            if self._daemon.running and (waiting or not self._has_listened):
                due.append(now + LOOK)
        soonest = min(due, default=math.inf)
        return max(0.0, soonest - now) if soonest < math.inf else None

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            if number == signal.SIGHUP and not self._on_terminal:
                log.info("the terminal has hung up: this peer goes on, for its output goes elsewhere")
            elif self._code is None:
                self._stop(0, signal.Signals(number).name)
            elif number == signal.SIGINT:
                for child in self._children:
                    child.kill()

    def _stop(self, code: int, why: str) -> None:
        log.info("stopping: %s", why)
        self._code = code
        for child in reversed(self._children):
            child.stop(time.monotonic(), self._policy.grace)


def run(
    home: Path,
    command: Sequence[str],
    *,
    founder: bool,
    overrides: Mapping[str, str],
    log_format: str = "text",
    verbose: bool = False,
    policy: Policy | None = None,
    daemon: Sequence[str] | None = None,
) -> int:
    """Keep the daemon of `home`, and `command` if there is one, running until the run ends; returns the exit code.

    Args:
        founder: this host may give the network its first model; the home says so to the daemon.
        overrides: configuration keys and values from the command line.
        verbose: the daemon logs every exchange.
        daemon: stands in for the command line of the peer daemon.

    Raises:
        ConfigError: GD-316, there is no such training command.
    """
    if command and shutil.which(command[0]) is None:
        there = Path(command[0]).is_file()
        raise ConfigError(
            "GD-316",
            f"the training command cannot be {'executed' if there else 'found'}",
            seen=command[0],
            do=f"write its interpreter before it, or chmod +x {command[0]}"
            if there
            else "write it after --, as it would be typed in a shell",
        )
    policy = policy or Policy()
    style = "json" if log_format == "json" else "text"
    logs.configure("supervisor", style)
    if founder:
        log.info("this host founds the network unless its home remembers one")
    if daemon is None:
        settings = ["--verbose"] if verbose else []
        settings += [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
        # -P: the folder in which somebody trains may hold a `peers`, or a `queue.py`, of its own.
        daemon = [sys.executable, "-P", "-m", "peers.daemon", "--home", str(home), "--log-format", style, *settings]
    alone, mark = adopt(), secrets.token_hex(8)
    saving = partial(_saving, home)
    guard = Guard(mark, policy.grace, saving)
    try:
        with _wakeups() as wake:
            inherited = environment.of_daemon(os.environ, home)
            peer = Child("peer daemon", list(daemon), inherited, guard, Backoff(policy), f"{mark}-peer", busy=saving)
            inherited = environment.of_training(os.environ, home)
            trainer = Child("training command", list(command), inherited, guard, Backoff(policy), f"{mark}-training")
            if alone:
                trainer.adopted = lambda: orphans({guard.pid} | peer.leader | trainer.leader)
            attached = Attachment(home)
            return Supervisor(peer, trainer if command else None, socket_path(home), policy, attached).loop(wake)
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


def _saving(home: Path) -> bool:
    """Does the daemon of `home` write its last checkpoint? Nothing else may take longer than the grace."""
    try:
        return bool(ask(home, "status", timeout=ANSWER).get("saving"))
    except GossipdpError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _of_shell(code: int) -> int:
    """An exit code as a shell tells it: 128 and more for a signal."""
    return code if code >= 0 else 128 - code


def _ended(code: int) -> str:
    return f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
