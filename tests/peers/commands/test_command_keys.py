"""`gossipdp keys`: what it shows, and a new secret for the network."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.network.identity import Identity, NetworkSecret, digest_of
from peers.commands import renewal
from tests.peers.commands.office import Office
from tests.peers.commands.running import Run


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
