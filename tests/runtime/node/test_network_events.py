"""What the operator reads of the peer's address when members find that they can dial it, or cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gossipdp.runtime.network.dial_causes import LISTENS
from gossipdp.runtime.network.events import Dialable, DialFailed
from gossipdp.runtime.network.refusals import Refusals
from gossipdp.runtime.node.network_events import NetworkEvents

HERE, PRIVATE = "203.0.113.7:4710", "10.0.0.4:4710"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Dialable((), (HERE,), 6), f"members tried {HERE} in vain"),
        (Dialable((PRIVATE,), (HERE,), 6), f"members tried {HERE} in vain"),
        (Dialable((HERE,), (), 0), "members have dialled it there"),
        (Dialable((HERE,), (), 0, (HERE,)), "where members see it come from, and have dialled it"),
    ],
)
def test_status_says_why_the_address_has_changed(event: Dialable, why: str) -> None:
    chosen: list[str] = []
    advertised: list[tuple[str, ...]] = []
    context: Any = SimpleNamespace(
        peer=SimpleNamespace(advertise=lambda addresses, now: advertised.append(addresses)),
        notices=SimpleNamespace(notice=lambda *about: None),
        status=SimpleNamespace(unanswered=None, choose=chosen.append),
        incarnation=1,
    )
    events = NetworkEvents(context, Refusals(()), start=b"", learned_run=lambda run: None, leaving=lambda: False)
    events.handle(event, 1.0)
    assert chosen == [why] and advertised == [event.addresses]


@pytest.mark.parametrize(("cause", "told"), [("refused", ["GD-101"]), (LISTENS, [])])
def test_peer_that_began_to_listen_just_now_is_no_trouble(cause: str, told: list[str]) -> None:
    notices: list[str] = []
    unanswered: Any = SimpleNamespace(failed=lambda *about: None)
    context: Any = SimpleNamespace(
        peer=SimpleNamespace(membership=SimpleNamespace(left=lambda address: False)),
        notices=SimpleNamespace(notice=lambda code, *about: notices.append(code)),
        status=SimpleNamespace(unanswered=unanswered),
        incarnation=1,
    )
    events = NetworkEvents(context, Refusals(()), start=b"", learned_run=lambda run: None, leaving=lambda: False)
    events.handle(DialFailed(b"", HERE, f"{HERE} {cause}", "GD-101"), 1.0)
    assert notices == told
