"""`gossipdp members ban` and its relatives, `gossipdp keys`, and what a home has of the operator."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossipdp.protocol.wire.messages import Verdict
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity, NetworkSecret, digest_of
from peers import control, decisions, home, invites, logs
from peers.commands import renewal
from tests.peers.commands.office import Office
from tests.peers.commands.running import Run

ROWS = [
    {"id": "ee" * 32, "name": "host0", "state": "alive", "me": True},
    {"id": "ab" * 32, "name": "host1", "state": "alive", "me": False, "known": 9.0},
    {"id": "cd" * 32, "name": "host2", "state": "failed"},
]
BAN = {"number": 1, "verdict": "banned", "id": "ab" * 32, "name": "host1", "reason": "stolen", "time": 1_800_000_000}


def operator_of(where: Path) -> str:
    known = home.network_of(where)
    assert known is not None
    return known.operator


class Asked:
    """Stands in for `control.ask`, and keeps the decisions."""

    def __init__(self, monkeypatch: Any, operator: str, **known: Any) -> None:
        self.made: list[tuple[Verdict, str, str, list[str]]] = []
        desk = {"network": "tiny", "operator": operator, "closed": False, "allowed": []}
        desk |= {"generation": 0, "decisions": []}
        self._answers = {"members": {"members": ROWS}, "decisions": {**desk, **known}}
        self.answer = {"stands": True, "saved": True}
        monkeypatch.setattr(control, "ask", self)

    def __call__(self, _home: Path, verb: str, **args: Any) -> Any:
        if verb != "decide":
            return self._answers[verb]
        made = decisions.decode(args["decision"])
        self.made.append((made.verdict, made.subject.hex(), made.reason, [peer.hex() for peer in made.allowed]))
        return self.answer


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


def test_ban_and_unban_sign_decisions_about_the_peers_that_words_mean(
    gossipdp: Run, founder: Path, monkeypatch: Any
) -> None:
    asked = Asked(monkeypatch, operator_of(founder))
    done = gossipdp("members", "ban", "host1", "cdcd", "--reason", "stolen", "--home", founder)
    assert done.code == 0 and "host1 (abababab) is banned" in done.out and "host2 (cdcdcdcd) is banned" in done.out
    assert "comes back by itself" in gossipdp("members", "unban", "host1", "--home", founder).out
    assert asked.made == [
        (Verdict.BANNED, "ab" * 32, "stolen", []),
        (Verdict.BANNED, "cd" * 32, "stolen", []),
        (Verdict.NONE, "ab" * 32, "", []),
    ]


def test_own_peer_is_not_banned_from_here(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    asked = Asked(monkeypatch, operator_of(founder))
    done = gossipdp("members", "ban", "host1", "host0", "--home", founder)
    assert done.code == 2 and "host0 is this host's own peer" in done.err and asked.made == []


def test_closing_names_the_live_members_that_are_not_banned_and_those_allowed_before(
    gossipdp: Run, founder: Path, monkeypatch: Any
) -> None:
    asked = Asked(monkeypatch, operator_of(founder), allowed=["12" * 32], decisions=[BAN])
    done = gossipdp("members", "close", "--yes", "--home", founder)
    assert done.code == 0 and "closed to all but 2 peers" in done.out
    assert asked.made == [(Verdict.CLOSED, "", "", ["12" * 32, "ee" * 32])]


def test_allow_adds_to_the_list_and_lifts_no_ban(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    asked = Asked(monkeypatch, operator_of(founder), closed=True, allowed=["12" * 32], decisions=[BAN])
    done = gossipdp("members", "allow", "host1", "host2", "--home", founder)
    assert "host1 (abababab) is allowed. It is still banned" in done.out
    assert gossipdp("members", "open", "--home", founder).code == 0
    assert asked.made == [
        (Verdict.CLOSED, "", "", ["12" * 32, "ab" * 32, "cd" * 32]),
        (Verdict.OPEN, "", "", ["12" * 32]),
    ]
    assert "also allow it" in gossipdp("members", "unban", "host2", "--home", founder).out


def test_decision_that_does_not_stand_or_is_not_saved_is_told(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    asked = Asked(monkeypatch, operator_of(founder))
    asked.answer = {"stands": True, "saved": False}
    done = gossipdp("members", "ban", "host1", "--home", founder)
    assert done.code == 0 and "could not save it" in done.err
    asked.answer = {"stands": False, "saved": True}
    assert gossipdp("members", "ban", "host1", "--home", founder).err.startswith("GD-207 the daemon did not take")


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
    desk = {"network": "tiny", "operator": "ef" * 32, "closed": True, "allowed": ["12" * 32], "decisions": [BAN]}
    answering(founder, {"decisions": desk})
    done = gossipdp("members", "decisions", "--home", founder)
    assert "closed to all but 1 peer\n" in done.out
    assert done.out.splitlines()[-1].split()[:3] == ["abababab", "host1", "banned"]
    assert json.loads(gossipdp("members", "decisions", "--json", "--home", founder).out) == desk


def test_invite_of_another_operator_is_refused(
    gossipdp: Run, founder: Path, tmp_path: Path, started: list[Any]
) -> None:
    invite = invites.write_invite(founder, ["10.0.0.1:4710"], home.read_config(founder))
    assert gossipdp("join", f"@{invite}", "--home", tmp_path / "other").code == 0
    home.follow(tmp_path / "other", b"z" * 32)
    done = gossipdp("join", f"@{invite}", "--home", tmp_path / "other")
    assert done.code == 3 and done.err.startswith("GD-207 the invite names another operator")
    assert operator_of(tmp_path / "other") == (b"z" * 32).hex()


def test_without_an_operator_invite_and_home_are_those_of_the_version_before(
    gossipdp: Run, founder: Path, started: list[Any]
) -> None:
    home.follow(founder, b"")
    NetworkSecret(NetworkSecret.load(founder).reveal()).replace(founder)
    assert "operator" not in (founder / "network.json").read_text()
    invite = invites.write_invite(founder, ["10.0.0.1:4710"], home.read_config(founder))
    packed = base64.urlsafe_b64decode(invite.read_text().partition(".")[0].removeprefix("gdp1_") + "==")
    assert len(msgspec.msgpack.decode(packed[:-4])) == 3


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


def test_keys_are_shown_without_the_secret(gossipdp: Run, founder: Path) -> None:
    done = gossipdp("keys", "show", "--json", "--home", founder)
    shown, secret = json.loads(done.out), NetworkSecret.load(founder)
    assert shown["id"] == Identity.load(founder).id.hex() and shown["fingerprint"] == secret.fingerprint
    assert secret.reveal().hex() not in done.out and secret.reveal_generation().hex() not in done.out


def test_new_secret_is_sealed_for_live_members_that_are_not_banned(
    gossipdp: Run, founder: Path, monkeypatch: Any
) -> None:
    friend, thief = Identity.generate(), Identity.generate()
    office = Office(monkeypatch, founder, {"friend": friend, "thief": thief})
    first = office.renewal
    assert gossipdp("members", "ban", "thief", "--home", founder).code == 0
    done = gossipdp("keys", "rotate", "--yes", "--grace", "1h", "--reason", "leak", "--home", founder)
    assert done.code == 0 and "All live members have it" in done.out
    made, me = office.renewal, Identity.load(founder)
    assert made.secret is not None and set(made.allowed) == {me.id, friend.id} and made.reason == "leak"
    assert made.secret.replaces == first.number and 3500 < made.secret.until - time.time() <= 3600
    boxes = dict(zip(made.allowed, made.secret.boxes, strict=True))
    secrets = {peer.unseal(boxes[peer.id]) for peer in (me, friend)}
    assert len(secrets) == 1 and digest_of(secrets.pop() or b"") == made.secret.digest
    assert not any(thief.unseal(box) for box in boxes.values()) and friend.unseal(boxes[me.id]) is None


def test_member_that_is_down_gets_the_new_secret_if_it_is_named(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    spot = Identity.generate()
    office = Office(monkeypatch, founder, {"spot": spot}, state="failed")
    gossipdp("keys", "rotate", "--yes", "--home", founder)
    assert spot.id not in office.renewal.allowed
    assert gossipdp("keys", "rotate", "--yes", "--also", "spot", "--home", founder).code == 0
    assert spot.id in office.renewal.allowed


def test_member_that_this_host_never_heard_gets_nothing_unless_it_is_named(
    gossipdp: Run, founder: Path, monkeypatch: Any
) -> None:
    ghost = Identity.generate()
    office = Office(monkeypatch, founder, {"ghost": ghost}, known=None)
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    for command in (("keys", "rotate"), ("members", "close")):
        done = gossipdp(*command, "--home", founder)
        assert done.code == 0 and f"ghost ({ghost.id.hex()[:8]}), which this host has never heard" in done.out
    assert ghost.id not in office.renewal.allowed and not office.admission.admits(ghost.id)
    assert gossipdp("keys", "rotate", "--yes", "--also", "ghost", "--home", founder).code == 0
    assert ghost.id in office.renewal.allowed


def test_who_lacks_the_new_secret_is_named(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(renewal, "PATIENCE", 0.0)
    office = Office(monkeypatch, founder, {"slow": Identity.generate()})
    office.lacks = ["slow"]
    assert "do not have it yet: slow" in gossipdp("keys", "rotate", "--yes", "--home", founder).out


def test_members_of_an_earlier_version_must_be_upgraded_first(gossipdp: Run, founder: Path, monkeypatch: Any) -> None:
    office = Office(monkeypatch, founder, {"old": Identity.generate()}, protocol=3)
    before = office.renewal
    done = gossipdp("keys", "rotate", "--yes", "--home", founder)
    assert done.code == 6 and done.err.startswith("GD-302") and "old" in done.err and office.renewal == before


def test_member_that_is_banned_during_the_question_gets_no_secret(
    gossipdp: Run, founder: Path, monkeypatch: Any
) -> None:
    thief = Identity.generate()
    office = Office(monkeypatch, founder, {"thief": thief})
    monkeypatch.setattr("click.confirm", lambda *_, **__: gossipdp("members", "ban", "thief", "--home", founder))
    assert gossipdp("keys", "rotate", "--home", founder).code == 0
    assert thief.id not in office.renewal.allowed and not office.admission.admits(thief.id)


@pytest.mark.parametrize("command", [("keys", "rotate", "--yes"), ("invite", "--for", "gpu2")])
def test_host_that_lacks_the_newest_secret_gives_nothing(
    gossipdp: Run, founder: Path, monkeypatch: Any, command: tuple[str, ...]
) -> None:
    office = Office(monkeypatch, founder, {})
    office.takes = False
    gossipdp("keys", "rotate", "--yes", "--home", founder)
    before = office.admission.digest
    done = gossipdp(*command, "--home", founder)
    assert done.code == 3 and done.err.startswith("GD-208 this host lacks the network's newest secret")
    assert office.admission.digest == before


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_nothing_changes_without_a_yes(gossipdp: Run, founder: Path, monkeypatch: Any, answer: str) -> None:
    import io

    office = Office(monkeypatch, founder, {"spot": Identity.generate()}, state="left")
    before = office.renewal
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    done = gossipdp("keys", "rotate", "--home", founder)
    assert done.code != 0 and office.renewal == before
    assert "host0" in done.out and "Not for spot" in done.out and "which has left" in done.out
