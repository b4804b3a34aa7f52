"""Who decides, about whom, and with which key."""

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from gossipdp.errors import ConfigError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.messages import Verdict
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity
from peers.decisions import Desk, decode, describe, operator_key, subject_of

ROWS: list[dict[str, Any]] = [
    {"id": "ab" * 32, "name": "host1"},
    {"id": "abcd" + "00" * 30, "name": "host2"},
    {"id": "ff" * 32, "name": "host3"},
]
OPERATOR = Identity.generate()


def admission() -> Admission:
    return Admission(b"m" * 32, network="tiny", operator=OPERATOR.id, verify=Identity.verify)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("host2", (bytes.fromhex(ROWS[1]["id"]), "host2")),
        ("FFFF", (b"\xff" * 32, "host3")),
        ("abab", (b"\xab" * 32, "host1")),
        ("ab" * 32, (b"\xab" * 32, "host1")),
        ("12" * 32, (b"\x12" * 32, "")),
    ],
)
def test_words_that_mean_one_peer(words: str, meant: tuple[bytes, str]) -> None:
    assert subject_of(words, ROWS) == meant


def test_words_that_mean_none_or_several_are_refused_with_what_there_is() -> None:
    for words in ("host9", "ab", "1234", "", "zz" * 32):
        with pytest.raises(click.UsageError, match="no member's name"):
            subject_of(words, ROWS)
    with pytest.raises(click.UsageError, match=r"did you mean host1-2a127488\?"):
        subject_of("host1", [{"id": "12" * 32, "name": "host1-2a127488"}, *ROWS[1:]])
    with pytest.raises(click.UsageError, match=r"several members: host1 \(ab.*host2 \(abcd"):
        subject_of("abab", [*ROWS, {"id": "abab" + "00" * 30, "name": "host2 (abcd"}])


def test_decisions_of_a_desk_stand_one_after_the_other() -> None:
    here = admission()
    desk = Desk(OPERATOR, describe(here, 0))
    for verdict in (Verdict.BANNED, Verdict.NONE, Verdict.BANNED):
        assert here.take([decode(desk.about_peer(verdict, b"x" * 32, "n" * 60, "r\n\x1b" + "r" * 60))])
    (told,) = describe(here, 0)["decisions"]
    assert (told["verdict"], told["name"], told["reason"]) == ("banned", "n" * 48, "r??" + "r" * 45)
    assert here.take([decode(desk.about_network("", closed=True, allowed=[b"b" * 32, b"a" * 32, b"b" * 32]))])
    after = Desk(OPERATOR, describe(here, 0))
    assert (after.closed, after.allowed, after.banned) == (True, {b"a" * 32, b"b" * 32}, {b"x" * 32})


def test_desk_goes_on_after_a_number_from_a_clock_that_is_ahead() -> None:
    here = admission()
    ahead = Desk(OPERATOR, {**describe(here, 0), "decisions": [{"number": 1 << 60, "verdict": "open", "id": ""}]})
    assert here.take([decode(ahead.about_peer(Verdict.BANNED, b"x" * 32, "", ""))])
    assert here.take([decode(Desk(OPERATOR, describe(here, 0)).about_peer(Verdict.NONE, b"x" * 32, "", ""))])


def test_key_of_another_operator_is_refused() -> None:
    with pytest.raises(ConfigError, match="GD-207 this host does not follow this operator"):
        Desk(Identity.generate(), describe(admission(), 0))
    with pytest.raises(ConfigError, match="follows no operator"):
        Desk(OPERATOR, describe(Admission(b"m" * 32), 0))


def test_operator_key_is_that_of_the_home_or_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GD-207 the operator's key is not here"):
        operator_key(tmp_path)
    made = Identity.create(tmp_path, OPERATOR_FILE)
    assert operator_key(tmp_path).id == operator_key(tmp_path / "elsewhere", tmp_path / OPERATOR_FILE).id == made.id
    (tmp_path / OPERATOR_FILE).chmod(0o644)
    with pytest.raises(ConfigError, match="GD-206 a key file is open to other users"):
        operator_key(tmp_path)


@pytest.mark.parametrize("text", ["", "zz", "00", "93" * 10])
def test_damaged_request_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="GD-207 this is not a decision"):
        decode(text)


def test_decision_that_is_nested_too_deep__is_none() -> None:
    later = [1, 1, b"", "", "", 0, [], b"s" * 64, None, None]
    deep = msgspec.msgpack.encode([*later, msgspec.Raw(b"\x91" * 100_000 + b"\xc0")])  # as if it had one field more
    with pytest.raises(ConfigError, match="GD-207 this is not a decision"):
        decode(deep.hex())
