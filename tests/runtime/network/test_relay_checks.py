"""A relay that keeps its links and carries nothing is found out, over real sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import CarriedBy, LinkDown, LinkUp
from gossipdp.runtime.network.transport import Transport
from tests.runtime.network.transports import PATIENT, PING, Net, at, name

QUICK = replace(PATIENT, dial_back=0.4, redial=0.01)


class Checked:
    """A hidden peer `me`, its relay, and `others` that are linked with both."""

    def __init__(self, net: Net, others: int) -> None:
        self.net, self.relay = net, net.peer()
        self.relay.carry(1e9)
        self.others = [net.peer(limits=QUICK) for _ in range(others)]
        self.me = net.peer(listen=None, limits=QUICK)
        relays = {name(self.relay): (at(self.relay),)}
        for other in self.others:
            other.attend((), relays)
            assert self.me.send(b"", at(other), Lane.CONTROL, PING)
        net.until(lambda: all(self.linked(other) for other in self.others))
        self.me.attend([name(self.relay)], relays)
        assert self.me.send(b"", at(self.relay), Lane.CONTROL, PING)
        net.until(self.answers)
        net.forget()

    def linked(self, other: Transport) -> bool:
        return any(link.peer == name(other) for link in self.me.links())

    def answers(self) -> list[CarriedBy]:
        return self.net.events(self.me, CarriedBy)


def test_relay_that_carries_passes_each_check_and_no_link_comes_of_it(net: Net) -> None:
    checked = Checked(net, 2)
    checks = checked.me._links._relay_checks._checks
    before = checks[name(checked.relay)]
    net.until(lambda: checks[name(checked.relay)] is not before)
    again = checks[name(checked.relay)]
    net.until(lambda: checks[name(checked.relay)] is not again)
    assert not checked.answers() and not net.events(checked.me, LinkUp) and not net.events(checked.me, LinkDown)
    assert not any(link.via for link in checked.me.links())


@pytest.mark.parametrize("others", [2, 3])
def test_relay_that_drops_what_it_should_carry_counts_as_one_that_says_no(net: Net, others: int) -> None:
    checked = Checked(net, others)
    checked.relay._links._carrier.carry = lambda *_: None  # type: ignore[method-assign]
    net.until(checked.answers)
    assert checked.answers() == [CarriedBy(name(checked.relay), False, "members do not reach this peer through it")]
    assert not checked.me._links._relay_checks._checks


def test_no_verdict_by_a_single_member(net: Net) -> None:
    checked = Checked(net, 1)
    checked.relay._links._carrier.carry = lambda *_: None  # type: ignore[method-assign]
    checks = checked.me._links._relay_checks._checks
    net.until(lambda: checks[name(checked.relay)].rounds >= 4)
    assert not checked.answers()


def test_member_dials_only_the_asker_through_a_relay(net: Net) -> None:
    checked = Checked(net, 2)
    one, other = checked.others
    where = f"@{name(checked.relay).hex()}/{name(other).hex()[:8]}"
    assert checked.me.ask_to_dial_back(name(one), where)
    net.settle(0.2)
    assert not one._links._dialling._dials
