"""The rows of `gossipdp members`: which members train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gossipdp.protocol.wire.messages import Member
from gossipdp.runtime.network.events import TransportCounters
from gossipdp.runtime.observability.member_rows import LATELY, Met, rows_of
from gossipdp.runtime.observability.sample_rates import SampleRates
from tests.runtime.observability.metric_samples import member, number

ME, OTHER = number(1), number(2)


def peer_with(others: list[Member], *, training: list[bytes], heard: bool) -> Any:
    members = {each.id: each for each in [member(ME), *others]}
    return SimpleNamespace(
        id=ME,
        membership=SimpleNamespace(
            members=members,
            training=lambda: training,
            heard=lambda peer: heard,
            dead_for=lambda peer, now: 0.0,
            rtt=lambda peer: None,
        ),
        replica=SimpleNamespace(clock=7),
        progress=SimpleNamespace(reports=list),
        strikes=SimpleNamespace(count=lambda peer, now: 0),
    )


@pytest.mark.parametrize(
    ("training", "heard", "exchanged", "trains"),
    [
        pytest.param([OTHER], True, -1000.0, True, id="it says so"),
        pytest.param([], True, -1000.0, False, id="it says that it does not"),
        pytest.param([], True, 1.0 - LATELY, True, id="it has not said so yet, and exchanges"),
        pytest.param([], False, -1000.0, None, id="it was never heard"),
    ],
)
def test_who_trains(training: list[bytes], heard: bool, exchanged: float, trains: bool | None) -> None:
    peer = peer_with([member(OTHER)], training=training, heard=heard)
    met = {OTHER: Met(exchanged, 1)}
    mine, other = rows_of(peer, TransportCounters(), met, SampleRates(), 0.0, training=False)
    assert (mine["me"], mine["trains"], other["trains"]) == (True, False, trains)
