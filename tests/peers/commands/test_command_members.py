"""`gossipdp members ban` and its relatives, `keys operator`, and what a home has of the operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gossipdp.protocol.wire.messages import Verdict
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity
from peers import control, decisions, home, invites, logs
from tests.peers.commands.running import Run

ROWS = [
    {"id": "ab" * 32, "name": "host1", "state": "alive"},
    {"id": "cd" * 32, "name": "host2", "state": "failed"},
]


def operator_of(where: Path) -> str:
    known = home.network_of(where)
    assert known is not None
    return known.operator


def answers(operator: str) -> dict[str, Any]:
    return {
        "members": {"members": ROWS},
        "decisions": {"network": "tiny", "operator": operator, "closed": False, "decisions": []},
        "decide": {"stands": True},
    }


class Asked:
    """Stands in for `control.ask`, and keeps the decisions."""

    def __init__(self, monkeypatch: Any, operator: str) -> None:
        self.made: list[tuple[Verdict, str, str]] = []
        self._answers = answers(operator)
        monkeypatch.setattr(control, "ask", self)

    def __call__(self, _home: Path, verb: str, **args: Any) -> Any:
        if verb == "decide":
            made = decisions.decode(args["decision"])
            self.made.append((made.verdict, made.subject.hex(), made.reason))
        return self._answers[verb]


def test_founder_gets_the_operators_key_and_its_invites_name_it(
    gossipdp: Run, founder: Path, started: list[Any], tmp_path: Path
) -> None:
    key = founder / OPERATOR_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    public = Identity.load(founder, OPERATOR_FILE).id
    assert operator_of(founder) == public.hex()
    invite = invites.write_invite(founder, ["10.0.0.1:4710"], home.read_config(founder))
    assert invites.read_invite(invite.read_text()).invite.operator == public
    assert gossipdp("join", f"@{invite}", "--home", tmp_path / "other").code == 0
    assert operator_of(tmp_path / "other") == public.hex() and not (tmp_path / "other" / OPERATOR_FILE).exists()


def test_ban_unban_and_allow_sign_decisions_about_the_peers_that_words_mean(
    gossipdp: Run, founder: Path, monkeypatch: Any
) -> None:
    asked = Asked(monkeypatch, operator_of(founder))
    done = gossipdp("members", "ban", "host1", "cdcd", "--reason", "stolen", "--home", founder)
    assert done.code == 0 and "host1 (abababab) is banned" in done.out and "host2 (cdcdcdcd) is banned" in done.out
    assert gossipdp("members", "unban", "host1", "--home", founder).code == 0
    assert gossipdp("members", "allow", "12" * 32, "--home", founder).code == 0
    assert asked.made == [
        (Verdict.BANNED, "ab" * 32, "stolen"),
        (Verdict.BANNED, "cd" * 32, "stolen"),
        (Verdict.NONE, "ab" * 32, ""),
        (Verdict.ALLOWED, "12" * 32, ""),
    ]


def test_closing_allows_the_live_members_first(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    asked = Asked(monkeypatch, operator_of(founder))
    done = gossipdp("members", "close", "--yes", "--home", founder)
    assert done.code == 0 and "Allowed: host1." in done.out
    assert gossipdp("members", "open", "--home", founder).code == 0
    assert asked.made == [(Verdict.ALLOWED, "ab" * 32, ""), (Verdict.CLOSED, "", ""), (Verdict.NONE, "", "")]


def test_nothing_is_decided_without_the_key_or_for_nobody(
    gossipdp: Run, founder: Path, monkeypatch: Any, tmp_path: Path
) -> None:
    asked = Asked(monkeypatch, operator_of(founder))
    done = gossipdp("members", "ban", "host1", "host9", "--home", founder)
    assert done.code == 2 and "'host9' is no member's name" in done.err
    copy = tmp_path / "copy.key"
    (founder / OPERATOR_FILE).rename(copy)
    assert gossipdp("members", "ban", "host1", "--home", founder).err.startswith(
        "GD-207 the operator's key is not here"
    )
    assert asked.made == []
    assert gossipdp("members", "ban", "host1", "--key", copy, "--home", founder).code == 0
    assert len(asked.made) == 1


def test_decisions_are_listed(gossipdp: Run, founder: Path, answering: Any) -> None:
    row = {
        "number": 1,
        "verdict": "banned",
        "id": "ab" * 32,
        "name": "host1",
        "reason": "stolen",
        "time": 1_800_000_000,
    }
    answering(founder, {"decisions": {"network": "tiny", "operator": "ef" * 32, "closed": True, "decisions": [row]}})
    done = gossipdp("members", "decisions", "--home", founder)
    assert "closed: allowed peers alone" in done.out and done.out.splitlines()[-1].split()[:3] == [
        "abababab",
        "host1",
        "banned",
    ]
    assert json.loads(gossipdp("members", "decisions", "--json", "--home", founder).out)["decisions"] == [row]


def test_operator_is_shown_made_and_trusted(gossipdp: Run, founder: Path, tmp_path: Path, started: list[Any]) -> None:
    shown = json.loads(gossipdp("keys", "operator", "--json", "--home", founder).out)
    assert shown == {"follows": operator_of(founder), "key": str(founder / OPERATOR_FILE)}
    assert gossipdp("keys", "operator", "--new", "--home", founder).err.startswith(
        "GD-207 this host follows an operator"
    )
    home.follow(founder, b"")
    assert gossipdp("keys", "operator", "--new", "--home", founder).code == 0
    assert operator_of(founder) == shown["follows"], "a key that is there is used"
    done = gossipdp("keys", "operator", "--trust", "cd" * 32, "--home", founder)
    assert done.code == 0 and operator_of(founder) == "cd" * 32 and "On every other host" in done.out
    assert gossipdp("keys", "operator", "--trust", "cd", "--home", founder).code == 2
    assert gossipdp("keys", "operator", "--home", tmp_path / "nothing").code == 2


def test_audit_log_is_read_across_rotated_files_and_torn_lines(gossipdp: Run, founder: Path) -> None:
    assert gossipdp("members", "audit", "--home", founder).out == ""
    file = logs.audit_file(founder)
    file.parent.mkdir(exist_ok=True)
    joined = {"time": 1_800_000_000.5, "event": "joined", "id": "ab" * 32, "name": "host\x1b1", "address": "10.0.0.2:1"}
    refused = {"time": 1_800_000_001.0, "event": "refused", "address": "10.0.0.9", "code": "GD-204", "reason": "banned"}
    file.with_name("audit.jsonl.1").write_text(json.dumps(joined) + "\n")
    file.write_text('{"time": 1\n' + json.dumps(refused) + "\n")
    lines = gossipdp("members", "audit", "--home", founder).out.splitlines()
    assert [line[21:] for line in lines] == [
        "joined  host?1 (abababab), address 10.0.0.2:1",
        "refused  address 10.0.0.9, code GD-204, reason banned",
    ]
    assert json.loads(gossipdp("members", "audit", "--json", "--last", "1", "--home", founder).out) == [refused]
