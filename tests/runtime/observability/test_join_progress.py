"""A join that makes no headway is told every half minute, with what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipdp.protocol.peer import Peer
from gossipdp.runtime.observability.join_progress import EVERY, Headway, Reminder


class Joining:
    """A joiner's look at itself, every half second from 1,000 s on."""

    def __init__(self) -> None:
        self.headway, self.now, self.transfer = Headway(1000.0), 1000.0, ""
        self.peer: Any = SimpleNamespace(ready=False, founds=False, membership=SimpleNamespace(alive=list))

    def wait(self, seconds: float) -> list[Reminder]:
        said = []
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            said.append(self.headway.look(cast(Peer, self.peer), self.transfer, self.now))
        return [each for each in said if each is not None]


def test_no_member_answers__said_every_half_minute_with_each_address_and_what_to_do() -> None:
    joining = Joining()
    joining.headway.failed("a:1", "GD-101", "a:1: 10.0.0.1:1 refused", "start a peer there")
    joining.headway.failed("b:2", "GD-101", "b:2: 10.0.0.2:2 timed out", "open TCP port 2")
    assert joining.wait(EVERY - 1) == []
    first, second = joining.wait(EVERY + 2)
    text = "not in the network after 30 s: a:1: 10.0.0.1:1 refused; b:2: 10.0.0.2:2 timed out"
    assert first == Reminder("GD-101", text, "open TCP port 2")
    assert second.text.startswith("not in the network after 60 s: ")


def test_no_address_is_known__said_too() -> None:
    [said] = Joining().wait(EVERY)
    assert said.code == "GD-101" and "--seed" in said.do


def test_members_without_a_model__said_from_when_they_were_met() -> None:
    joining = Joining()
    joining.wait(20)
    joining.peer.membership.alive = lambda: ["a", "b"]
    assert joining.wait(EVERY) == []
    [said] = joining.wait(1)
    assert said.code == "GD-106" and said.text == "2 members are met, and none has given a model for 30 s"


def test_model_that_stops_on_its_way__said__one_that_comes_on_is_not() -> None:
    joining = Joining()
    joining.peer.membership.alive = lambda: ["a"]
    for chunk in range(10):
        joining.transfer = f"{chunk} of 16 chunks from ab"
        assert joining.wait(EVERY - 5) == []
    [said] = joining.wait(EVERY)
    assert "9 of 16 chunks from ab" in said.text


@pytest.mark.parametrize("state", ["ready", "founds"])
def test_peer_that_has_joined_or_founds__nothing_is_said_ever_after(state: str) -> None:
    joining = Joining()
    setattr(joining.peer, state, True)
    assert joining.wait(2 * EVERY) == []
    setattr(joining.peer, state, False)
    assert joining.wait(4 * EVERY) == []
