"""A failing disk costs one save, and a kill loses nothing reported. `test_store_torn` has crashes at every point."""

import io
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest

from gossipdp.errors import DataError
from gossipdp.runtime.files import Files
from gossipdp.runtime.storage import checkpoint as runtime_checkpoint
from gossipdp.runtime.storage import store as runtime_store
from gossipdp.runtime.storage.store import Store
from tests.runtime.storage.samples import meta, vectors


def test_full_disk_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    class Full(Files):
        room = 3000

        def write(self, file: IO[bytes], piece: memoryview) -> None:
            self.room -= len(piece)
            if self.room < 0:
                raise OSError(28, "No space left on device")
            super().write(file, piece)

    Store(tmp_path).save(vectors(1, 100), meta(1), b"s")
    with pytest.raises(DataError) as caught:
        Store(tmp_path, files=Full()).save(vectors(2), meta(2), b"s")
    assert caught.value.exit_code == 8
    assert str(caught.value).partition("\n  more: ")[0] == (
        f"GD-602 {tmp_path}/checkpoint-00000002 could not be written\n"
        "  seen: [Errno 28] No space left on device\n"
        "  do:   free disk space, or let this user write there"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"]


@pytest.mark.parametrize("missing", [0, 1])
def test_checkpoint_that_does_not_fit_is_refused_before_a_byte_of_it_is_written(tmp_path: Path, missing: int) -> None:
    class Small(Files):
        room, written = 1 << 40, 0

        def free(self, directory: Path) -> int:
            return self.room

        def write(self, file: IO[bytes], piece: memoryview) -> None:
            self.written += len(piece)
            super().write(file, piece)

    files = Small()
    store = Store(tmp_path, files=files)
    first = store.save(vectors(1), meta(1), b"schema")
    (tmp_path / ".unfinished-checkpoint-00000007").mkdir()
    needed = sum((first / name).stat().st_size for name in ("state.safetensors", "schema.bin"))
    files.room, files.written = needed - missing, 0
    if not missing:
        store.save(vectors(2), meta(2), b"schema")
        return
    with pytest.raises(DataError) as caught:
        store.save(vectors(2), meta(2), b"schema")
    assert str(caught.value).partition("\n  more: ")[0] == (
        f"GD-602 {tmp_path}/checkpoint-00000008 could not be written\n"
        f"  seen: [Errno 28] No space left on device: {needed} bytes are needed, {needed - 1} are free\n"
        "  do:   free disk space, or let this user write there"
    )
    assert files.written == 0 and list(tmp_path.iterdir()) == [first]


def test_free_room_comes_from_the_file_system__and_unknown_room_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.statvfs(tmp_path)
    fields = {name: getattr(known, name) for name in ("f_blocks", "f_bavail", "f_frsize")}
    for changed, free in (({"f_bavail": 3, "f_frsize": 4096}, 12_288), ({"f_blocks": 0, "f_bavail": 0}, math.inf)):
        monkeypatch.setattr(os, "statvfs", lambda path, has=fields | changed: SimpleNamespace(**has))
        assert Files().free(tmp_path) == free


def test_unsynced_bytes_stay_bounded_while_a_large_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_store, "PIECE", 4096)
    monkeypatch.setattr(runtime_store, "UNSYNCED", 16_384)

    class Watched(Files):
        dirty = most = 0

        def write(self, file: IO[bytes], piece: memoryview) -> None:
            super().write(file, piece)
            self.dirty += piece.nbytes
            self.most = max(self.most, self.dirty)

        def sync(self, file: IO[bytes]) -> None:
            super().sync(file)
            self.dirty = 0

    files = Watched()
    store = Store(tmp_path, files=files)
    store.save({"a": np.arange(50_000, dtype=np.float32)}, meta(), b"s")
    assert 16_384 <= files.most < 16_384 + 4096
    assert isinstance(store.latest()[0], runtime_checkpoint.Checkpoint)


class Refusing(Files):
    """Fails in the calls that `refused` names."""

    refused: tuple[str, ...] = ()

    def _ask(self, what: str) -> None:
        if what in self.refused:
            raise OSError(5, "Input/output error")

    def names(self, directory: Path) -> list[str]:
        self._ask("names")
        return super().names(directory)

    def remove(self, path: Path) -> None:
        self._ask("remove")
        super().remove(path)


def test_remains_that_cannot_be_removed_stop_no_save(tmp_path: Path) -> None:
    files = Refusing()
    store = Store(tmp_path, keep=1, files=files)
    files.refused = ("remove",)
    paths = [store.save(vectors(round), meta(round), b"s") for round in (1, 2, 3)]
    assert [path.name[-1] for path in paths] == ["1", "2", "3"] and store.list() == paths[2:]
    (tmp_path / ".unfinished-checkpoint-00000007").mkdir()
    assert store.save(vectors(4), meta(4), b"s").name == "checkpoint-00000008"
    files.refused = ()
    store.save(vectors(5), meta(5), b"s")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000009"]


def test_directory_that_cannot_be_listed_is_an_error_with_a_code(tmp_path: Path) -> None:
    files = Refusing()
    store = Store(tmp_path, files=files)
    store.save(vectors(1), meta(1), b"s")
    files.refused = ("names",)
    for ask in (store.list, store.newest, lambda: store.save(vectors(2), meta(2), b"s")):
        with pytest.raises(DataError, match=f"GD-601 {tmp_path} cannot be read"):
            ask()
    store.prune()
    checkpoint, [notice] = store.latest()
    assert checkpoint is None and "Input/output error" in notice.text
    assert Store(tmp_path / "file" / "checkpoints").list() == []


def test_closing_fails_too__the_error_is_the_first_one(tmp_path: Path) -> None:
    class Sour(io.FileIO):
        def close(self) -> None:
            open_before = not self.closed
            super().close()
            if open_before:
                raise OSError(122, "Disk quota exceeded")

    class Full(Files):
        def create(self, path: Path) -> IO[bytes]:
            return Sour(path, "xb") if path.name == "state.safetensors" else super().create(path)  # type: ignore

        def sync(self, file: IO[bytes]) -> None:
            if isinstance(file, Sour):
                raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"GD-602 .*\n.*No space left"):
        Store(tmp_path, files=Full()).save(vectors(1), meta(1), b"s")
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    path = Store(tmp_path).save(vectors(1), meta(1), b"s")
    (path / "manifest.json").unlink()
    (path / "manifest.json").mkdir()
    with pytest.raises(DataError, match=r"GD-601 checkpoint .* cannot be read"):
        Store.verify(path)


def test_checkpoint_dropped_while_it_is_verified_is_not_called_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    for round in (1, 2):
        store.save(vectors(round), meta(round), b"s")
    looked_at = store.each()
    assert next(looked_at)[0].name == "checkpoint-00000001"
    for round in (3, 4):
        store.save(vectors(round), meta(round), b"s")
    assert list(looked_at) == []


def test_numbers_of_more_than_eight_digits_are_later(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    store.save(vectors(1), meta(1), b"s").rename(tmp_path / "checkpoint-99999999")
    newest = store.save(vectors(2), meta(2), b"s")
    assert newest.name == "checkpoint-100000000" and store.list()[-1] == newest
    assert store.newest() == (newest, meta(2))


SAVER = """
import sys, numpy as np
sys.path.insert(0, {tests!r})
from pathlib import Path
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.store import Store
store = Store(Path({directory!r}))
for round in range(1, 10**6):
    store.save({{"a": np.full(300_000, round, np.float32)}}, CheckpointMeta(network="t", run="", peer="", incarnation=0,
               round=round, clock=0, steps=0, samples=0, schema=""), b"s")
    print(round, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_kill_nine_in_the_middle_of_saving_loses_nothing_reported(tmp_path: Path, seed: int) -> None:
    root = str(Path(runtime_store.__file__).parents[3])
    code = SAVER.format(tests=root, directory=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2 + seed):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    reported = int(rest[-1]) if rest else 2 + seed
    checkpoint, notices = Store(tmp_path).latest()
    assert checkpoint is not None and not notices
    assert checkpoint.meta.round >= reported
    assert (checkpoint.read("a") == checkpoint.meta.round).all()
