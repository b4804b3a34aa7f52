"""The daemon's log lines, as text and as JSON, both with the peer's name; and lines about waits."""

import json
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gossipdp.runtime.observability import audit
from peers import audit_log, daemon, finished, logs, waits
from peers.log_file import LogFile, log_file
from peers.report import gather


def test_a_json_line_has_peer_code_and_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("p1", "json", id="ab" * 32)
    extra = {"code": "GD-401", "exchange": 7, "round": 3, "initiator": "cd" * 32}
    logging.getLogger("gossipdp.node").warning("no partner in %d s", 30, extra=extra)
    line = json.loads(capsys.readouterr().err)
    assert (line["peer"], line["level"], line["message"]) == ("p1", "warning", "no partner in 30 s")
    assert (line["id"], line["initiator"]) == ("ab" * 32, "cd" * 32)
    assert (line["code"], line["exchange"], line["round"]) == ("GD-401", 7, 3)


def test_a_text_line_has_date_offset_level_and_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "IST-5:30")  # no name that the machine would have to look up
    time.tzset()
    try:
        logs.configure("p1", "text")
        logging.getLogger("gossipdp.node").info("fine")
        logs.configure("p1", "text", process="supervisor")
        logging.getLogger("gossipdp.supervisor").error("not fine")
    finally:
        monkeypatch.undo()
        time.tzset()
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+05:30"
    fine, bad = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{when} INFO    p1: fine", fine)
    assert re.fullmatch(rf"{when} ERROR   p1 supervisor: not fine", bad)


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_file_has_the_lines_of_standard_error_and_no_other_user_may_read_it(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = log_file(tmp_path, "peer")
    for message in ("first", "second"):
        logs.configure("p1", style, file=file)
        logging.getLogger("gossipdp.node").info(message)
    assert file.read_text() == capsys.readouterr().err and len(file.read_text().splitlines()) == 2
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


@pytest.mark.parametrize("ends", [os.openpty, os.pipe], ids=["terminal", "pipe"])
def test_standard_error_that_nobody_reads_any_more_changes_no_exit_code(ends: Callable[[], tuple[int, int]]) -> None:
    reader, writer = ends()
    code = "import logging, peers.logs; peers.logs.configure('p1', 'text'); input(); logging.warning('more')"
    variables = {**os.environ, "PYTHONUNBUFFERED": ""}
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=writer, env=variables) as process:
        os.close(writer)
        os.close(reader)
        process.communicate(b"\n")
    assert process.returncode == 0


def written(file: LogFile, text: str) -> None:
    file.handle(logging.makeLogRecord({"msg": text}))


def test_files_are_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log" / "peer.log", logging.NullHandler(), most_bytes=20, files=3)
    for number in range(9):
        written(file, f"line {number}")
    file.close()
    kept = {path.name: path.read_text().split("\n")[:-1] for path in (tmp_path / "log").iterdir()}
    assert kept == {
        "peer.log": ["line 8"],
        "peer.log.1": ["line 6", "line 7"],
        "peer.log.2": ["line 4", "line 5"],
    }


def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    fallback = logging.Handler()
    fallback.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "peer.log").symlink_to("/dev/full")
    file = LogFile(tmp_path / "log" / "peer.log", fallback)
    written(file, "lost: the file must not lead elsewhere")
    (tmp_path / "log" / "peer.log").unlink()
    written(file, "kept")
    with open("/dev/full", "wb") as full:
        assert file._descriptor is not None
        os.dup2(full.fileno(), file._descriptor)
    written(file, "lost")
    assert len(told) == 2 and "No space left" in told[1]
    written(file, "kept again")
    file.close()
    assert (tmp_path / "log" / "peer.log").read_text() == "kept\nkept again\n"
    assert len(told) == 2


def test_an_audit_log_that_cannot_be_written__a_line_with_time_and_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("p1", "text")
    logs.open_audit(tmp_path / "none")
    audit.record("joined", name="host2")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.* p1: .*audit.jsonl cannot be written", capsys.readouterr().err)


def test_a_bug_in_the_daemon_is_in_its_file_with_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "keep_memory", lambda: None)
    monkeypatch.setattr(daemon.descriptors, "claim", lambda: 1 // 0)
    assert daemon.main(["--home", str(tmp_path)]) == 70
    told = log_file(tmp_path, "peer").read_text()
    assert "this is a bug in gossipdp" in told and told.endswith(
        "ZeroDivisionError: integer division or modulo by zero\n"
    )
    assert capsys.readouterr().err == told


def test_no_file_is_made_for_a_home_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("p1", "text", file=log_file(tmp_path / "none", "peer"))
    logging.getLogger("gossipdp.daemon").error("GD-314 no home")
    assert not (tmp_path / "none").exists()
    assert "GD-314 no home" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["text", "json"])
def test_text_of_another_peer_changes_neither_line_nor_terminal(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("p1", style)
    logging.getLogger("gossipdp.node").info("member %s is %s", "a\n12:00:00 p1 \x1b[2Jleft\u202e\x9b", "alive")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and "member a?12:00:00 p1 ?[2Jleft?? is alive" in line


def test_exchanges_are_told_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("p1", "text")
    logging.getLogger("gossipdp.node").debug("exchange 1")
    assert capsys.readouterr().err == ""
    logs.configure("p1", "text", verbose=True)
    logging.getLogger("gossipdp.node").debug("exchange 1")
    assert "exchange 1" in capsys.readouterr().err


def test_a_long_call_is_told_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, events = [0.0], [], [threading.Event(), threading.Event()]

    def say(line: str) -> None:
        told.append(line)
        events[len(told) - 1].set()

    monkeypatch.setattr(waits, "LOOK", 0.001)
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    with waits.told("the disk", say):
        now[0] = 4.0
    assert told == []
    with waits.told("the disk", say):
        now[0] = 10.0
        events[0].wait()
        now[0] = 45.0
        events[1].wait()
    assert told == ["waiting for the disk (6 s so far)", "waiting for the disk (41 s so far)"]
    assert not [thread for thread in threading.enumerate() if thread.name == "gossipdp-waits"]


def test_json_in_a_home_that_is_nested_too_deep__is_passed_over(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for folder, name in (("log", "audit.jsonl"), ("final", "final.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(deep)
    assert audit_log.read(tmp_path, 1) == [] and finished.read_about(tmp_path) is None
    assert not list(gather._told(['{"code": ' + deep]))
