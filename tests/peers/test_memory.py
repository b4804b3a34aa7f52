"""The memory that a daemon may use, with cgroups of both versions and without a container."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from peers.memory import limit, usable

V1_NONE = "9223372036854771712"


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
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    if cgroup is not None:
        (tmp_path / "cgroup").write_text(cgroup)
    assert limit(tmp_path / "cgroup", tmp_path / "sys") == expected


@pytest.mark.parametrize(("limited", "share"), [(None, 1.0), (0.25, 0.25), (2.0, 1.0)])
def test_usable_is_the_machines_unless_a_container_has_less(
    monkeypatch: pytest.MonkeyPatch, limited: float | None, share: float
) -> None:
    machine = psutil.virtual_memory().total
    monkeypatch.setattr("peers.memory.limit", lambda: None if limited is None else int(limited * machine))
    assert usable() == int(share * machine)
