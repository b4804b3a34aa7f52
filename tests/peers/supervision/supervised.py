"""A supervisor with scripted children, for the tests. Not a test."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from gossipdp.runtime.unix_sockets import socket_path
from peers import control

PYTHON = [sys.executable, "-I", "-S", "-c"]
PRELUDE = """
import os, signal, sys, time
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def on(name, do): signal.signal(getattr(signal, name), lambda *_: do())
def listen():
    path = os.environ["LISTEN"]
    if os.path.exists(path): os.unlink(path)
    open(path, "w").close()
"""
LEAVE = "say('daemon leaves'), sys.exit(0)"
DAEMON = f"on('SIGTERM', lambda: ({LEAVE})); say('daemon', os.getpid()); listen()\n"
WAIT = "\nwhile True: signal.pause()"
TRAINING = "on('SIGTERM', lambda: (say('training ends'), sys.exit(1))); say('training', os.getpid())\n"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LAUNCHER = """
import subprocess
def launch(code, environment=None):
    command = [sys.executable, '-I', '-S', '-c', os.environ['PRELUDE'] + code]
    return subprocess.Popen(command, env=environment, start_new_session=True)
"""
"""A launcher whose rank leads its own session, as with torchrun."""
SAVING = """
import socket
def save(answers):
    control = socket.socket(socket.AF_UNIX)
    control.bind(os.environ['CONTROL'])
    control.listen()
    say('daemon saves')
    for _ in range(answers):
        asker, _ = control.accept()
        asker.recv(4096)
        asker.sendall(b'{"reply": {"saving": true}}\\n')
        asker.close()
    say('daemon has saved')
    sys.exit(0)
"""
"""A daemon that answers a given number of times that it is saving."""
DRIVER = """
import sys
from pathlib import Path
from peers.child import Policy
from peers.supervisor import run
home, grace, daemon, *command = sys.argv[1:]
policy = Policy(first=0.01, longest=0.05, grace=float(grace))
daemon = [sys.executable, "-I", "-S", "-c", daemon]
sys.exit(run(Path(home), command, overrides={}, policy=policy, daemon=daemon))
"""


class Running:
    """A supervisor and the output of its children."""

    def __init__(
        self,
        home: Path,
        daemon: str,
        training: str | Sequence[str] | None,
        *,
        grace: float = 5.0,
        within: Sequence[str] = (),
        stderr: int | None = None,
    ) -> None:
        self.home = home
        command = [*PYTHON, PRELUDE + training] if isinstance(training, str) else list(training or ())
        variables = {"LISTEN": str(socket_path(home)), "CONTROL": str(control.socket_path(home))}
        variables |= {"GOSSIPDP_INVITE": "a secret", "PRELUDE": PRELUDE}
        variables["PYTHONUNBUFFERED"] = ""  # as for users: what no write takes is left over at the end
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the fixture)
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", DRIVER, str(home), str(grace), PRELUDE + daemon, *command],
            stdout=subprocess.PIPE,
            stderr=self._log if stderr is None else stderr,
            env={**os.environ, **variables},
        )
        self.seen: list[psutil.Process] = []
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        self._text = b""

    def line(self) -> str | None:
        """The next line of any child. None once no child, grandchild or guard is left."""
        while b"\n" not in self._text:
            more = os.read(self._pipe, 4096)
            if not more:
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def number(self, name: str) -> int:
        """Read a line "name NUMBER"."""
        return self.numbers(name)[name]

    def numbers(self, *names: str) -> dict[str, int]:
        """Read a line "name NUMBER" of each, in any order."""
        found: dict[str, int] = {}
        for _ in names:
            name, _, number = (self.line() or "").rpartition(" ")
            found[name] = int(number)
            self.watch(int(number))
        assert set(found) == set(names)
        return found

    def watch(self, number: int) -> None:
        """Kill this process at the end of the test."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen.append(psutil.Process(number))

    def log(self) -> str:
        """The supervisor's log."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def rest(self) -> list[str]:
        return list(iter(self.line, None))

    def code(self) -> int:
        return self.process.wait()
