"""Whether other peers can dial this one: the questions, their times and the verdict, and what else a peer may ask."""

import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import dial_backs, signed_hello
from gossipdp.runtime.network.events import DialledBack, Measured
from gossipdp.runtime.network.reachability import OPINIONS, Reachability
from gossipdp.runtime.network.signed_hello import MAX_FILLER, Measure, pack
from tests.runtime.network.transports import PATIENT, Net, at, name

PEERS = [bytes([number]) * 32 for number in range(5)]
ADDRESS = "192.0.2.1:4710"


def asking(said: int = 0) -> tuple[Reachability, float]:
    """A peer in its first round, in which `said` peers have answered that their dials failed."""
    reachability = Reachability([ADDRESS], 10.0)
    reachability.link_up(False, 100.0)
    now = reachability.timer()
    reachability.end_round()
    for peer in reachability.begin_round(PEERS, now)[:said]:
        reachability.in_vain(peer, ADDRESS, now, tried=True)
    return reachability, now


def test_nothing_advertised__never_asks() -> None:
    reachability = Reachability([], 10.0)
    reachability.link_up(False, 1.0)
    reachability.link_up(True, 2.0)
    assert reachability.timer() == math.inf and reachability.dialable is None and reachability.usable == ()


def test_no_link_yet__waits_for_one() -> None:
    assert Reachability([ADDRESS], 10.0).timer() == math.inf


def test_dialled_out__asks_some_peers_soon_after() -> None:
    reachability, now = asking()
    assert now == 102.0 and list(reachability.asked) == PEERS[:OPINIONS] and reachability.address == ADDRESS
    assert reachability.timer() == 112.0


@pytest.mark.parametrize("said", [0, 3])
@pytest.mark.parametrize("met", [False, True])
def test_link_comes_in_or_peer_met_it__dialable_and_never_asks_again(said: int, met: bool) -> None:
    reachability, now = asking(said)
    if met:
        reachability.met(PEERS[0], ADDRESS, now)
    else:
        reachability.link_up(True, now)
    assert reachability.dialable is True and reachability.timer() == math.inf
    reachability.link_up(False, now + 1)
    assert reachability.timer() == math.inf and reachability.usable == (ADDRESS,)


def test_two_failed_rounds__not_dialable_and_asks_less_and_less_often() -> None:
    reachability, _ = asking(said=2)
    pauses = []
    for number in range(10):
        now = reachability.timer()
        reachability.end_round()
        assert reachability.dialable is (None if number == 0 else False)
        reachability.begin_round(PEERS[:1], now)
        reachability.in_vain(PEERS[0], ADDRESS, now, tried=False)
        pauses.append(reachability.timer() - now)
    assert reachability.usable == () and reachability.dropped == (ADDRESS,)
    # The first verdict is not waited for longer than those asked take to answer.
    assert pauses == [6, 20, 40, 80, 160, 320, 640, 640, 640, 640]
    reachability.link_up(True, now)
    assert reachability.dialable is True and reachability.usable == (ADDRESS,) and reachability.dropped == ()


def test_no_answers__nothing_is_known() -> None:
    reachability, _ = asking()
    for _ in range(5):
        now = reachability.timer()
        reachability.end_round()
        reachability.begin_round(PEERS, now)
    assert reachability.dialable is None


@pytest.mark.parametrize(("peer", "address"), [(PEERS[4], ADDRESS), (PEERS[0], "192.0.2.2:4710")])
def test_answer_that_was_not_asked_for__ignored(peer: bytes, address: str) -> None:
    reachability, now = asking()
    reachability.in_vain(peer, address, now, tried=True)
    reachability.met(peer, address, now)
    assert not any(reachability.asked.values()) and reachability.dialable is None


def test_last_answer_is_late__the_round_ends_at_once() -> None:
    reachability, now = asking(said=2)
    assert reachability.timer() == now + 10.0
    reachability.in_vain(PEERS[2], ADDRESS, now + 8.0, tried=True)
    assert reachability.timer() == now + 8.0


# -- several addresses -------------------------------------------------------------------------------------------

PUBLIC, SIX, PRIVATE = "8.8.4.4:4710", "[2600::4]:4710", "10.0.0.4:4710"


def settled(answers: dict[str, str], *, inbound: bool = False, rounds: int = 12) -> Reachability:
    """A peer with three addresses after some rounds, in which peers answer "met", "tried" or "no way" to each."""
    reachability = Reachability([PUBLIC, SIX, PRIVATE], 10.0)
    reachability.link_up(inbound, 0.0)
    for _ in range(rounds):
        if (now := reachability.timer()) == math.inf:
            break
        reachability.end_round()
        for peer in reachability.begin_round(PEERS, now):
            if answers[reachability.address] == "met":
                reachability.met(peer, reachability.address, now)
            else:
                reachability.in_vain(peer, reachability.address, now, tried=answers[reachability.address] == "tried")
    return reachability


@pytest.mark.parametrize("inbound", [False, True])
@pytest.mark.parametrize(
    ("public", "six", "private", "usable"),
    [
        ("met", "met", "met", (PUBLIC, SIX, PRIVATE)),
        ("tried", "met", "tried", (SIX, PRIVATE)),
        ("met", "tried", "tried", (PUBLIC, PRIVATE)),
        ("met", "no way", "no way", (PUBLIC, SIX, PRIVATE)),
        ("tried", "tried", "met", (PRIVATE,)),
    ],
)
def test_each_address_is_asked_about__public_ones_tried_in_vain_are_dropped(
    public: str, six: str, private: str, usable: tuple[str, ...], inbound: bool
) -> None:
    reachability = settled({PUBLIC: public, SIX: six, PRIVATE: private}, inbound=inbound)
    assert reachability.usable == usable and reachability.dialable is True
    assert reachability.timer() == math.inf and set(reachability.dropped) == {PUBLIC, SIX, PRIVATE} - set(usable)


@pytest.mark.parametrize(("inbound", "usable"), [(False, ()), (True, (PRIVATE,))])
def test_all_in_vain__not_dialable_unless_a_link_came_in(inbound: bool, usable: tuple[str, ...]) -> None:
    reachability = settled({PUBLIC: "tried", SIX: "tried", PRIVATE: "tried"}, inbound=inbound)
    assert reachability.usable == usable
    reachability.link_up(True, 1e6)
    assert reachability.usable == (PRIVATE,)


def test_members_see_it_come_from_another_address__advertised_first_once_a_peer_met_it_there() -> None:
    reachability = Reachability([PRIVATE], 10.0)
    reachability.link_up(True, 0.0)
    assert reachability.timer() == math.inf
    reachability.consider(PUBLIC, 1.0)
    reachability.consider(PUBLIC, 1.0)
    reachability.consider(PRIVATE, 1.0)
    now = reachability.timer()
    assert now == 3.0 and reachability.usable == (PRIVATE,)
    reachability.end_round()
    assert reachability.begin_round(PEERS, now) == PEERS[:OPINIONS] and reachability.address == PUBLIC
    reachability.met(PEERS[0], PUBLIC, now)
    assert reachability.usable == (PUBLIC, PRIVATE) and reachability.timer() == math.inf


@pytest.mark.parametrize("inbound", [False, True])
def test_address_that_a_member_named_does_not_work__never_advertised_and_few_are_asked_about(inbound: bool) -> None:
    reachability = Reachability([PRIVATE], 10.0)
    reachability.link_up(inbound, 0.0)
    for number in range(1, 5):
        reachability.consider(f"8.8.4.{number}:4710", 0.0)
    asked = []
    for _ in range(20):
        if (now := reachability.timer()) == math.inf or reachability.dialable is False:
            break
        reachability.end_round()
        for peer in reachability.begin_round(PEERS, now):
            asked.append(reachability.address)
            reachability.in_vain(peer, reachability.address, now, tried=True)
    assert set(asked) - {PRIVATE} == {"8.8.4.1:4710", "8.8.4.2:4710"}
    assert reachability.usable == ((PRIVATE,) if inbound else ())


@pytest.mark.parametrize(
    ("advertised", "seen", "asked"),
    [
        ((PRIVATE,), "8.8.4.4", PUBLIC),
        ((PRIVATE, SIX), "8.8.4.4", PUBLIC),
        (("8.8.8.8:4710",), "8.8.4.4", ""),
        (("host.example:4710",), "8.8.4.4", ""),
        ((PRIVATE, PUBLIC), "2600::4", SIX),
        ((PRIVATE,), "192.168.0.9", ""),
        # A VPN that runs outside the kernel, as in a rented container: no interface has the address.
        ((PRIVATE, PUBLIC), "100.101.1.2", "100.101.1.2:4710"),
        (("100.101.1.3:4710",), "100.101.1.2", ""),
        (("100.101.1.3:4710",), "8.8.4.4", PUBLIC),
    ],
)
def test_members_see_it_come_from_a_network_of_which_it_advertises_no_address__asks_about_that(
    monkeypatch: pytest.MonkeyPatch, advertised: tuple[str, ...], seen: str, asked: str
) -> None:
    considered: list[str] = []
    monkeypatch.setattr(Reachability, "consider", lambda self, address, now: considered.append(address))
    turn = SimpleNamespace(now=0.0, tell=lambda event: None)
    made = dial_backs.DialBacks(SimpleNamespace(limits=PATIENT, turn=turn), None)  # type: ignore[arg-type]
    made.advertise(advertised, 4710)
    made.seen_at(seen)
    assert considered == [asked][: bool(asked)]


def test_not_dialable__every_address_is_asked_about_again_in_turn() -> None:
    reachability = settled({PUBLIC: "tried", SIX: "tried", PRIVATE: "tried"})
    again = set()
    for _ in range(3):
        now = reachability.timer()
        reachability.end_round()
        reachability.begin_round(PEERS, now)
        again.add(reachability.address)
    assert again == {PUBLIC, SIX, PRIVATE}


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
    monkeypatch.setattr(dial_backs, "BUDGET", 3000)
    monkeypatch.setattr(dial_backs, "TOTAL", 4000)
    a, b, c = net.peer(), net.peer(), net.peer()
    net.link(a, b)
    net.link(c, b)

    def filler(asker, number: int) -> int:
        assert asker.measure(name(b), Lane.DATA, number, send=500, back=1000)
        net.until(lambda: any(event.number == number for event in net.events(asker, Measured)))
        return net.events(asker, Measured)[-1].filler

    assert [filler(a, number) for number in range(3)] == [1000, 1000, 0]
    assert [filler(c, number) for number in range(2)] == [0, 0]  # 3,000 of 4,000 bytes are spent: 1,500 do not fit
    monkeypatch.setattr(dial_backs, "WINDOW", 0.0)
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
    a, b = net.peer(), net.peer(limits=replace(PATIENT, dial_back=0.6))
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
