"""What one peer may ask another about the way between them."""

from __future__ import annotations

import time

import pytest

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import examining, signed_hello
from gossipdp.runtime.network.events import DialledBack, Measured
from gossipdp.runtime.network.signed_hello import MAX_FILLER, Measure, pack
from tests.runtime.network.transports import Net, at, name


@pytest.mark.parametrize("lane", list(Lane))
def test_a_member_tells_its_clock_and_sends_as_much_as_asked_for(net: Net, lane: Lane) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    before = time.time()
    assert a.measure(name(b), lane, 7, send=1000, back=MAX_FILLER)
    net.until(lambda: net.events(a, Measured))
    (told,) = net.events(a, Measured)
    assert (told.peer, told.number, told.received, told.filler) == (name(b), 7, 1000, MAX_FILLER)
    assert before <= told.clock <= time.time()
    assert b.counters.received_bytes[(name(a), lane)] >= 1000
    assert b.counters.sent_bytes[(name(a), lane)] == MAX_FILLER


def test_without_a_link_nothing_is_asked(net: Net) -> None:
    a, b = net.peer(), net.peer()
    assert not a.measure(name(b), Lane.CONTROL, 1)
    assert not a.ask_to_dial_back(name(b), at(a))


def test_budget_is_spent__answers_have_no_filler_until_the_window_is_over(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "BUDGET", 3000)
    monkeypatch.setattr(examining, "TOTAL", 4000)
    a, b, c = net.peer(), net.peer(), net.peer()
    net.link(a, b)
    net.link(c, b)

    def filler(asker, number: int) -> int:
        assert asker.measure(name(b), Lane.DATA, number, send=500, back=1000)
        net.until(lambda: any(event.number == number for event in net.events(asker, Measured)))
        return net.events(asker, Measured)[-1].filler

    assert [filler(a, number) for number in range(3)] == [1000, 1000, 0]
    assert [filler(c, number) for number in range(2)] == [0, 0]  # 3,000 of 4,000 bytes are spent: 1,500 do not fit
    monkeypatch.setattr(examining, "WINDOW", 0.0)
    assert filler(a, 4) == 1000


@pytest.mark.parametrize(
    "frames",
    [
        [*pack(Measure(1, 0)), bytes(MAX_FILLER + 1)],
        [*pack(Measure(1, 0)), b"one", b"two"],
        [*pack(signed_hello.Probe()), b"more"],
        [b"\xc1" + b"\x93\x0c\x01\xff"],
    ],
    ids=["too-much-filler", "two-fillers", "filler-after-another-message", "malformed"],
)
def test_malformed_questions_are_dropped_and_the_link_stays(net: Net, frames: list[bytes]) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    assert a.send(name(b), at(b), Lane.DATA, frames)
    net.until(lambda: b.counters.drops["malformed"] == 1)
    assert a.measure(name(b), Lane.CONTROL, 2)
    net.until(lambda: net.events(a, Measured))


def test_a_member_dials_back_and_tells_what_it_met(net: Net, closed_port: int) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    assert a.seen == "127.0.0.1" and b.seen == ""
    assert a.ask_to_dial_back(name(b), at(a))
    net.until(lambda: net.events(a, DialledBack))
    assert net.events(a, DialledBack) == [DialledBack(name(b), at(a), True, True)]
    net.forget()
    c = net.peer()  # an asker is served seldom
    net.link(c, b)
    assert c.ask_to_dial_back(name(b), f"127.0.0.1:{closed_port}")
    net.until(lambda: net.events(c, DialledBack))
    assert net.events(c, DialledBack) == [DialledBack(name(b), f"127.0.0.1:{closed_port}", False, True)]
