"""The history of a run: what is recorded, what is thinned, and what a damaged file or a full disk costs."""

import errno
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossipdp.protocol.wire.messages import Progress
from gossipdp.runtime.network.events import TransportCounters
from gossipdp.runtime.observability import history
from gossipdp.runtime.observability.history import History, Record, read

ME, OTHER = bytes(32), bytes([9]) * 32


@pytest.fixture
def status() -> Any:
    """What a record is made from: a peer and one other member."""
    members = {ME: SimpleNamespace(id=ME, name="me", incarnation=3), OTHER: SimpleNamespace(id=OTHER, name="a")}
    reports = [
        Progress(OTHER, 9, 8, 64, 2, loss=2.25),
        Progress(ME, 9, 9, 72, 3),
        Progress(bytes([7]) * 32, 1, 1, 1, 1),
    ]
    view = SimpleNamespace(id=ME, members=members, me=members[ME], reports=reports, consensus_ratio=1.5)
    return SimpleNamespace(
        view=view, transport=SimpleNamespace(counters=TransportCounters()), round=3, steps=9, samples=72, loss=math.nan,
        eval_loss=math.nan, consensus_distance=0.01, stall_seconds=0.5, exchanges={"done": 2, "lost": 1},
        exchanged_bytes=500, formula_bytes=490.0, exchanged_parameters=1000.0,
        counts=lambda: {"alive": 2},
    )  # fmt: skip


def clock(start: float = 1.7e9, every: float = 10.0) -> Any:
    ticks = itertools.count()
    return lambda: start + every * next(ticks)


def test_one_record_every_ten_seconds_is_read_again_after_a_restart(status: Any, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    kept = History(path, clock())
    status.loss = 2.5
    for now in (0.0, 5.0, 9.9, 10.0, 20.0):
        assert kept.look(status, now) == ""
    assert [record.time for record in kept.records] == [1.7e9, 1.7e9 + 10, 1.7e9 + 20]
    assert [record.loss for record in kept.records] == [2.5] * 3
    again = History(path, clock(1.8e9))
    assert again.records == kept.records == read(path)
    again.look(status, 0.0)
    assert [record.time for record in read(path)][-2:] == [1.7e9 + 20, 1.8e9]


def test_end_of_the_daemon__its_last_bytes_and_rounds_are_recorded(status: Any, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    kept = History(path, clock(every=1.0))
    kept.look(status, 0.0)
    status.round, status.exchanged_bytes = 4, 900
    kept.look(status, 1.0, last=True)
    assert [(record.round, record.exchanged) for record in read(path)] == [(3, 500), (4, 900)]


def test_unknown_figures_are_null_and_the_peer_itself_comes_first(status: Any, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(path, clock()).look(status, 0.0)
    (record,) = read(path)
    assert record.loss is None and b"NaN" not in path.read_bytes()
    assert (record.life, record.round, record.alive, record.exchanges, record.failed, record.ratio) == (
        3,
        3,
        2,
        2,
        1,
        1.5,
    )
    assert record.members == (
        history.MemberRecord("00000000", "me", 9, 3, samples=72),
        history.MemberRecord("09090909", "a", 8, 2, 2.25, 64),
    )


def test_bound_is_reached__old_records_are_thinned_and_the_course_is_whole(
    status: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST", 16)
    path = tmp_path / "history.jsonl"
    kept = History(path, clock(0.0))
    for number in range(500):
        kept.look(status, 10.0 * number)
    times = [record.time for record in kept.records]
    assert len(times) <= 16 and times == sorted(times) and times[0] == 0.0 and times[-1] == 4990.0
    assert [later - earlier for earlier, later in itertools.pairwise(times[-4:])] == [10.0] * 3
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] >= gaps[-1]
    assert len(path.read_bytes().splitlines()) <= 16 and read(path) == list(kept.records)


def test_damaged_lines_are_left_out(status: Any, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(path, clock()).look(status, 0.0)
    with open(path, "ab") as file:
        file.write(b'{"time": 1.0, "life"\n\xff\xfe\n[]\n{"time": "x"}\n')
    assert len(read(path)) == 1
    assert read(tmp_path / "none") == []


def test_file_that_is_too_large_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LARGEST", 10)
    (tmp_path / "history.jsonl").write_bytes(b"{}\n" * 100)
    assert read(tmp_path / "history.jsonl") == []


def test_disk_is_full__said_once_and_tried_again_later(
    status: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[int] = []

    def refuse(path: Path, record: Record) -> None:
        refusals.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(history, "_append", refuse)
    kept = History(tmp_path / "history.jsonl", clock())
    told = [kept.look(status, now) for now in (0.0, 10.0, 20.0, 310.0)]
    assert [bool(each) for each in told] == [True, False, False, True] and "No space left" in told[0]
    assert len(refusals) == 2 and len(kept.records) == 4
