"""The small state files of a home: written whole or not at all, and checked when read.

`test_store_torn` has crashes at every point.
"""

from pathlib import Path
from typing import IO

import pytest

from gossipdp.errors import DataError
from gossipdp.runtime import files as runtime_files
from gossipdp.runtime.decisions_file import FILE, load_decisions, save_decisions
from gossipdp.runtime.files import (
    Files,
    Remembered,
    load_members,
    load_run,
    load_state,
    save_members,
    save_run,
    save_state,
)
from tests.protocol.admission.deciding import ban, invited, received, renewed


def test_members_and_run_are_remembered(tmp_path: Path) -> None:
    members = [
        Remembered(id="ab" * 32, name="host1", address="1.2.3.4:4710"),
        Remembered(id="cd" * 32, name="", address=""),
    ]
    assert load_members(tmp_path / "members.json") == []
    assert load_run(tmp_path / "run") is None
    save_members(tmp_path / "members.json", members)
    save_run(tmp_path / "run", b"0123456789abcdef")
    assert load_members(tmp_path / "members.json") == members
    assert load_run(tmp_path / "run") == b"0123456789abcdef"


@pytest.mark.parametrize("contents", [b"", b"{", b'[{"id": "zz"}]', b"\xff\xfe", b'"deadbeef"', b"[" * 100_000])
def test_damaged_member_list_is_an_error_with_advice(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "members.json").write_bytes(contents)
    with pytest.raises(DataError, match=r"GD-603 .*members\.json cannot be read"):
        load_members(tmp_path / "members.json")


def test_state_file_that_cannot_be_written_leaves_the_old_one_and_no_litter(tmp_path: Path) -> None:
    class Full(Files):
        def write(self, file: IO[bytes], piece: memoryview) -> None:
            super().write(file, piece[:1])
            raise OSError(28, "No space left on device")

    save_state(tmp_path / "x", "old")
    with pytest.raises(DataError, match="GD-602"):
        save_state(tmp_path / "x", "new", Full())
    assert load_state(tmp_path / "x", str) == "old" and [path.name for path in tmp_path.iterdir()] == ["x"]


def test_state_file_past_its_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_files, "MAX_STATE", 10)
    save_state(tmp_path / "x", "0123456789")
    with pytest.raises(DataError, match="more than 10 bytes"):
        load_state(tmp_path / "x", str)


def test_decisions_survive_a_restart(tmp_path: Path) -> None:
    assert load_decisions(tmp_path) == ([], [], "")
    kept = [ban(bytes([number]) * 32, number, name="café", reason="stolen", time=7) for number in (1, 2)]
    kept += [invited(b"k" * 32), renewed(b"a" * 32)]
    receipts = [received(made, b"a" * 32) for made in kept[2:]]
    save_decisions(tmp_path, kept, receipts)
    assert load_decisions(tmp_path) == (kept, receipts, "")
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_damaged_file_is_kept_and_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[[1,9,")
    decisions, _, notice = load_decisions(tmp_path)
    assert decisions == [] and "decisions.json is damaged" in notice
    assert (tmp_path / f"{FILE}.damaged").exists()


def test_decision_that_cannot_be_read_takes_no_other_with_it(tmp_path: Path) -> None:
    save_decisions(tmp_path, [ban(b"a" * 32)], [])
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(f"[[1,99],{text[1:]}")
    decisions, _, notice = load_decisions(tmp_path)
    assert decisions == [ban(b"a" * 32)] and "1 of 2 decisions" in notice


def test_state_file_that_is_nested_too_deep__cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[" * 20_000 + "]" * 20_000)
    with pytest.raises(DataError, match="GD-603"):
        load_state(tmp_path / "x", list)
