"""How many cores a process may use: those of its affinity, or its control groups' quota."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gossipdp.runtime.cores import threads_for, usable_cores


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
