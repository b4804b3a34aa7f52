"""Real peers under faults: campaigns T3, T4, T16 and T18 of the safety page, each short, and each long.

T3 and T18 are runs of `simulations.processes.namespaces.chaos` on an emulated network; T4 and T16 kill and stop peers
of one machine.
"""

import itertools
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from simulations.processes.namespaces.chaos import Chaos, Plan, Report
from simulations.processes.namespaces.faults import KINDS, SILENT, script
from simulations.processes.progress import undelayed, until
from tests.processes.running import Host, Network

pytestmark = pytest.mark.processes

LEFT_WITHIN = 10.0
"""seconds, if a CPU is free; service managers and spot markets give at least 25 s between SIGTERM and SIGKILL"""


Record = Callable[[str, object], None]


def played(plan: Plan, directory: Path, record: Record) -> Report:
    report = Chaos(plan, directory).run()
    print(report.table())
    record("faults", report.faults)
    for name, figure in report.figures.items():
        if name != "faults":
            record(name, figure)
    assert not report.violations, "\n".join(report.violations)
    return report


# -- T3: loss, cuts, delay, a slow cable ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.campaign("T3")
@pytest.mark.needs("weather")
def test_cut_killed_and_stopped_under_30_percent_loss__training_goes_on_and_all_are_together_again(
    tmp_path: Path, record_property: Record
) -> None:
    kinds = [kind for kind in KINDS if kind.startswith(("cut", "kill", "stop"))]
    plan = Plan(
        hosts=3, seed=5, seconds=8, rate="10mbit", rtt=0.04, loss=0.3, kinds=kinds, pause=(0.3, 1.0), size=20_000,
        quiet=1.0,
    )  # fmt: skip
    report = played(plan, tmp_path, record_property)
    assert report.faults >= 5 and any(row["lives"] != 1 for row in report.rows), report.table()


@pytest.mark.campaign("T3")
@pytest.mark.long
@pytest.mark.needs("weather")
@pytest.mark.parametrize("kinds", [(), ("cut",), tuple(KINDS)], ids=["loss", "loss and cuts", "loss and all faults"])
def test_a_minute_of_30_percent_loss_at_200_ms_and_10_Mbit__training_never_stops(
    kinds: tuple[str, ...], tmp_path: Path, record_property: Record
) -> None:
    plan = Plan(seed=3, rate="10mbit", rtt=0.2, loss=0.3, kinds=kinds, pause=(1.0, 5.0), size=20_000)
    report = played(plan, tmp_path, record_property)
    assert report.faults >= 10 or not kinds


# -- T4: half of the peers die in an exchange ----------------------------------------------------------------------

HALF = ("chunk 0 sent", "ACK sent", "outer step half done", "chunk 0 sent")


def armed(network: Network, now: Path) -> list[str]:
    """Kill half of the daemons, the founder's included, at a point of their next exchange, once `now` is there."""
    return [f"{point}@{2 + number % 2} if {now}" for number, point in enumerate(HALF)]


def half_dies_and_returns(network: Network, now: Path, kill_next: Path, record: Record) -> None:
    victims, survivors = network.hosts[:4], network.hosts[4:]
    since = time.monotonic()
    now.touch()
    for host in victims:
        assert host.daemon is not None
        assert host.daemon.ended() == -signal.SIGKILL, host.last_words()
    died, had = time.monotonic(), [host.exchanges() for host in survivors]
    # An exchange of two survivors: one with a killed peer would not end as done.
    for host, count in zip(survivors, had, strict=True):
        until(f"{host.name} exchanges again", lambda h=host, c=count: h.exchanges() > c, network.hosts)
    went_on = time.monotonic() - died

    again = time.monotonic()
    for host, point in zip(victims, armed(network, kill_next), strict=True):
        host.start_daemon(point)
    for host in network.hosts:
        until(f"{host.name} is in the network again", lambda host=host: network.runs(host), network.hosts)
    record("seconds until the survivors exchanged", went_on)
    record("seconds until the dead were back after their start", time.monotonic() - again)
    for host in network.hosts:
        pause = host.longest_pause(since, time.monotonic())
        assert pause < 3.0, f"{host.name} made no step for {pause:.1f} s"
    assert sum(host.text().count("model founded") for host in network.hosts) == 1
    assert not [host.name for host in network.hosts if "Traceback" in host.text()]


@pytest.mark.campaign("T4")
@pytest.mark.long
@pytest.mark.parametrize("times", [1, 3])
def test_half_of_8_killed_in_their_exchanges__survivors_go_on_and_the_dead_come_back(
    times: int, network: Callable[..., Network], tmp_path: Path, record_property: Record
) -> None:
    eight = network(8, size=20_000, pace=0.05)
    signals = [tmp_path / f"now-{number}" for number in range(times + 1)]
    eight.start(kill_at=armed(eight, signals[0]))
    eight.until_it_runs()
    for now, following in itertools.pairwise(signals):
        half_dies_and_returns(eight, now, following, record_property)


# -- T21: as many as a machine holds -------------------------------------------------------------------------------


@pytest.mark.campaign("T21")
@pytest.mark.long
def test_sixteen_peers_of_one_machine_know_each_other_and_exchange(
    network: Callable[..., Network], record_property: Record
) -> None:
    sixteen = network(16, size=20_000, pace=0.2)
    began = time.monotonic()
    sixteen.start()
    sixteen.until_it_runs()
    record_property("seconds until all knew each other and had exchanged", time.monotonic() - began)
    assert not [host.name for host in sixteen.hosts if "Traceback" in host.text()]
    assert sum(host.text().count("model founded") for host in sixteen.hosts) == 1


# -- T16: told to stop ---------------------------------------------------------------------------------------------


def stopped(network: Network, host: Host) -> tuple[float, int]:
    """Send SIGTERM in the middle of an exchange. Return the seconds that it took to
    leave, and the exchanges that it ended after the signal: those that were open."""
    daemon, others = host.daemon, network.others(host)
    assert daemon is not None
    name, mine = host.status()["id"], len(host.text())
    said = {other.name: len(other.text()) for other in others}
    until(f"{host.name} is in an exchange", lambda: host.status().get("partner"), network.hosts)
    daemon.signal(signal.SIGTERM)  # at once, or the exchange is over
    begun = undelayed()
    assert daemon.ended(LEFT_WITHIN) == 0, host.last_words()
    took = undelayed() - begun
    for other in others:
        # No peer waits for it: it has left, no exchange with it is open, and others exchange.
        until(f"{other.name} knows", lambda other=other: other.member(host.name)["state"] == "left", network.hosts)
        assert other.status()["partner"] != name, f"{other.name} still exchanges with {host.name}"
        count = other.exchanges()
        until(f"{other.name} goes on", lambda o=other, c=count: o.exchanges() > c, network.hosts)
        since = other.text()[said[other.name] :]
        assert not re.search(rf"member {host.name} .* is (suspect|failed)", since), since
        assert not re.search(rf"exchange \d+ with [^:]*{name[:8]}[^:]*: lost", since), since
    _, told, after = host.text()[mine:].partition("leaving: told to stop")
    assert told, host.last_words()
    return took, len(re.findall(r"exchange \d+ with [^:]+: \w+, \d+ of \d+ chunks", after))


@pytest.mark.campaign("T16")
@pytest.mark.long
@pytest.mark.parametrize("times", [2, 10])
def test_told_to_stop_in_an_exchange__leaves_in_time_and_no_partner_waits(
    times: int, network: Callable[..., Network], record_property: Record
) -> None:
    three = network(3, size=2_000_000, pace=0.02)
    three.start()
    three.until_it_runs()
    random, amid, tried = Random(16), 0, 0
    while amid < times:
        # An exchange may end between the status and the signal. Then this time does not count.
        assert tried < 2 * times + 2, f"{amid} of {tried} were in an exchange when they were told to stop"
        host = random.choice(three.hosts)
        took, open_then = stopped(three, host)
        tried, amid = tried + 1, amid + (open_then > 0)
        record_property("seconds to leave", took)
        host.start_daemon()
        until(f"{host.name} is back", lambda host=host: three.runs(host), three.hosts)
    record_property("stopped in an exchange", amid)
    record_property("stopped between two", tried - amid)


# -- T18: soak -----------------------------------------------------------------------------------------------------


@pytest.mark.campaign("T18")
@pytest.mark.long
@pytest.mark.needs("weather")
def test_twenty_seconds_in_which_exchanges_fail__memory_and_descriptors_stay(
    tmp_path: Path, record_property: Record
) -> None:
    plan = Plan(
        hosts=2, seed=18, seconds=20, kinds=(), failing=0.5, rate="4mbit", rtt=0.02, size=400_000, pace=0.05,
        quiet=2.0, warm_up=12, growth=1.05, descriptors=12,
    )  # fmt: skip
    report = played(plan, tmp_path, record_property)
    assert report.faults >= 2 and report.failed >= 0.2, report.figures


@pytest.mark.campaign("T18")
@pytest.mark.long
@pytest.mark.needs("weather")
def test_two_minutes_with_half_of_the_exchanges_failing__memory_and_descriptors_stay(
    tmp_path: Path, record_property: Record
) -> None:
    # Exchanges last a second here, so a cut meets most of them half way.
    plan = Plan(
        seed=18, seconds=120, kinds=(), failing=0.5, rate="4mbit", rtt=0.02, size=400_000, pace=0.05,
        warm_up=40, growth=1.02, descriptors=8,
    )  # fmt: skip
    report = played(plan, tmp_path, record_property)
    assert 0.35 <= report.failed <= 0.75, report.figures


# -- T7: a host without CPU ----------------------------------------------------------------------------------------


@pytest.mark.campaign("T7")
@pytest.mark.long
@pytest.mark.needs("weather")
def test_one_host_is_starved_of_cpu__the_others_step_on_as_before(tmp_path: Path, record_property: Record) -> None:
    plan = Plan(seed=7, seconds=40, kinds=("starve",), pause=(3.0, 6.0), quiet=10, pace=0.05, undisturbed=0.95)
    report = played(plan, tmp_path, record_property)
    assert report.faults >= 5 and report.undisturbed >= 0.95, report.figures


# -- the script itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 4, 9])
def test_script__same_seed_same_faults_and_never_more_than_half_are_silent(hosts: int) -> None:
    for seed in range(50):
        faults = script(seed, hosts, 120.0)
        assert faults == script(seed, hosts, 120.0)
        assert len(faults) > 30 and all(fault.begins < 120.0 for fault in faults)
        for fault in faults:
            there = [other for other in faults if other.begins <= fault.begins < other.ends]
            suffering = [host for other in there for host in other.hosts]
            assert len(suffering) == len(set(suffering)), "one host, one fault"
            assert sum(len(other.hosts) for other in there if other.kind in SILENT) <= hosts // 2
    assert {fault.kind for seed in range(20) for fault in script(seed, hosts, 120.0)} == set(KINDS)
