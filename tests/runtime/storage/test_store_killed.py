"""The newest checkpoint reported as saved loads and verifies after any kill (safety I5, campaign T15).

A process dies by SIGKILL inside a call, and the next one goes on in the same directory. All of it goes through the
checkpointer and its thread, as the node drives it.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from gossipdp.runtime.storage import store as runtime_store
from tests.runtime.storage.lives import LONG, Host, Life, Quick, check_goes_on


class Deadly(Quick):
    """The process is killed inside call number `last`. What it has written is in the kernel, and not lost."""

    def __init__(self, last: int) -> None:
        self.left = last

    def _call(self) -> bool:
        self.left -= 1
        return self.left < 0

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: Path) -> IO[bytes]:
        file = super().create(path)
        if self._call():
            self._die()
        return file

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        last = self._call()
        super().write(file, piece[: len(piece) // 2] if last else piece)
        if last:
            self._die()

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        if self._call():
            self._die()

    def rename(self, before: Path, after: Path) -> None:
        if self._call():
            self._die()
        super().rename(before, after)

    def remove(self, path: Path) -> None:
        if self._call():
            for name in sorted(os.listdir(path))[::2]:
                (path / name).unlink()
            self._die()
        super().remove(path)


def kill(directory: Path, kills: int) -> int:
    """Let children save, one after the other, each until it is killed. Returns the number that died in a save."""
    torn, found = 0, 0
    for number in range(kills):
        get, report = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                host = Host(directory, Deadly(random.Random(number).randrange(60)))
                for round in itertools.count(found + 1):
                    assert isinstance(host.save(round), Path)
                    os.write(report, bytes([round - found]))
            finally:
                os._exit(1)
        os.close(report)
        with open(get, "rb") as told:
            rounds = len(told.read())
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"kill {number}: status {status}"
        life = Life(tried=found + rounds + 1, reported=found + rounds)
        found = life.check(directory, f"kill {number}")
        torn += directory.is_dir() and any(path.name.startswith(".") for path in directory.iterdir())
    check_goes_on(directory, found + 1, f"{kills} kills")
    return torn


@pytest.mark.campaign("T15")
@pytest.mark.parametrize("kills", [60, pytest.param(2000, marks=LONG)])
def test_process_killed_inside_any_call_again_and_again_has_its_newest_reported_checkpoint(
    tmp_path: Path, kills: int
) -> None:
    """Runs in its own process with one thread, because it forks."""
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "home/checkpoints"), str(kills)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(runtime_store.__file__).parents[3]), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= kills // 2, "few of the kills came in the middle of a save"


if __name__ == "__main__":
    print(kill(Path(sys.argv[1]), int(sys.argv[2])))
