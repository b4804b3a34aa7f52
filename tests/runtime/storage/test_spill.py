"""Payloads on disk instead of in memory: what comes back, whose room it takes, and what a full disk does."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gossipdp.runtime.files import Files
from gossipdp.runtime.storage import spill as spilling
from gossipdp.runtime.storage.spill import LEFT, Spill
from tests.runtime.storage.small_disk import small_disk


def payloads(count: int, seed: int = 0, most: int = 20_000) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [random.bytes(int(size)) for size in random.integers(1, most, count)]


def open_files(folder: Path) -> int:
    """Files of `folder` that this process has open, without a name or with one."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith(str(folder)) for link in links)


class Disk(Files):
    """A disk with as much free room as a test says."""

    room = float(1 << 40)

    def free(self, directory: Path) -> float:
        return self.room


def test_payload_comes_back_read_only_and_no_name_is_left_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    spill = Spill(folder)
    for payload in payloads(30):
        kept = spill.keep(payload)
        assert isinstance(kept, memoryview) and kept.readonly and kept == payload
    assert kept.obj is not payload and os.listdir(folder) == [] and spill.tick() == ""


def test_payloads_share_files_that_are_freed_one_at_a_time_once_nothing_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilling, "SEGMENT", 1 << 16)
    spill = Spill(tmp_path)
    kept = [spill.keep(bytes([n]) * 4096) for n in range(64)]
    assert open_files(tmp_path) == 3 + 2, "mappings have a descriptor each, and the newest file another"
    assert len(spill.keep(bytes(1 << 17))) == 1 << 17, "one larger than a file has its own"
    assert open_files(tmp_path) == 4 + 2
    del kept[1:48]
    counts = []
    for _ in range(4):
        assert spill.tick() == ""
        counts.append(open_files(tmp_path))
    assert kept[0] == bytes(4096) and counts == [5, 4, 4, 4]
    del kept, spill
    assert open_files(tmp_path) == 0


def test_any_number_of_threads_may_keep_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "SEGMENT", 1 << 18)
    spill, given = Spill(tmp_path), payloads(400)
    with ThreadPoolExecutor(8) as threads:
        kept = list(threads.map(spill.keep, given))
    assert all(isinstance(one, memoryview) and one == other for one, other in zip(kept, given, strict=True))


def test_payload_stays_in_memory_while_the_disk_is_full_and_that_is_said_once(tmp_path: Path) -> None:
    disk, payload = Disk(), bytes(5000)
    spill = Spill(tmp_path, files=disk)
    disk.room = LEFT + 4999.0
    assert spill.free() == 4999 and spill.keep(payload) is payload and spill.keep(payload) is payload
    refused = "[Errno 28] No space left: 256 MB must stay free"
    assert spill.tick() == f"copies and moments stay in memory, because {tmp_path} cannot take more: {refused}"
    assert spill.tick() == "" and open_files(tmp_path) == 0
    disk.room += 1
    assert spill.keep(payload) is not payload
    disk.room = 0.0
    assert spill.free() == 0.0 and spill.keep(payload) is payload and "No space left" in spill.tick()


def test_payload_stays_in_memory_if_the_folder_is_gone_or_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "gone", tmp_path / "file"):
        spill = Spill(folder)
        if folder.is_dir():
            folder.rmdir()
        assert spill.free() == 0.0 or not folder.is_dir()
        assert spill.keep(b"abc") == b"abc" and "stay in memory" in spill.tick()


@pytest.mark.needs("mounts")
def test_full_disk_is_no_fault_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that the disk has no room for must not be mapped: reading it would end the process (SIGBUS)."""
    monkeypatch.setattr(spilling, "LEFT", 0)
    monkeypatch.setattr(Files, "free", lambda *_: float(1 << 40))  # another writer has taken it since
    with small_disk(tmp_path / "disk") as disk:
        spill, given = Spill(disk), payloads(12, most=1 << 20)
        kept = [spill.keep(payload) for payload in given]
        assert all(one == other for one, other in zip(kept, given, strict=True))
        assert any(one is other for one, other in zip(kept, given, strict=True)) and kept[0] is not given[0]
        assert "No space left" in spill.tick()
        del kept
