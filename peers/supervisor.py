"""Keeps a host's two processes alive, the peer daemon and the training command. Either can die without the other.

    supervisor ─┬─ peer daemon          restarted, unless no restart can help: its first start fails before it
                │                       listens, the network refuses it, or its home is a copy of a live one
                ├─ training command     started when the daemon listens. After its exit code 0 the daemon finishes the
                │                       run. It is given up after consecutive failures that no restart can cure
                │                       (`verdict`), and ended when the daemon says so by SIGUSR1
                └─ guard                ends both if the supervisor itself is killed, and is replaced if it is killed

Nothing of the network or of training may be here. `run` takes over the signals and the logging of the process, and
must be on the main thread. Every child leads a process group, so Ctrl-C and the hang-up of a terminal reach only the
supervisor. Descendants of a launcher such as torchrun may lead groups and sessions of their own. They end with the
training command all the same (`processes`), and before it is started again.
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from gossipdp import launch
from gossipdp.errors import (
    RETRY,
    ConfigError,
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.runtime.link import WaitLines
from gossipdp.runtime.network.duplicate_identity import CopyError
from gossipdp.runtime.unix_sockets import socket_path
from peers import environment, logs
from peers.child import Backoff, Child, Policy, ended
from peers.control import occupied
from peers.daemon_questions import AttachWatch, finish, saving
from peers.error_pipe import ErrorPipe
from peers.home import known_name
from peers.live.process import shown, suits
from peers.log_file import log_file
from peers.processes import LOOK, Guard, adopt, bury, orphans
from peers.rest import end_if_killed, end_left
from peers.supervisor_file import DAEMON, GUARD, TRAINING, SupervisorFile
from peers.verdict import Verdict, gives_up, not_attached, occupied_by, trained_alone

__all__ = ["run", "wakeups"]


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


log = logging.getLogger("gossipdp.supervisor")

FINAL = frozenset(
    {2} | {error.exit_code for error in (ConfigError, RefusedError, MismatchError, HardwareError, DataError)}
)
"""Exit codes of a daemon that has never listened, after which a restart cannot help. 2 is a usage error."""
COPY = CopyError.exit_code
"""Exit code of a daemon that met an older daemon with its identity."""
REFUSED = frozenset({RefusedError.exit_code, MismatchError.exit_code, HardwareError.exit_code})
"""Exit codes of a daemon that every seed has refused, or that has no memory for the model. It has listened by then."""
TEMPORARY = frozenset({UnreachableError.exit_code, RETRY})
"""Exit codes of a daemon whose failure may pass: a busy port, or a disk or device that refuses."""
STARTS = 10
"""Starts of a daemon that crashes before it listens, until the supervisor gives up. They take about three minutes."""
FAULT = 70
ATTACH_WITHIN = 180.0
"""Seconds from the start of a training command to the warning that it has not attached."""


class Supervisor:
    """The loop of `run`.

    Args:
        listening: path of the daemon's socket for training processes.
        attached: tells whether the training command has attached since its last start.
        finish: tells the daemon that training is over; False if it cannot be told.
        keep_guard: replaces the guard if it was killed.
    """

    def __init__(
        self,
        daemon: Child,
        training: Child | None,
        listening: Path,
        policy: Policy,
        attached: AttachWatch,
        finish: Callable[[], bool],
        keep_guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._daemon, self._training, self._listening, self._policy = daemon, training, listening, policy
        self._before: tuple[int, int] | None = None
        self._has_listened = False
        self._verdict, self._attached, self._finish, self._keep_guard = Verdict(), attached, finish, keep_guard
        self._finishing = self._told = False
        """training is over for good, and the daemon that runs knows it"""
        self._ask_at = math.inf
        """time of the next question whether the training command has attached"""
        self._code: int | None = None
        self._waits = WaitLines()
        self._on_terminal = any(os.isatty(descriptor) for descriptor in (1, 2))  # asked now: false after the hang-up
        self._why: GossipdpError | None = None
        """logged when all children are gone"""

    @property
    def _children(self) -> list[Child]:
        return [child for child in (self._daemon, self._training) if child is not None]

    def loop(self, wake: socket.socket) -> int:
        """Run until both children are gone for good. Return the exit code of the run.

        Args:
            wake: a socket of `wakeups`.
        """
        while True:
            now = time.monotonic()
            bury([child.process for child in self._children if child.process])
            self._keep_guard()
            self._reap(now)
            if self._code is None:
                self._start(now)
                self._tell_daemon()
            elif all(child.quiet for child in self._children):
                if self._why is not None:
                    level = logging.ERROR if self._code else logging.WARNING
                    log.log(level, "%s", self._why, extra={"code": self._why.code})
                return self._code
            if line := self._waits.look(self._waits_for(), now):
                log.info(line)
            sources: list[socket.socket | ErrorPipe] = [wake]
            sources += [child.errors for child in self._children if child.errors is not None and child.errors.open]
            readable, _, _ = select.select(sources, [], [], self._wait(now))
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
        elif code == 0:
            self._stop(0, "the peer has left the network")
        elif code == COPY or (code in FINAL and not self._has_listened) or self._refused(code):
            self._stop(code, f"{daemon.name} {ended(code)}")
        elif code not in TEMPORARY and not self._has_listened and daemon.attempts >= STARTS:
            log.error("%s crashed at each of its %d starts, before it listened", daemon.name, STARTS)
            self._stop(_shell_code(code), f"{daemon.name} {ended(code)}")
        else:
            daemon.postpone(now, code)
        if training is None or (code := training.reap(now, self._policy.grace)) is None or self._code is not None:
            if self._code is None and now >= self._ask_at:
                self._look_for_attach(now)
            return
        self._trained(training, code, now)

    def _trained(self, training: Child, code: int, now: float) -> None:
        """Judge the end of the training command: finish, give up or restart."""
        if self._finishing:
            return
        attached, self._ask_at = self._attached.seen(), math.inf
        other, reason = self._attached.other, self._attached.reason
        if code == 0 and attached is False:
            self._why = not_attached(f"it ended after {training.lived(now):.0f} s")
            self._stop(0, f"{training.name} finished")
        elif code == 0 and reason is not None and reason.alone:
            self._why = trained_alone(reason.code, reason.text)
            self._stop(reason.exit, f"{training.name} trained alone to its end")
        elif code == 0:
            log.info("%s finished: this peer averages the final model with the others", training.name)
            self._finishing = True
        elif ends := self._verdict.judge(
            code, training.lived(now), attached, told=reason.exit if reason else 0, occupied=bool(other)
        ):
            how, told = ended(code), reason.code if reason else ""
            self._why = occupied_by(other, how, ends) if other else gives_up(how, ends, training.last_lines, told)
            self._stop(_shell_code(code), f"{training.name} {how}, {ends} times in a row")
        else:
            training.postpone(now, code, capture=self._verdict.doubtful)

    def _tell_daemon(self) -> None:
        """Tell the daemon once that training is over. One that does not know the word is told to stop."""
        if self._finishing and not self._told and self._daemon_listens():
            self._told = True
            if not self._finish():
                self._stop(0, "training is over")

    def _end_training(self) -> None:
        """The daemon finishes the run."""
        self._finishing = self._told = True
        self._ask_at = math.inf
        if self._training is not None and self._training.running:
            log.info("ending the %s, because the run finishes", self._training.name)
            self._training.stop(time.monotonic(), self._training_grace())

    def _training_grace(self) -> float:
        """Seconds that the training command has to hand over its last steps and end."""
        return self._policy.grace + self._policy.grace_each * self._attached.parameters()

    def _look_for_attach(self, now: float) -> None:
        attached = self._attached.seen()
        self._ask_at = now + ATTACH_WITHIN if attached is None else math.inf
        if attached is False:
            warning = not_attached(f"it has run for {ATTACH_WITHIN:.0f} s")
            log.warning("%s", warning, extra={"code": warning.code})

    def _refused(self, code: int) -> bool:
        return code in REFUSED and self._daemon.attempts == 1

    def _left(self, code: int) -> None:
        """Handle the end of a daemon that was told to stop. While it starts, the signal itself ends it."""
        if self._code == 0 and code not in (0, -signal.SIGTERM, -signal.SIGINT):
            log.error("%s %s while it left the network", self._daemon.name, ended(code))
            self._code = code if code > 0 else FAULT

    def _start(self, now: float) -> None:
        if self._daemon.quiet and now >= self._daemon.due:
            self._before = _identity(self._listening)
            self._daemon.start(now)
            self._told = False
        training = None if self._finishing else self._training
        if training is not None and training.quiet and now >= training.due and self._daemon_listens():
            self._attached.begin(again=training.attempts > 0)
            self._ask_at = now + ATTACH_WITHIN
            training.start(now)

    def _daemon_listens(self) -> bool:
        """A socket that is older than the daemon is left over from an earlier one."""
        return self._daemon.running and _identity(self._listening) not in (None, self._before)

    def _wait(self, now: float) -> float | None:
        """Seconds until the next thing to do that no signal announces. None if there is none."""
        due = [max(now + LOOK, child.look_at) for child in self._children]
        if self._code is None:
            due.append(self._ask_at)
            due += [child.due for child in self._children if child.quiet and child.due > now]
            waiting = self._training is not None and self._training.quiet and self._training.due <= now
            waiting = not self._told if self._finishing else waiting
            if self._daemon.running and (waiting or not self._has_listened):
                due.append(now + LOOK)
        soonest = min(self._waits.due, *due)
        return max(0.0, soonest - now) if soonest < math.inf else None

    def _waits_for(self) -> str:
        """What this process waits for, "" for nothing."""
        if self._code is None:
            starts = self._daemon.running and not self._daemon_listens()
            return f"the {self._daemon.name} to listen" if starts else ""
        names = [f"the {child.name}" for child in self._children if not child.quiet]
        return f"{' and '.join(names)} to end" if names else ""

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            if number == signal.SIGHUP and not self._on_terminal:
                log.info("the terminal has hung up: this peer continues, because its output goes elsewhere")
            elif number == signal.SIGUSR1:
                self._end_training()
            elif self._code is None:
                self._stop(0, signal.Signals(number).name)
            elif number == signal.SIGINT:
                for child in self._children:
                    child.kill()

    def _stop(self, code: int, why: str) -> None:
        """End both children; the run then exits with `code`."""
        log.info("stopping: %s", why)
        self._code = code
        for child in reversed(self._children):
            child.stop(time.monotonic(), self._policy.grace if child is self._daemon else self._training_grace())


def run(
    home: Path,
    command: Sequence[str],
    *,
    overrides: Mapping[str, str],
    log_format: str = "text",
    verbose: bool = False,
    live: bool = False,
    policy: Policy | None = None,
    daemon: Sequence[str] | None = None,
) -> int:
    """Run the daemon of `home` and the training `command` until the run ends. Return the exit code.

    Args:
        command: argv of the training command; empty for none.
        overrides: configuration keys and values from the command line.
        log_format: "text" or "json".
        verbose: whether the daemon logs every exchange.
        live: show a live line, if the output is text on a terminal.
        policy: times; the default is that of users.
        daemon: argv to run in place of the peer daemon.

    Raises:
        ConfigError: GD-316, the training command does not exist or cannot be executed.
        HardwareError: GD-104, another supervisor runs for this home.
    """
    _check(command)
    policy = policy or Policy()
    style = "json" if log_format == "json" else "text"
    logs.configure(known_name(home, overrides), style, process="supervisor", file=log_file(home, "supervisor"))
    if daemon is None:
        settings = ["--verbose"] if verbose else []
        settings += [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
        # -P: the current folder may hold a `peers` or a `queue.py` of its own.
        daemon = [*launch.command("peers.daemon"), "--home", str(home), "--log-format", style, *settings]
        daemon += ["--supervisor", str(os.getpid()), *(["--trains"] if command else [])]
    try:
        record = SupervisorFile(home)
    except BlockingIOError:
        raise occupied(home) from None
    busy = partial(saving, home)
    end_left(home, policy.grace, busy, log.warning)
    owns_orphans, mark = adopt(), secrets.token_hex(8)
    recorded = record.begin(mark)
    guard = Guard(partial(end_if_killed, home, recorded, policy.grace, busy), record.let_go)
    record.name(GUARD, guard.pid)
    try:
        with contextlib.ExitStack() as stack:
            if live and style == "text" and suits():
                stack.enter_context(shown(home, environment.of_daemon(os.environ, home), f"{mark}-live"))
            wake = stack.enter_context(wakeups())
            peer = Child(
                DAEMON,
                list(daemon),
                environment.of_daemon(os.environ, home),
                partial(record.name, DAEMON),
                Backoff(policy),
                recorded.mark_of(DAEMON),
                busy=busy,
            )
            trainer = Child(
                TRAINING,
                list(command),
                environment.of_training(os.environ, home),
                partial(record.name, TRAINING),
                Backoff(policy),
                recorded.mark_of(TRAINING),
                adopted=(lambda own: orphans({guard.pid} | peer.leader | own)) if owns_orphans else None,
            )
            supervisor = Supervisor(
                peer,
                trainer if command else None,
                socket_path(home),
                policy,
                AttachWatch(home),
                partial(finish, home),
                partial(_keep, guard, record),
            )
            return supervisor.loop(wake)
    finally:
        # The guard then ends what an exception may have left running.
        guard.close()
        record.close()


def _keep(guard: Guard, record: SupervisorFile) -> None:
    """Replace a guard that was killed."""
    if guard.start():
        record.name(GUARD, guard.pid)
        log.warning("the guard was killed; process %d takes its place", guard.pid)


def _check(command: Sequence[str]) -> None:
    """Raise ConfigError GD-316 if the system cannot execute `command`."""
    if command and shutil.which(command[0]) is None:
        there = Path(command[0]).is_file()
        raise ConfigError(
            "GD-316",
            f"the training command cannot be {'executed' if there else 'found'}",
            seen=command[0],
            do=f"write its interpreter before it, or chmod +x {command[0]}"
            if there
            else "write the command after --, as in a shell",
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and change time of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _shell_code(code: int) -> int:
    """The exit code as a shell reports it: 128 plus the number of a signal."""
    return code if code >= 0 else 128 - code
