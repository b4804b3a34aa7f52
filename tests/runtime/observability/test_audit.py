"""The audit log: one record for each member that comes or goes, and few for refusals that repeat."""

import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import Decided, MemberChanged, OperatorDiffers, ReceiptsTaken
from gossipdp.protocol.wire.messages import Decision, Member, Receipt, State, Verdict
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.events import DialFailed, HandshakeRefused
from gossipdp.runtime.observability.audit import AGAIN, CHANGES, LOGGER, RECEIPTS, REFUSALS, Audit

MEMBER = Member(b"m" * 32, "host2", "10.0.0.2:4710", 3, 0, State.ALIVE)
WHO = {"id": MEMBER.id.hex(), "name": "host2", "address": "10.0.0.2:4710", "incarnation": 3}


class Book(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, dict[str, object]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.msg, getattr(record, "about")))  # noqa: B009

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.records]


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    made, log = Book(), logging.getLogger(LOGGER)
    monkeypatch.setattr(log, "level", logging.INFO)
    log.addHandler(made)
    yield made
    log.removeHandler(made)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, State.ALIVE, "joined"),
        (State.FAILED, State.ALIVE, "returned"),
        (State.LEFT, State.ALIVE, "returned"),
        (State.SUSPECT, State.FAILED, "failed"),
        (State.ALIVE, State.LEFT, "left"),
        (State.SUSPECT, State.ALIVE, None),
        (State.ALIVE, State.SUSPECT, None),
        (State.ALIVE, State.ALIVE, None),
        (None, State.FAILED, None),
    ],
)
def test_members_that_come_and_go(before: State | None, after: State, kind: str | None, book: Book) -> None:
    Audit(lambda: 0.0).observe(MemberChanged(replace(MEMBER, state=after), before))
    assert book.records == ([(kind, WHO)] if kind else [])


def test_decisions_and_other_operators(book: Book) -> None:
    audit = Audit(lambda: 0.0)
    audit.observe(Decided((Decision(9, Verdict.BANNED, MEMBER.id, "host2", "stolen"),)))
    audit.observe(OperatorDiffers(MEMBER.id, b"o" * 32))
    decided = {"verdict": "banned", "id": MEMBER.id.hex(), "name": "host2", "reason": "stolen", "number": 9}
    assert book.records[0] == ("decided", decided)
    assert book.records[1] == ("other operator", {"id": MEMBER.id.hex(), "operator": (b"o" * 32).hex()})


def test_refusals_that_repeat_are_counted(book: Book) -> None:
    now = [0.0]
    audit = Audit(lambda: now[0])
    for port in range(100):
        audit.hear(HandshakeRefused(f"10.0.0.9:{port}", "GD-204", "banned"))
    audit.hear(DialFailed(b"", "10.0.0.3:4710", (Cause("GD-204", "refused"),)))
    audit.hear(DialFailed(b"", "10.0.0.3:4710", (Cause("GD-101", "no answer"),)))
    assert book.kinds() == ["refused", "refused by"]
    now[0] = AGAIN
    audit.hear(HandshakeRefused("10.0.0.9:1", "GD-204", "banned"))
    assert book.records[2:] == [
        ("repeated", {"what": "refused", "about": "10.0.0.9 GD-204", "times": 99}),
        ("refused", {"address": "10.0.0.9:1", "code": "GD-204", "reason": "banned"}),
    ]


def test_many_strangers_cannot_fill_the_log(book: Book) -> None:
    audit = Audit(lambda: 0.0)
    for number in range(10_000):
        audit.hear(HandshakeRefused(f"10.0.{number // 256}.{number % 256}:1", "GD-201", "no secret"))
    assert len(book.records) == REFUSALS


def test_member_that_comes_and_goes_all_the_time_is_counted_and_told_at_the_end(book: Book) -> None:
    audit = Audit(lambda: 0.0)
    for _ in range(1000):
        audit.observe(MemberChanged(replace(MEMBER, state=State.LEFT), State.ALIVE))
        audit.observe(MemberChanged(MEMBER, State.LEFT))
    assert book.kinds() == ["left", "returned"]
    audit.close()
    assert [about["times"] for kind, about in book.records if kind == "repeated"] == [999, 999]
    for n in range(2 * CHANGES):
        audit.observe(MemberChanged(replace(MEMBER, id=n.to_bytes(32, "big")), None))
    assert book.kinds().count("joined") == CHANGES


def test_holder_of_an_invite_that_invents_hosts_cannot_fill_the_log(book: Book) -> None:
    audit = Audit(lambda: 0.0)
    for number in range(3 * RECEIPTS):
        audit.observe(ReceiptsTaken((Receipt(b"k" * 32, 1, number.to_bytes(32, "big")),)))
    assert book.kinds() == ["let in"] * RECEIPTS
    audit.close()
    assert book.records[-1] == ("repeated", {"what": "let in", "about": "others", "times": 2 * RECEIPTS})


def test_addresses_of_version_6_are_told_apart(book: Book) -> None:
    audit = Audit(lambda: 0.0)
    for address in ("fd00::1", "fd00::2", "[fd00::1]:4710", "[fd00::1]:4711"):
        audit.hear(HandshakeRefused(address, "GD-204", "banned"))
    assert [about["address"] for _, about in book.records] == ["fd00::1", "fd00::2", "[fd00::1]:4710"]
