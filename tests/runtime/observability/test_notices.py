"""What the operator reads: each notice once a minute, in log, status and metrics; and log lines with peers' names."""

import logging
import math
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gossipdp.error_codes import ADVICE
from gossipdp.protocol import events
from gossipdp.protocol.causes import Fault, Outcome, Unused
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.transfer.arrived import Origin
from gossipdp.protocol.view import View
from gossipdp.protocol.wire.messages import Member, Phase, State, Verdict, short
from gossipdp.runtime.observability.join_progress import Reminder
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.notices import AGAIN, CODE_LINES, MEMBER_LINES, REMEMBERED, Notices
from gossipdp.runtime.observability.status import Status
from gossipdp.runtime.observability.unanswered import Shown
from tests.protocol.admission.deciding import OPERATOR, ban, closed, register, renewed
from tests.protocol.admission.deciding import decision as decided

SOURCE = b"s" * 32
KNOWN = Member(SOURCE, "host2", "10.0.0.2:4710", 1, 0, State.ALIVE)
ME = b"m" * 32
ADMISSION = register(ME)
MEMBERSHIP: Any = SimpleNamespace(me=SimpleNamespace(id=ME), members={SOURCE: KNOWN}, alive=lambda: [KNOWN])
NOTHING: Any = None
BOARD: Any = SimpleNamespace(mine=SimpleNamespace(rounds=3))
VIEW = View(NOTHING, ADMISSION, NOTHING, MEMBERSHIP, BOARD, NOTHING)
"""of the peer, as far as log lines need it"""
NAME = f"host2 ({short(SOURCE)})"


class Listener:
    """Stands in for status and metrics."""

    def __init__(self) -> None:
        self.heard: list[events.Event] = []
        self.notices: deque[Shown] = deque()
        self.advice: dict[str, str] = {}
        self.transport = SimpleNamespace(secret=SimpleNamespace(generation=7))

    def observe(self, event: events.Event) -> None:
        self.heard.append(event)

    def forget(self, notice: events.Notice | None) -> None:
        for each in [each for each in self.notices if each.notice == notice]:
            self.notices.remove(each)

    def note(
        self, notice: events.Notice, do: str = "", *, address: str = "", instead_of: events.Notice | None = None
    ) -> None:
        self.notices.append(Shown(notice, 0.0))
        self.advice |= {notice.code: do} if do else {}


def shown(status: Listener) -> list[str]:
    return [str(each.notice) for each in status.notices]


@pytest.fixture
def listeners(caplog: pytest.LogCaptureFixture) -> tuple[Notices, Listener, Listener]:
    caplog.set_level(logging.INFO, "gossipdp.node")
    status, metrics = Listener(), Listener()
    return Notices(VIEW, cast(Any, status), cast(Any, metrics)), status, metrics


Listeners = tuple[Notices, Listener, Listener]


def test_same_notice_again_within_a_minute__logged_once(listeners: Listeners, caplog: pytest.LogCaptureFixture) -> None:
    notices, status, _ = listeners
    for now in (0.0, 1.0, AGAIN - 0.1, AGAIN, AGAIN + 1.0):
        notices.notice("GD-102", "nobody can dial this peer", now)
    notices.notice("GD-102", "another address", 2.0)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["GD-102 nobody can dial this peer"] * 2 + ["GD-102 another address"]
    assert shown(status) == told
    assert {vars(record)["code"] for record in caplog.records} == {"GD-102"}


def test_changes_of_members_past_the_limit_of_a_minute__counted_and_not_logged(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, _, _ = listeners
    for number in range(5000):
        ghost = Member(number.to_bytes(32, "big"), "ghost", "10.0.0.1:1", 1, 0, State.ALIVE)
        notices.observe(events.MemberChanged(ghost, None), 0.001 * number)
    assert len(caplog.records) == MEMBER_LINES + 1 and "more are counted" in caplog.records[-1].getMessage()
    notices.observe(events.MemberChanged(ghost, State.FAILED), AGAIN)
    told = [record.getMessage() for record in caplog.records[-2:]]
    assert told[0].startswith("4940 more changes of members") and told[1].startswith("member ghost")


def test_change_of_a_member__told_once_and_only_if_it_is_one(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, _, _ = listeners

    def told(before: State | None, **changed: Any) -> list[str]:
        nonlocal record
        caplog.clear()
        record = replace(record, **changed)
        notices.observe(events.MemberChanged(record, before), 0.0)
        return [text.removeprefix(f"member {NAME} ") for text in caplog.messages]

    record = KNOWN
    assert told(None) == ["is alive"]
    assert told(State.ALIVE) == told(State.ALIVE, refutation=3) == []
    assert told(State.ALIVE, incarnation=2) == ["was started again"]
    assert told(State.ALIVE, address="10.0.0.9:1") == ["is dialled at 10.0.0.9:1 now"]
    waits = "ends its run: its training is over, and it waits for those that train"
    assert told(State.ALIVE, phase=Phase.WAITING) == [waits]
    assert told(State.ALIVE, phase=Phase.WAITING, refutation=4) == []
    assert told(State.ALIVE, state=State.SUSPECT) == ["is suspect: it does not answer"]
    assert told(State.SUSPECT, state=State.ALIVE) == ["is alive again"]
    assert told(State.ALIVE, state=State.FAILED) == ["has failed"]
    assert told(State.FAILED, state=State.LEFT) == ["has left: its model is not final"]
    assert told(State.FAILED, phase=Phase.DONE) == ["has left"]


def test_reminder_of_a_join_is_shown_until_the_model_is_here(listeners: Listeners) -> None:
    notices, status, _ = listeners
    notices.notice("GD-102", "another", 0.0)
    notices.remind(Reminder("GD-101", "not in the network after 30 s", "wait"))
    assert shown(status) == ["GD-102 another", "GD-101 not in the network after 30 s"]
    notices.observe(events.StateReady(Origin.RECEIVED, 50), 40.0)
    assert shown(status) == ["GD-102 another"]


def test_model_that_no_third_peer_could_compare__said_once(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, _, _ = listeners
    unseen = events.StateJudged(SOURCE, b"", True, math.nan, math.nan)
    for now in (0.0, 1.0):
        notices.observe(unseen, now)
    assert caplog.messages == [
        f"took the model from {NAME}; in a network of two there is no third peer to compare it with"
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_newer_model_for_a_training_that_starts__said_to_be_usual(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, _, _ = listeners
    for reason in (Reason.LATE, Reason.IDLE):
        notices.observe(events.ResyncBegan(reason, 0, 0, behind=200), 0.0)
    assert caplog.messages == [
        "training starts, and the model here is 200 steps old: fetching the newer one, which is normal"
    ]


def test_model_that_an_idle_peer_fetches_anew__said_at_debug_level_alone(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer has ended the fetch when its events are read."""
    notices, _, _ = listeners
    judged = events.StateJudged(SOURCE, SOURCE, True, 0.1, 0.5)
    for reason in (Reason.IDLE, Reason.LATE):
        notices.observe(events.ResyncBegan(reason, 0, 0, behind=200), 0.0)
        notices.observe(judged, 0.0)
        notices.observe(events.ResyncEnded(reason, SOURCE, True, 0.1), 0.0)
    lines = [line for line in caplog.messages if "plausible" in line]
    assert lines == [f"the model from {NAME} is found plausible by {NAME}: RMS distance 0.1, 0.5 allowed"]
    notices.observe(judged, 1.0)
    assert caplog.messages[-1] == lines[0]


def test_training_that_runs_away__a_line_at_first_and_a_notice_at_a_relapse(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, _, _ = listeners
    notices.observe(events.RanAway(True), 0.0)
    notices.observe(events.RanAway(False, again=True), 9.0)
    notices.observe(events.RanAway(True, again=True), 60.0)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]
    assert "GD-405" in caplog.messages[-1] and "as if alone" in caplog.messages[0]


CODES = ("GD-101", "GD-201", "GD-204", "GD-302", "GD-402")


def texts_of(count: int) -> list[tuple[str, str]]:
    """Codes in turn, each below its limit of lines a minute, and texts."""
    return [(CODES[number % len(CODES)], f"from fd00::{number:x}") for number in range(count)]


def test_more_texts_than_are_remembered__only_the_oldest_is_forgotten(listeners: Listeners) -> None:
    notices, status, _ = listeners
    texts = texts_of(REMEMBERED + 2)
    for code, text in texts:
        notices.notice(code, text, 0.0)
    status.notices.clear()
    for code, text in reversed(texts):
        notices.notice(code, text, 1.0)
    assert shown(status) == ["GD-201 from fd00::1", "GD-101 from fd00::0"]


def test_text_logged_again__becomes_the_newest_remembered(listeners: Listeners) -> None:
    notices, status, _ = listeners
    for code, text in texts_of(REMEMBERED):
        notices.notice(code, text, 0.0)
    for text in ("from fd00::0", "from a new one"):
        notices.notice("GD-101", text, AGAIN)
    told = shown(status)
    notices.notice("GD-101", "from fd00::0", AGAIN + 1.0)
    assert shown(status) == told


def test_texts_of_one_code_past_the_limit_of_a_minute__counted_and_not_logged(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, _, _ = listeners
    for number in range(5000):
        notices.notice("GD-201", f"from fd00::{number:x}", 0.001 * number)
    assert len(caplog.records) == CODE_LINES
    notices.notice("GD-201", "from fd01::1", 2 * AGAIN)
    told = [record.getMessage() for record in caplog.records[CODE_LINES:]]
    assert told[0] == "GD-201 4940 more warnings of this kind" and told[1].startswith("GD-201 from fd01::1")


@pytest.mark.parametrize(
    ("event", "notice"),
    [
        (events.Notice("GD-401", "no partner in 60 s"), "GD-401 no partner in 60 s"),
        (events.UpdateRefused(SOURCE, Fault.NAN), f"GD-402 update of {short(SOURCE)} refused: nan"),
        (
            events.OverBudget(SOURCE, "Offer"),
            f"GD-402 {short(SOURCE)} sends more than its budget allows: Offer dropped",
        ),
        (
            events.Struck(SOURCE, Fault.NAN, 3, 60.0),
            f"GD-402 {short(SOURCE)} is set aside for 60 s after 3 strikes, the last: nan",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_event_with_a_notice__logged_once_a_minute_and_counted_each_time(
    caplog: pytest.LogCaptureFixture, event: events.Event, notice: str
) -> None:
    peer: Any = None
    status, metrics = Status(peer, peer, "network"), Listener()
    notices = Notices(peer, status, cast(Any, metrics))
    for now in (0.0, 1.0, AGAIN):
        notices.observe(event, now)
    code = notice[:6]
    assert shown(status) == [notice] * 2
    assert caplog.messages == [f"{notice}; do: {ADVICE[code]}", notice]
    told = [each for each in metrics.heard if isinstance(each, events.Notice)]
    assert [each.code for each in told] == [code] * 3 and metrics.heard.count(event) == 3


@pytest.mark.parametrize("code", ["GD-102", "GD-501"])
def test_notice_of_the_daemon__counted_each_time(code: str) -> None:
    peer: Any = None
    status, metrics = Status(peer, peer, "network"), Metrics("0.1.0")
    notices = Notices(peer, status, metrics)
    for now in (0.0, 1.0):
        notices.notice(code, "what happened", now)
    assert metrics.registry.get_sample_value("gossipdp_notices_total", {"code": code}) == 2.0
    assert shown(status) == [f"{code} what happened"]


def test_advice__logged_once_a_code_and_shown_in_status(listeners: Listeners, caplog: pytest.LogCaptureFixture) -> None:
    notices, status, _ = listeners
    for now in (0.0, AGAIN):
        for host in "ab":
            notices.notice("GD-201", f"from {host}: another network secret", now)
    first, *others = caplog.messages
    assert first == f"GD-201 from a: another network secret; do: {ADVICE['GD-201']}" and "invite" in first
    assert others and not any("do:" in text for text in others)
    assert status.advice == {"GD-201": ADVICE["GD-201"]} and not any("do:" in text for text in shown(status))


def test_snapshot_refused__a_notice_and_counted() -> None:
    peer: Any = None
    status, metrics = Status(peer, peer, "network"), Metrics("0.1.0")
    Notices(peer, status, metrics).observe(events.SnapshotTaken(7, Unused.NAN), 0.0)
    assert shown(status) == ["GD-402 a snapshot of this host's training was not used: nan"]
    assert metrics.registry.get_sample_value("gossipdp_notices_total", {"code": "GD-402"}) == 1.0


@pytest.mark.parametrize("initiator", [True, False])
def test_line_of_an_exchange__names_the_partner_and_the_initiator(
    initiator: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gossipdp.node")
    me, peer, listener = ME, VIEW, cast(Any, Listener())
    ended = events.ExchangeEnded(
        partner=SOURCE, exchange=7, initiator=initiator, result=Outcome.DONE, codec="modulo4", chunks=16, of=16,
        distance=0.0, clipped=0, blocks=0, escalated=0, escalation_bytes=0, sent=1, received=1, duration=0.1,
    )  # fmt: skip
    Notices(peer, listener, listener).observe(ended, 0.0)
    (record,) = caplog.records
    said = vars(record)
    assert (said["initiator"], said["partner"]) == ((me if initiator else SOURCE).hex(), SOURCE.hex())
    assert (said["exchange"], said["round"]) == (7, 3)
    assert record.getMessage().startswith(f"exchange 7 with {NAME}: done, 16 of 16 chunks mixed")


@pytest.mark.parametrize(
    ("result", "chunks", "level"),
    [
        (Outcome.DONE, 16, "DEBUG"),
        (Outcome.CUT, 0, "DEBUG"),
        (Outcome.LOST, 0, "DEBUG"),
        (Outcome.CUT, 3, "INFO"),
    ],
)
def test_exchanges_that_mixed_nothing_are_counted_and_not_logged(
    result: str, chunks: int, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gossipdp.node")
    listener = cast(Any, Listener())
    ended = events.ExchangeEnded(
        partner=SOURCE, exchange=7, initiator=True, result=result, codec="modulo4", chunks=chunks, of=16,
        distance=0.0, clipped=0, blocks=0, escalated=0, escalation_bytes=0, sent=1, received=1, duration=0.1,
    )  # fmt: skip
    Notices(VIEW, listener, listener).observe(ended, 0.0)
    assert [record.levelname for record in caplog.records] == [level]


def test_reminder_of_a_usual_wait_is_a_line_and_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gossipdp.node")
    peer: Any = None
    status, metrics = Status(peer, peer, "network"), Metrics("0.1.0")
    Notices(peer, status, metrics).remind(Reminder("", "1 member is met", "wait"))
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [("INFO", "1 member is met; do: wait")]
    assert not status.notices and metrics.registry.get_sample_value("gossipdp_notices_total", {"code": ""}) is None


@pytest.mark.parametrize(
    ("complete", "outcome"),
    [
        (True, f"model fetched from {NAME}"),
        (False, "no member is left to fetch the model from: this peer goes on with its own"),
    ],
)
def test_end_of_a_resync__names_the_source_of_the_model(
    listeners: Listeners, caplog: pytest.LogCaptureFixture, complete: bool, outcome: str
) -> None:
    notices, status, metrics = listeners
    event = events.ResyncEnded(Reason.APART, SOURCE, complete, 3.0)
    notices.observe(event, 0.0)
    assert status.heard == metrics.heard == [event]
    assert caplog.messages == [f"re-sync (apart) ended after 3.0 s: {outcome}"]


def test_strike__logged__and_a_member_set_aside_is_a_notice(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, status, _ = listeners
    notices.observe(events.Struck(SOURCE, "payload", 2, 0.0), 0.0)
    notices.observe(events.Struck(SOURCE, Fault.NAN, 3, 60.0), 1.0)
    aside = f"GD-402 {short(SOURCE)} is set aside for 60 s after 3 strikes, the last: nan"
    assert caplog.messages == [f"strike 2 against {NAME}: payload", f"{aside}; do: {ADVICE['GD-402']}"]
    assert shown(status) == [aside]
    assert {vars(record)["partner"] for record in caplog.records} == {SOURCE.hex()}


def test_decisions_of_the_operator_are_told__and_what_keeps_this_peer_out_is_a_notice(
    listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    notices, status, _ = listeners
    for decision in (
        ban(SOURCE, name="host2", reason="stolen"),
        decided(Verdict.NONE, SOURCE, 2, name="host2"),
        closed(SOURCE, ME),
        ban(ME, name="me", reason="by mistake"),
        closed(SOURCE, number=2),
        decided(Verdict.NONE, ME, 2, name="me"),
    ):
        ADMISSION.take([decision])
        notices.observe(events.Decided((decision,)), 0.0)
    notices.observe(events.OperatorDiffers(SOURCE, b"x" * 32), 0.0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:3] == [
        f"operator: {NAME} is banned (stolen)",
        f"operator: {NAME} is no longer banned",
        "operator: the network admits only 2 allowed peers",
    ]
    assert shown(status) == [
        "GD-204 the operator has banned this peer (by mistake)",
        "GD-204 the network is closed, and the operator has not allowed this peer",
        f"GD-207 {NAME} follows the operator {(b'x' * 32).hex()}, but this host follows {OPERATOR.hex()}",
    ]


@pytest.mark.parametrize(
    ("number", "replaces", "said"),
    [
        (9, 9, []),  # a new network has its first secret
        (7, 5, []),  # the invite of this host held it
        (9, 7, ["operator: the network has a new secret, for 1 peer"]),
    ],
)
def test_secret_is_told_if_it_is_news(
    listeners: Listeners, caplog: pytest.LogCaptureFixture, number: int, replaces: int, said: list[str]
) -> None:
    listeners[0].observe(events.Decided((renewed(SOURCE, number=number, replaces=replaces),)), 0.0)
    assert caplog.messages == said
