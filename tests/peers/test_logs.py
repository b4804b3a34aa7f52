"""The daemon's log lines, as text and as JSON, both with the peer's name."""

from __future__ import annotations

import json
import logging

import pytest

from peers import logs


@pytest.fixture(autouse=True)
def root_logger_restored():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger("gossipdp").setLevel(logging.NOTSET)


def test_a_json_line_has_peer_code_and_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("p1", "json", id="ab" * 32)
    extra = {"code": "GD-401", "exchange": 7, "round": 3, "initiator": "cd" * 32}
    logging.getLogger("gossipdp.node").warning("no partner in %d s", 30, extra=extra)
    line = json.loads(capsys.readouterr().err)
    assert (line["peer"], line["level"], line["message"]) == ("p1", "warning", "no partner in 30 s")
    assert (line["id"], line["initiator"]) == ("ab" * 32, "cd" * 32)
    assert (line["code"], line["exchange"], line["round"]) == ("GD-401", 7, 3)


def test_a_text_line_names_the_peer_and_only_levels_that_matter(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("p1", "text")
    log = logging.getLogger("gossipdp.node")
    log.info("fine")
    log.error("not fine")
    fine, bad = capsys.readouterr().err.splitlines()
    assert fine.endswith(" p1 fine") and bad.endswith(" p1 error: not fine")


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
