"""Decisions of the operator on a host whose disk is full for a while."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from gossipdp.errors import DataError
from gossipdp.protocol.wire.messages import Decision
from gossipdp.runtime.node.decisions import DecisionKeeper
from tests.protocol.admission.deciding import ban, register


def test_decision_is_in_force_at_once_and_saved_once_there_is_room() -> None:
    admission, done, full = register(decisions=[ban(b"a" * 32)]), list[Any](), [True]

    def keep(decisions: Sequence[Decision]) -> None:
        if full[0]:
            raise DataError("GD-602", "no room", seen="disk full")
        done.append(tuple(decisions))

    transport = SimpleNamespace(admission_changed=lambda: done.append("in force"))
    keeper = DecisionKeeper(admission, cast(Any, transport), keep, lambda code, text: done.append(code))
    keeper.taken()
    keeper.tick()
    assert done == ["in force", "GD-602", "GD-602"] and not keeper.saved
    full[0] = False
    keeper.tick()
    keeper.tick()
    assert done[3:] == [admission.decisions] and keeper.saved
