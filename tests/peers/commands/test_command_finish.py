"""`gossipdp finish`, and what `up` and `join` say in a home whose run is finished."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from peers.commands import finish
from tests.peers.commands.running import Run

HERE = {"distance_after": 7.4e-08, "relative_distance": 3.2e-05, "agrees": True}


def finished(home: Path, **changes: Any) -> None:
    folder = home / ("final" if changes.get("agrees", True) else "not-final")
    folder.mkdir(parents=True, exist_ok=True)
    peers = changes.pop("peers", [{"name": "a"}, {"name": "b"}])
    about = {"peers": peers, "this_host": {**HERE, "finished_at": time.time(), **changes}}
    (folder / "final.json").write_text(json.dumps(about))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What final.json says besides `HERE`, once the peer is gone. With "none" it is not written."""
    changes: dict[str, Any] = {}

    def gone(home: Path) -> None:
        if "none" not in changes:
            finished(home, **changes)

    monkeypatch.setattr(finish, "_watch", gone)
    return changes


def test_it_says_where_the_model_is_and_how_close_the_peers_are(
    gossipdp: Run, answering: Any, ended: dict[str, Any], tmp_path: Path
) -> None:
    answering(tmp_path, {"finish": {}})
    done = gossipdp("finish", "--home", tmp_path)
    assert done.code == 0
    assert done.out.splitlines() == [
        "all members are asked to end training",
        f"final model in {tmp_path / 'final'}: held by 2 peers (a, b), which agree to 1e-3 of their"
        " usual distance; last measured here: 3.2e-05",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peers": [{"name": "a"}]}, "this peer's own, no other member took part"),
        ({"distance_after": None, "relative_distance": None}, "held by 2 peers (a, b), all equal"),
        ({"peers": [{"name": name} for name in "abcdef"]}, "held by 6 peers (a, b, c, d, ...)"),
    ],
)
def test_what_was_not_reached_is_said(
    gossipdp: Run, answering: Any, ended: dict[str, Any], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    answering(tmp_path, {"finish": {}})
    ended |= changes
    assert said in gossipdp("finish", "--home", tmp_path).out


@pytest.mark.parametrize("changes", [{"none": True}, {"finished_at": 1.0}])
def test_a_peer_that_ends_without_a_final_model_is_exit_code_8(
    gossipdp: Run, answering: Any, ended: dict[str, Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    answering(tmp_path, {"finish": {}})
    ended |= changes
    done = gossipdp("finish", "--home", tmp_path)
    assert done.code == 8 and done.err.startswith("GD-602 the peer ended without a final model")


@pytest.mark.parametrize(("share", "seen"), [(0.1, "0.1 of the usual one"), (None, "unknown")])
def test_peers_that_have_not_come_to_one_model_are_exit_code_8(
    gossipdp: Run, answering: Any, ended: dict[str, Any], tmp_path: Path, share: float | None, seen: str
) -> None:
    answering(tmp_path, {"finish": {}})
    ended |= {"agrees": False, "relative_distance": share}
    done = gossipdp("finish", "--home", tmp_path)
    assert done.code == 8 and done.err.startswith("GD-404 the peers did not agree on one final model")
    assert seen in done.err and str(tmp_path / "not-final") in done.err and "final model in" not in done.out


def test_without_waiting_it_returns_at_once(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"finish": {}})
    done = gossipdp("finish", "--no-wait", "--home", tmp_path)
    assert done.code == 0 and str(tmp_path / "final") in done.out


def test_time_and_base_are_checked_here(gossipdp: Run, tmp_path: Path) -> None:
    done = gossipdp("finish", "--wait", "soon", "--home", tmp_path)
    assert done.code == 2 and "a time from 1s to 7d" in done.err
    assert gossipdp("finish", "--base", tmp_path / "none", "--home", tmp_path).code == 2
    assert gossipdp("finish", "--home", tmp_path).code == 4, "no daemon runs"


def test_progress_is_shown_until_the_peer_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from gossipdp.errors import UnreachableError
    from peers import control

    answers = [
        {},
        {"phase": "waiting", "awaited": ["b"], "text": "waits for members that train: b, at most 9 s more"},
        {"phase": "waiting", "awaited": ["b"], "text": "waits for members that train: b, at most 8 s more"},
        {"phase": "closing", "awaited": ["b"], "text": "2 peers average"},
    ]

    def ask(*_: Any, **__: Any) -> dict[str, Any]:
        if not answers:
            raise UnreachableError("GD-105", "no daemon runs for this home")
        return {"finish": answers.pop(0)}

    monkeypatch.setattr(control, "ask", ask)
    monkeypatch.setattr(finish, "ASK_EVERY", 0.0)
    finish._watch(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "waits for members that train: b, at most 9 s more",
        "2 peers average",
    ]


@pytest.mark.parametrize("command", ["up", "join"])
def test_a_finished_home_is_not_trained_on_without_being_told(
    gossipdp: Run, started: list[Any], founder: Path, command: str
) -> None:
    finished(founder)
    words = ["join", f"@{founder / 'invite'}"] if command == "join" else ["up"]
    done = gossipdp(*words, "--home", founder)
    assert done.code == 3 and done.err.startswith("GD-323 the run of this home is finished") and not started
    (founder / "final").rename(founder / "final-1")
    assert gossipdp("up", "--home", founder).code == 0 and started
