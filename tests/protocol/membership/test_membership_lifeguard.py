"""Lifeguard's suspicion and buddies in one Membership machine (Dadgar et al. 2018, sections IV.B and IV.C), and SWIM
without them."""

from dataclasses import replace as derive
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol.membership.config import LAN, PRESETS, MembershipConfig
from gossipdp.protocol.membership.suspects import suspicion_bounds, suspicion_timeout
from gossipdp.protocol.outputs import Envelope, Outputs
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    MAX_ACCUSERS,
    Member,
    Message,
    Nack,
    Ping,
    PingRequest,
    Pong,
    PushPull,
    State,
)
from tests.protocol.membership.machines import membership_of, peer_id

PLAIN = derive(LAN, lifeguard=False)
LEAST = 4.0 * 1.0
"""LAN's shortest suspicion up to N = 9"""
LONGEST = 6.0 * LEAST


def record(number: int, state: State = State.ALIVE, accusers: tuple[int, ...] = (), refutation: int = 0) -> Member:
    member = Member(peer_id(number), f"p{number}", f"10.0.0.{number}:4710", 1, refutation, state)
    return replace(member, accusers=tuple(map(peer_id, accusers)))


def suspect(number: int, *accusers: int) -> Member:
    return record(number, State.SUSPECT, accusers)


GRAVE = tuple(record(number, State.FAILED) for number in range(20, 31))
"""as much news as a message holds, none of which waits for other news"""


class Machine:
    """Number 0, which knows 1 to `others` as alive since time 0 and never hears from 5 again; the rest keep talking."""

    def __init__(self, config: MembershipConfig = LAN, others: int = 8) -> None:
        self.others, self.outputs = others, Outputs()
        self.membership = membership_of(record(0), Random(3), self.outputs, config=config)
        for number in range(1, others + 1):
            self.hear(Pong(0, (record(number),)), number, 0.0)

    def hear(self, message: Message, source: int, now: float) -> list[Envelope]:
        self.membership.receive(message, peer_id(source), now)  # type: ignore[arg-type]
        return self.sent()

    def sent(self) -> list[Envelope]:
        sent = list(self.outputs.messages)
        self.outputs.messages.clear()
        return sent

    def until_failed(self, number: int, limit: float = 60.0, *, probed: bool = False) -> float:
        """Run until `number` is failed. The others answer each ping; unless `probed`, `number` answers too, but the
        answers come through a relay, so that it is not heard itself."""
        while (due := self.membership.timer()) is not None and due < limit:
            self.membership.handle_timer(due)
            if self.membership.members[peer_id(number)].state == State.FAILED:
                return due
            for envelope in self.sent():
                if isinstance(envelope.message, Ping):
                    other = next(n for n in range(1, self.others + 1) if peer_id(n) == envelope.to)
                    if other != number:
                        self.hear(Pong(envelope.message.sequence, (record(other),)), other, due)
                if isinstance(envelope.message, PingRequest) and not probed:
                    relay = next(n for n in range(1, self.others + 1) if peer_id(n) == envelope.to)
                    self.hear(Pong(envelope.message.sequence, (record(relay),)), relay, due)
        raise AssertionError(f"{number} is not failed by {limit}")

    def believed(self, number: int) -> Member:
        return self.membership.members[peer_id(number)]


# -- suspicion (IV.B) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accusers", "seconds"),
    [((1,), LONGEST), ((1, 2), LONGEST / 2 + LEAST / 2), ((1, 2, 3), 8.151), ((1, 2, 3, 4), LEAST)],
)
def test_suspicion_lasts_the_shorter_the_more_members_accuse(accusers: tuple[int, ...], seconds: float) -> None:
    """max(Min, Max - (Max - Min) log(C + 1) / log(K + 1)), K = 3."""
    machine = Machine()
    machine.hear(Ping(1, (record(1), suspect(5, *accusers))), 1, 1.0)
    assert machine.until_failed(5) == pytest.approx(1.0 + seconds, abs=1e-3)


def test_confirmations_that_come_one_by_one_shorten_the_suspicion_and_are_gossiped_on() -> None:
    machine = Machine()
    for confirmed, accuser in enumerate((1, 2, 3, 4), start=1):
        told = machine.hear(Ping(accuser, (record(accuser), suspect(5, accuser))), accuser, float(confirmed))
        assert machine.believed(5) == suspect(5, *range(1, confirmed + 1))
        assert any(machine.believed(5) in envelope.message.members for envelope in told)  # type: ignore[attr-defined]
    assert machine.until_failed(5) == pytest.approx(1.0 + LEAST, abs=1e-3)


def test_same_accuser_again_is_no_confirmation() -> None:
    machine = Machine()
    for sequence, told_by in enumerate((1, 2, 3, 1)):
        machine.hear(Ping(sequence, (record(told_by), suspect(5, 1))), told_by, 1.0)
    assert machine.believed(5) == suspect(5, 1)
    assert machine.until_failed(5) == pytest.approx(1.0 + LONGEST, abs=1e-3)


def test_accusers_unknown_or_in_doubt_themselves_do_not_count() -> None:
    machine = Machine()
    machine.hear(Ping(1, (record(1), suspect(4, 1), record(6, State.FAILED))), 1, 0.5)
    machine.hear(Ping(2, (record(1), suspect(5, 1, 4, 6, 77))), 1, 1.0)
    assert machine.believed(5) == suspect(5, 1)


def test_more_accusers_than_count_are_neither_kept_nor_told_on() -> None:
    machine = Machine(others=12)
    machine.hear(Ping(1, (record(1), suspect(5, *(n for n in range(1, 10) if n != 5)))), 1, 1.0)
    assert machine.believed(5) == suspect(5, 1, 2, 3, 4)
    told = machine.hear(Ping(2, (record(9), suspect(5, 9))), 9, 1.1)
    assert machine.believed(5) == suspect(5, 1, 2, 3, 4)
    for envelope in told:
        assert wire.decode(envelope.frames)[0] == envelope.message
    assert len(suspect(5, *range(1, 9)).accusers) == MAX_ACCUSERS


def test_own_probe_in_vain_confirms_what_another_began() -> None:
    machine = Machine()
    machine.hear(Ping(1, (record(1), suspect(5, 1))), 1, 0.0)
    with pytest.raises(AssertionError, match="not failed"):
        machine.until_failed(5, 9.5, probed=True)
    assert machine.believed(5) == suspect(5, 1, 0)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_suspicion_is_shortest_once_all_there_are_have_confirmed(others: int) -> None:
    """K is at most the number of members that can confirm: none in a network of two."""
    machine = Machine(others=others)
    accused = suspect(1, 0, *range(2, others + 1))
    machine.hear(Ping(1, (record(others), accused) if others > 1 else (accused,)), others, 1.0)
    assert machine.believed(1) == accused
    assert machine.until_failed(1, probed=True) == pytest.approx(1.0 + LEAST, abs=1e-3)


def test_refutation_clears_all_accusers_and_the_next_suspicion_begins_anew() -> None:
    machine = Machine()
    machine.hear(Ping(1, (record(1), suspect(5, 1, 2, 3, 4))), 1, 1.0)
    machine.hear(Ping(2, (record(1), record(5, refutation=1))), 1, 2.0)
    assert machine.believed(5) == record(5, refutation=1)
    again = replace(suspect(5, 2), refutation=1)
    machine.hear(Ping(3, (record(2), again)), 2, 3.0)
    assert machine.believed(5) == again
    assert machine.until_failed(5) == pytest.approx(3.0 + LONGEST, abs=1e-3)


def test_accusers_of_a_record_that_is_no_suspicion_are_dropped() -> None:
    machine = Machine()
    machine.hear(Ping(1, (record(1), record(5, State.FAILED, accusers=(1, 2)))), 1, 1.0)
    assert machine.believed(5) == record(5, State.FAILED)


def test_views_that_say_failed_accuse_in_the_name_of_their_senders() -> None:
    """A peer that missed the verdict needs as many accusers as a confirmed suspicion, and not the longest wait."""
    machine = Machine()
    for source in (1, 2, 3, 4):
        machine.hear(PushPull(False, (record(source), record(5, State.FAILED))), source, 1.0)
    assert machine.believed(5) == suspect(5, 1, 2, 3, 4)
    assert machine.until_failed(5) == pytest.approx(1.0 + LEAST, abs=1e-3)


# -- buddies (IV.C) --------------------------------------------------------------------------------------------------


def test_probe_of_a_suspect_tells_it_first_of_all_and_it_refutes_at_once() -> None:
    one = Machine()
    # More news than a message holds, all of it newer than the suspicion.
    one.hear(Ping(1, (record(1), suspect(5, 1))), 1, 0.0)
    one.hear(Ping(2, (record(1), *GRAVE)), 1, 0.1)
    one.sent()
    one.membership.link_down(peer_id(5), "reset", 0.2)
    ping = None
    while ping is None:
        due = one.membership.timer()
        assert due is not None and due < 5.0
        one.membership.handle_timer(due)
        ping = next((e.message for e in one.sent() if isinstance(e.message, Ping) and e.to == peer_id(5)), None)
    assert ping.members[:2] == (record(0), suspect(5, 1))
    outputs = Outputs()
    five = membership_of(record(5), Random(1), outputs)
    five.receive(ping, peer_id(0), due)
    assert five.me == record(5, refutation=1)
    assert all(envelope.message.members[0] == five.me for envelope in outputs.messages)  # type: ignore[attr-defined]


# -- without Lifeguard -----------------------------------------------------------------------------------------------


def test_plain_swim_suspects_for_one_fixed_time_and_counts_no_accuser() -> None:
    for accusers in ((1,), (1, 2, 3, 4)):
        machine = Machine(PLAIN)
        machine.hear(Ping(1, (record(1), suspect(5, *accusers))), 1, 1.0)
        assert machine.believed(5) == suspect(5)
        assert machine.until_failed(5) == pytest.approx(1.0 + LEAST, abs=1e-3)


def test_plain_swim_has_no_local_health_no_nacks_and_no_buddies() -> None:
    machine = Machine(PLAIN)
    machine.hear(Ping(1, (record(1), suspect(5, 1))), 1, 0.0)
    machine.hear(Ping(2, (record(1), *GRAVE)), 1, 0.1)
    pong = next(e.message for e in machine.hear(Ping(7), 5, 0.2) if isinstance(e.message, Pong))
    assert record(5, State.SUSPECT) not in pong.members
    machine.hear(PingRequest(77, peer_id(5), record(5).address), 1, 0.3)
    due = machine.membership.timer()
    assert due is not None
    machine.membership.handle_timer(due + 20.0)
    assert machine.membership.health.multiplier == 1
    assert not [envelope for envelope in machine.sent() if isinstance(envelope.message, Nack)]


def test_plain_swim_that_ran_late_believes_its_own_timers() -> None:
    """What Lifeguard is for: the same delay voids suspicions there (test_membership), and fails a member here."""
    machine = Machine(PLAIN)
    machine.hear(Ping(1, (record(1), suspect(5, 1))), 1, 0.0)
    machine.membership.handle_timer(20.0)
    assert machine.believed(5).state == State.FAILED


@pytest.mark.parametrize(
    ("preset", "members", "confirmations", "seconds"),
    [
        ("local", 2, 0, 7.2),
        ("local", 16, 0, 8.860),
        ("local", 16, 3, 1.477),
        ("local", 99, 3, 2.4),
        ("lan", 2, 0, 24.0),
        ("lan", 9, 3, 4.0),
        ("lan", 16, 0, 29.531),
        ("lan", 16, 1, 17.226),
        ("lan", 16, 2, 10.029),
        ("lan", 16, 3, 4.922),
        ("lan", 128, 0, 50.655),
        ("lan", 128, 1, 29.549),
        ("lan", 128, 2, 17.202),
        ("lan", 128, 3, 8.442),
        ("lan", 999, 3, 12.0),
        ("wan", 4, 2, 4.0),
        ("wan", 16, 2, 4.922),
        ("wan", 128, 0, 50.655),
        ("wan", 128, 1, 24.021),
        ("wan", 128, 2, 8.442),
        ("wan", 128, 3, 8.442),
        ("wan", 999, 2, 12.0),
    ],
)
def test_suspicion_of_each_preset_by_members_and_confirmations(
    preset: str, members: int, confirmations: int, seconds: float
) -> None:
    config = PRESETS[preset]
    bounds = suspicion_bounds(config.suspicion_multiplier, config.suspicion_longest, members, config.probe_interval)
    assert suspicion_timeout(confirmations, config.confirmations, bounds) == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(
    ("confirmations", "expected", "seconds"),
    [(0, 3, 30.0), (1, 3, 16.0), (2, 3, 7.810), (3, 3, 2.0), (4, 3, 2.0), (0, 0, 2.0)],
)
def test_suspicion_shrinks_with_the_log_of_its_confirmations(confirmations: int, expected: int, seconds: float) -> None:
    """Lifeguard IV.B, the table of memberlist's own test."""
    assert suspicion_timeout(confirmations, expected, (2.0, 30.0)) == pytest.approx(seconds, abs=1e-3)
