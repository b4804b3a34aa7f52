"""The rows of `gossipdp members`: which members train."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.messages import Member, Progress
from gossipdp.runtime.network.events import TransportCounters
from gossipdp.runtime.observability.lags import Lags
from gossipdp.runtime.observability.member_rows import LATELY, Met, rows_of, versions_of
from gossipdp.runtime.observability.sample_rates import SampleRates
from tests.runtime.observability.metric_samples import member, number

ME, OTHER = number(1), number(2)


def view_with(others: list[Member], *, training: list[bytes], heard: bool, admission: Admission | None = None) -> Any:
    members = {each.id: each for each in [member(ME), *others]}
    return SimpleNamespace(
        id=ME,
        members=members,
        training=training,
        heard=lambda peer: heard,
        dead_for=lambda peer, now: 0.0,
        rtt=lambda peer: None,
        known_for=lambda peer: 60.0,
        has_voice=lambda peer: True,
        clock=7,
        why_not=(admission or Admission(ME)).why_not,
        reports=[],
        strikes=lambda peer, now: 0,
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
    view = view_with([member(OTHER)], training=training, heard=heard)
    met = {OTHER: Met(exchanged, 1)}
    mine, other = rows_of(view, TransportCounters(), {}, met, SampleRates(), Lags(), 0.0, training=False)
    assert (mine["me"], mine["trains"], other["trains"]) == (True, False, trains)


def test_excluded_members_and_protocols_are_told() -> None:
    view = view_with([member(OTHER)], training=[], heard=True, admission=Admission(ME, banned=frozenset({OTHER})))
    rows = rows_of(view, TransportCounters(), {}, {}, SampleRates(), Lags(), 0.0, training=True)
    assert {row["id"]: row["excluded"] for row in rows} == {
        ME.hex(): "", OTHER.hex(): "[safety] ban of this host names it"
    }  # fmt: skip
    assert {row["protocol"] for row in rows} == {member(OTHER).version}


def test_lag_is_counted_since_the_last_report_and_not_by_the_clock_in_it() -> None:
    view, lags = view_with([member(OTHER)], training=[], heard=True), Lags()
    report = Progress(OTHER, 2, 2, 16, 1)
    view.reports = [report]
    lags.look([report], 4)
    rows = rows_of(view, TransportCounters(), {}, {}, SampleRates(), lags, 0.0, training=True)
    assert [row["lag"] for row in rows] == [None, 3]


def test_versions_of_the_members_with_the_newest_first() -> None:
    older = [replace(member(number(n)), version=3, software="0.1.0", name=f"old{n}") for n in (5, 4)]
    newer = replace(member(ME), version=4, software="0.2.0", name="new")
    assert versions_of([*older, newer]) == [
        {"version": "0.2.0", "protocol": 4, "count": 1, "names": ["new"]},
        {"version": "0.1.0", "protocol": 3, "count": 2, "names": ["old4", "old5"]},
    ]
