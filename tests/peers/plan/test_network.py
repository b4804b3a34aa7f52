"""A network's figures: the texts in which a user gives them, and what daemons of a running network answer."""

from typing import Any

import pytest

from gossipdp.errors import ConfigError
from peers.plan.network import network_of, percent, read
from peers.plan.running import figures_of
from tests.peers.plan.networks import FLAGS, network


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("parameters", "1e9", 10**9),
        ("parameters", "350M", 350_000_000),
        ("parameters", "1.5B", 1_500_000_000),
        ("parameters", "124439808", 124_439_808),
        ("step_time", "0.5", 0.5),
        ("step_time", "500ms", 0.5),
        ("step_time", "2m", 120.0),
        ("hosts", "8", 8),
        ("speeds", "1,1,2,4", (1.0, 1.0, 2.0, 4.0)),
        ("bandwidth", "100Mbit", 12.5e6),
        ("bandwidth", "100mbit/s", 12.5e6),
        ("bandwidth", "1 Gbit", 125e6),
        ("bandwidth", "10Gbps", 1.25e9),
        ("latency", "50ms", 0.05),
        ("latency", "0ms", 0.0),
        ("price_per_gb", "0.09", 0.09),
    ],
)
def test_figures_are_read(name: str, text: str, value: Any) -> None:
    assert read(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parameters", "0"),
        ("parameters", "1x"),
        ("parameters", "-5M"),
        ("parameters", "100B"),
        ("parameters", "1e999"),
        ("step_time", "0"),
        ("step_time", "fast"),
        ("hosts", "1"),
        ("hosts", "2.5"),
        ("speeds", "1,0"),
        ("speeds", "1,,2"),
        ("speeds", "1,nan"),
        ("speeds", "1,17"),
        ("bandwidth", "100"),
        ("bandwidth", "100MB"),
        ("latency", "50"),
        ("latency", "11s"),
        ("price_per_gb", "-1"),
        ("price_per_gb", "nan"),
    ],
)
def test_figures_that_are_not_allowed__the_error_names_flag_value_and_form(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(name, text)
    flag = f"--{name.replace('_', '-')}"
    assert caught.value.code == "GD-324" and caught.value.exit_code == 3
    assert flag in caught.value.cause and repr(text) in caught.value.seen and flag in caught.value.do


def test_speeds_are_multiples_of_the_slowest_and_are_repeated() -> None:
    there = network(hosts="4", speeds="2,0.5", step_time="3")
    assert there.speeds == (1.0, 1.0, 4.0, 4.0) and there.typical == 2.5 and not there.equal
    assert there.step_time == 6.0, "3 s are of a host of speed 1, and the slowest has half of it"
    assert network().speeds == (1.0,) * 8 and network().equal


def test_speeds_alone_tell_the_number_of_hosts() -> None:
    figures = {name: read(name, text) for name, text in FLAGS.items() if name != "hosts"}
    assert network_of(figures | {"speeds": (1.0, 1.0, 2.0)}).hosts == 3
    with pytest.raises(ConfigError, match="GD-324"):
        network_of(figures | {"speeds": (1.0,)})


def test_missing_figures_are_named_with_the_reason_if_it_is_known() -> None:
    with pytest.raises(ConfigError) as caught:
        network_of({"parameters": 10, "hosts": 2, "step_time": None}, {"step_time": "no round yet"})
    assert caught.value.seen == "no --step-time (no round yet), --bandwidth, --latency"


def test_more_speeds_than_hosts_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        network(hosts="2", speeds="1,2,3")
    assert caught.value.seen == "3 speeds, 2 hosts"


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.001, "<1 %"), (0.31, "31 %"), (0.9964, ">99 %"), (1.0, "100 %")]
)
def test_shares_never_say_none_or_all_unless_it_is_so(share: float, text: str) -> None:
    assert percent(share) == text


STATUS: dict[str, Any] = {
    "parameters": 1_000_000,
    "samples_per_second": 64.0,
    "steps": 100,
    "samples": 1600,
    "last_exchange": {"seconds": 2.0, "received_bytes": 400_000},
}
MEMBERS: list[dict[str, Any]] = [
    {"me": True, "state": "alive", "trains": True, "rtt": None, "samples_per_second": 64.0},
    {"state": "alive", "trains": True, "rtt": 0.02, "samples_per_second": 32.0},
    {"state": "alive", "trains": None, "rtt": 0.06, "samples_per_second": 128.0},
    {"state": "alive", "trains": False, "rtt": 0.5, "samples_per_second": None},
    {"state": "failed", "trains": None, "rtt": 0.5, "samples_per_second": 1.0},
]


def test_all_figures_of_a_network_that_trains() -> None:
    found = {name: each.value for name, each in figures_of(STATUS, MEMBERS).items()}
    assert found == {
        "parameters": 1_000_000,
        "step_time": pytest.approx(0.25),
        "hosts": 3,
        "speeds": (1.0, 0.5, 2.0),
        "bandwidth": 200_000.0,
        "latency": pytest.approx(0.02),
    }


def test_figures_that_are_not_known_yet_say_why() -> None:
    found = figures_of({"parameters": 0, "samples_per_second": None, "last_exchange": {}}, MEMBERS[:1])
    assert {name for name, each in found.items() if each.value is None} == set(found) - {"hosts"}
    assert "no model yet" in found["parameters"].how and "two rounds" in found["step_time"].how
    assert "no exchange" in found["bandwidth"].how and "equal" in found["speeds"].how


def test_one_unknown_rate_leaves_all_speeds_unknown() -> None:
    rows = [*MEMBERS[:2], MEMBERS[2] | {"samples_per_second": None}]
    assert figures_of(STATUS, rows)["speeds"].value is None


def test_a_host_that_hardly_moves_counts_as_the_slowest_that_a_plan_takes() -> None:
    rows = [MEMBERS[0], MEMBERS[1] | {"samples_per_second": 0.001}]
    assert figures_of(STATUS, rows)["speeds"].value == (1.0, 1.0 / 16.0)


def test_speeds_that_differ_by_less_than_daemons_follow_are_equal() -> None:
    rows = [MEMBERS[0], MEMBERS[1] | {"samples_per_second": 60.0}]
    assert figures_of(STATUS, rows)["speeds"].value == (1.0, 1.0)
