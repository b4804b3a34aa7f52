"""The operator's decisions on the disk of a host."""

from __future__ import annotations

from pathlib import Path

from gossipdp.runtime.decisions_file import FILE, load_decisions, save_decisions
from tests.protocol.admission.deciding import ban, invited, received, renewed


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
