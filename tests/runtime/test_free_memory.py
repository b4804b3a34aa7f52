"""The memory and cores that a daemon may use, with cgroups of both versions and without a container."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gossipdp.runtime.cores import threads_for, usable_cores
from gossipdp.runtime.free_memory import Free, free_memory, holders, limit
from peers.memory import usable

V1_NONE = "9223372036854771712"


def written(where: Path, cgroup: str | None, files: Mapping[str, str]) -> tuple[Path, Path]:
    """The files of the kernel below `where`: this process's groups, and the folder of all groups."""
    for name, text in files.items():
        (where / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (where / "sys" / name).write_text(text)
    if cgroup is not None:
        (where / "cgroup").write_text(cgroup)
    return where / "cgroup", where / "sys"


def machine(monkeypatch: pytest.MonkeyPatch, available: int = 10_000, swap: int = 0) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available, total=20_000))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=swap))


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": "4096\n"}, 4096),
        ("0::/a.slice/b\n", {"a.slice/b/memory.max": "4096\n", "a.slice/memory.max": "max\n"}, 4096),
        ("0::/a.slice/b\n", {"a.slice/b/memory.max": "4096\n", "a.slice/memory.max": "2048\n"}, 2048),
        ("0::/a.slice/b\n", {"memory.max": "1024\n", "c/memory.max": "7\n"}, 1024),
        ("0::/../../outside\n", {"memory.max": "1024\n"}, 1024),
        ("12:cpu:/x\n5:memory:/docker/1\n", {"memory/docker/1/memory.limit_in_bytes": "4096\n"}, 4096),
        ("5:memory:/docker/1\n0::/\n", {"memory/memory.limit_in_bytes": "2048\n", "memory.max": "max\n"}, 2048),
        ("5:cpu,memory:/\n", {"memory/memory.limit_in_bytes": V1_NONE + "\n"}, int(V1_NONE)),
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "what?\n"}, None),
        ("no cgroup at all", {"memory.max": "7\n"}, None),
        (None, {"memory.max": "7\n"}, None),
    ],
)
def test_limit_is_the_least_of_the_group_and_those_above(
    tmp_path: Path, cgroup: str | None, files: dict[str, str], expected: int | None
) -> None:
    assert limit(*written(tmp_path, cgroup, files)) == expected


@pytest.mark.parametrize(("limited", "share"), [(None, 1.0), (0.25, 0.25), (2.0, 1.0)])
def test_usable_is_the_machines_unless_a_container_has_less(
    monkeypatch: pytest.MonkeyPatch, limited: float | None, share: float
) -> None:
    machine = psutil.virtual_memory().total
    monkeypatch.setattr("peers.memory.limit", lambda: None if limited is None else int(limited * machine))
    assert usable() == int(share * machine)


MAX = {"a/memory.max": "4000\n", "a/memory.current": "3000\n", "memory.max": "max\n", "memory.current": "9000\n"}
CACHE = "anon 900\ninactive_file 400\nactive_file 50\nslab_reclaimable 7\nfile 500\n"
V1 = {"memory/memory.limit_in_bytes": "4000\n", "memory/memory.usage_in_bytes": "3000\n"}
V1_CACHE = "inactive_file 1\ntotal_inactive_file 400\ntotal_active_file 50\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "swap", "expected"),
    [
        ("0::/a\n", {}, 0, (10_000, 20_000)),
        ("0::/a\n", {}, 300, (10_300, 20_000)),
        ("0::/a\n", MAX, 0, (1000, 4000)),
        ("0::/a\n", MAX | {"a/memory.stat": CACHE}, 0, (1457, 4000)),
        ("0::/a\n", MAX | {"a/memory.high": "3500\n"}, 0, (500, 3500)),
        ("0::/a\n", MAX | {"a/memory.high": "max\n"}, 0, (1000, 4000)),
        ("0::/a\n", MAX | {"memory.max": "9100\n"}, 0, (100, 9100)),
        ("0::/a\n", MAX, 300, (1300, 4000)),
        ("0::/a\n", MAX | {"a/memory.swap.max": "100\n", "a/memory.swap.current": "60\n"}, 300, (1040, 4000)),
        ("0::/a\n", MAX | {"a/memory.swap.max": "0\n"}, 300, (1000, 4000)),
        ("0::/a\n", {"a/memory.max": "4000\n"}, 0, (10_000, 20_000)),
        ("0::/a\n", MAX | {"a/memory.max": "what?\n"}, 0, (10_000, 20_000)),
        ("4:memory:/\n", V1, 0, (1000, 4000)),
        ("4:memory:/\n", V1 | {"memory/memory.stat": V1_CACHE}, 0, (1450, 4000)),
        ("4:memory:/\n", V1 | {"memory/memory.limit_in_bytes": V1_NONE + "\n"}, 0, (10_000, 20_000)),
        (None, MAX, 0, (10_000, 20_000)),
    ],
)
def test_free_is_the_least_that_the_machine_and_each_group_leave(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str | None,
    files: dict[str, str],
    swap: int,
    expected: tuple[int, int],
) -> None:
    machine(monkeypatch, swap=swap)
    found = free_memory(*written(tmp_path, cgroup, files))
    assert found is not None and found[:2] == expected
    assert found.others == ("machine" if expected[1] == 20_000 else "group")


def test_nothing_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "virtual_memory", unknown)
    assert free_memory(tmp_path / "cgroup", tmp_path) is None


def test_a_limit_of_the_address_space_counts_what_was_mapped_and_never_written_as_free() -> None:
    """Each daemon maps its vectors before it writes them. Then as much must be free as before."""
    code = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
import numpy as np
from gossipdp.runtime.free_memory import free_memory
resource.setrlimit(resource.RLIMIT_AS, ({4 << 30}, {4 << 30}))
before, room = free_memory(), np.zeros(1 << 29, np.uint8)
mapped = free_memory()
room[:] = 1
written = free_memory()
print(before.what)
print(*(each.bytes - before.bytes for each in (mapped, written)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    what, figures = done.stdout.splitlines()
    mapped, then = map(int, figures.split())
    assert "RLIMIT_AS" in what and abs(mapped) < 16 << 20 and abs(then + (1 << 29)) < 16 << 20


def test_the_largest_other_processes_are_named() -> None:
    code = "import sys; room = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        machine, group, alone = (Free(0, 0, "", others) for others in ("machine", "group", "none"))  # type: ignore[arg-type]
        assert not holders(alone) and child.pid in [pid for pid, _, _ in holders(group, 1000)]
        found = {pid: size for pid, _, size in holders(machine, 1000)}
        assert found[child.pid] > 64 << 20 and os.getpid() not in found
        assert list(found.values()) == sorted(found.values(), reverse=True) and len(holders(machine, 1)) == 1


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        (None, {}, 12.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 12.0),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"cpu.max": "2400000 100000\n"}, 12.0),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4.0),
        ("0::/\n", {"cpu.max": "what?\n"}, 12.0),
        ("3:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "300000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 3.0),
        ("3:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 12.0),
    ],
)
def test_usable_cores_are_the_least_of_affinity_and_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str | None, files: Mapping[str, str], cores: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    if cgroup is not None:
        (tmp_path / "cgroup").write_text(cgroup)
    assert usable_cores(tmp_path / "cgroup", tmp_path / "sys") == cores


def test_threads_grow_with_cores_and_leave_most_of_them_to_training() -> None:
    assert [threads_for(cores) for cores in (0.5, 2, 7.9, 8, 15, 16, 128)] == [1, 1, 1, 2, 2, 4, 4]
