"""A join without progress: the operator is reminded every half minute, with what to do."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipdp.protocol.view import View
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.observability.join_progress import EVERY, FOUNDER_STARTS, JoinProgress, Reminder
from gossipdp.runtime.observability.unanswered import Unanswered


class Joining:
    """A joiner that is looked at every half second from 1,000 s on."""

    def __init__(self) -> None:
        self.unanswered = Unanswered()
        self.progress, self.now, self.transfer = JoinProgress(1000.0, self.unanswered), 1000.0, ""
        self.view: Any = SimpleNamespace(ready=False, founds=False, alive=(), me=SimpleNamespace(only_carries=False))

    def wait(self, seconds: float) -> list[Reminder]:
        said = []
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            said.append(self.progress.look(cast(View, self.view), self.transfer, self.now))
        return [each for each in said if each is not None]


def test_no_member_answers__reminder_every_half_minute_with_addresses_and_advice() -> None:
    joining = Joining()
    joining.unanswered.failed("a:1", (Cause("GD-101", "refused").at("10.0.0.1:1"),), "start a peer there", 1000.0)
    joining.unanswered.failed("b:2", (Cause("GD-101", "timed out").at("10.0.0.2:2"),), "open TCP port 2", 1000.0)
    assert joining.wait(EVERY - 1) == []
    first, second = joining.wait(EVERY + 2)
    text = "not yet in the network after 30 s: a:1: 10.0.0.1:1 refused; b:2: 10.0.0.2:2 timed out"
    assert first == Reminder("GD-101", text, "open TCP port 2")
    assert second.text.startswith("not yet in the network after 60 s: ")


def test_no_address_is_known__reminder_asks_for_a_seed() -> None:
    [said] = Joining().wait(EVERY)
    assert said.code == "GD-101" and "--seed" in said.do


def test_members_give_no_model__reminder_counts_from_the_first_member() -> None:
    joining = Joining()
    joining.wait(20)
    joining.view.alive = ("a", "b")
    assert joining.wait(EVERY) == []
    [said] = joining.wait(1)
    assert said.code == "" and said.text == "2 members are met, but none has given a model for 30 s"
    assert [each.code for each in joining.wait(FOUNDER_STARTS)] == ["", "", "", "", "GD-106", "GD-106"]


def test_transfer_stops__reminder__and_none_while_it_goes_on() -> None:
    joining = Joining()
    joining.view.alive = ("a",)
    for chunk in range(10):
        joining.transfer = f"{chunk} of 16 chunks from ab"
        assert joining.wait(EVERY - 5) == []
    [said] = joining.wait(EVERY)
    assert "9 of 16 chunks from ab" in said.text


@pytest.mark.parametrize("state", ["ready", "founds"])
def test_peer_has_joined_or_founds__no_reminder_any_more(state: str) -> None:
    joining = Joining()
    setattr(joining.view, state, True)
    assert joining.wait(2 * EVERY) == []
    setattr(joining.view, state, False)
    assert joining.wait(4 * EVERY) == []
