"""kill -9 of a daemon, of its training process, and of both, at named points of the work (safety I2, I7, I8).

Four peers train; one is killed. What must hold: the others' steps never stop; a dead daemon is `failed` for all of
them; started again, it has the network's model and exchanges. `tests/protocol/membership/test_detection.py` tests in
virtual time how soon a death is known.
"""

import itertools
import json
import math
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.processes.running import Host, Network, byte_gpt, byte_gpt_steps, gossipdp, until

pytestmark = [pytest.mark.processes, pytest.mark.campaign("T4")]
Record = Callable[[str, object], None]

POINTS = ("chunk 7 sent", "ACK sent", "outer step half done")
VICTIMS = ("daemon", "both", "daemon", "both", "both")
PAUSE = 2.0
"""seconds without a step, though a CPU was free; a peer that waits for another pauses longer"""
STALL_SHARE = 0.05
"""share of the time from the death to the return: a busy machine stretches copies and that time equally"""


def until_dead(host: Host, victim: str) -> float:
    """Wait for the death that the daemon was armed for. Return its time."""
    first = host.training if victim == "training" else host.daemon
    assert first is not None and host.training is not None
    assert first.ended() == -9, host.last_words()
    now = time.monotonic()
    if victim == "both":
        assert host.training.ended() == -9
    return now


def until_failed(network: Network, host: Host) -> None:
    others = network.others(host)
    for other in others:
        what = f"{other.name} says that {host.name} has failed"
        until(what, lambda other=other: other.member(host.name).get("state") == "failed", network.hosts)
    said = gossipdp("--home", str(others[0].home), "members", "--json")
    assert [row["state"] for row in json.loads(said.stdout) if row["name"] == host.name] == ["failed"]


def until_back(network: Network, host: Host, incarnation: int) -> None:
    """Whether all others see the new life, and it trains and has exchanged."""

    def came_to() -> tuple[str | bool, ...]:
        status = host.status()
        if not status or status["incarnation"] < incarnation:
            return ()
        return status["state"], status["training"], status["exchanges"].get("done", 0) > 0

    back = ("ready", "attached", True)
    until(f"{host.name} is back and exchanges", lambda: came_to() == back, network.hosts, moves=came_to)
    for other in network.others(host):

        def sees(other: Host = other) -> bool:
            row = other.member(host.name)
            return bool(row) and row["state"] == "alive" and row["incarnation"] >= incarnation

        until(f"{other.name} sees {host.name} alive again", sees, network.hosts)


def kill_and_bring_back(
    network: Network, host: Host, victim: str, point: str, record: Record, kill_next: str = ""
) -> None:
    """One case, from a running network to a running network. `host` was armed for it; `kill_next` arms it again."""
    others, now = network.others(host), host.home.with_suffix(".now")
    reached = min(other.mean() for other in others)
    now.touch()
    died = until_dead(host, victim)
    incarnation = host.member(host.name).get("incarnation", 0) if victim == "training" else 0
    if victim != "training":
        until_failed(network, host)
        incarnation = others[0].member(host.name)["incarnation"] + 1
        now.unlink()
        host.start_daemon(kill_next)
    again = time.monotonic()
    if victim != "daemon":
        host.start_training()
    until_back(network, host, incarnation)
    started_from = host.noted("attached", since=died)[-1]["mean"]
    end = time.monotonic()

    furthest = max(other.mean() for other in others)
    assert 0.98 * reached <= started_from <= 1.02 * furthest, f"the network was at {reached} to {furthest}"
    for other in others:
        pause = other.longest_pause(died - 1.0, end)
        assert pause < PAUSE, f"{other.name} made no step for {pause:.1f} s when {host.name} died at {point}"
    assert sum("model founded" in line for each in network.hosts for line in each.text().splitlines()) == 1
    record("seconds until back after the start", end - again)


def armed(host: Host, victim: str, point: str) -> str:
    """Variables that make this host's daemon kill at `point`, once the file named after the host exists."""
    who = "" if victim == "daemon" else f"{victim}: "
    return f"{who}{point}@3 if {host.home}.now"


@pytest.mark.parametrize(
    "victim", ["training", *(pytest.param(each, marks=pytest.mark.long) for each in ("daemon", "both"))]
)
def test_killed_at_a_point__others_go_on_and_it_comes_back(
    victim: str, network: Callable[..., Network], record_property: Record
) -> None:
    four = network(4)
    # The founder is among them: no peer founds again.
    cases = list(zip(four.hosts, POINTS, strict=False))
    four.start(kill_at=[armed(host, victim, point) for host, point in cases])
    four.until_it_runs()
    for host, point in cases:
        kill_and_bring_back(four, host, victim, point, record_property)


@pytest.mark.long
def test_killed_with_the_11M_model__many_chunks_under_credit(
    network: Callable[..., Network], record_property: Record
) -> None:
    four = network(4, size=11_000_000, pace=0.1)
    four.start(kill_at=[armed(four.founder, "daemon", POINTS[0])])
    four.until_it_runs()
    assert four.founder.status()["last_exchange"]["of"] > 8, "more chunks than credit"
    kill_and_bring_back(four, four.founder, "daemon", POINTS[0], record_property)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_torch_training_of_11M_killed_with_its_daemon__the_other_steps_on_and_it_exchanges_again(
    network: Callable[..., Network], point: str
) -> None:
    two = network(2)
    other, host = two.hosts
    two.settle_in()
    other.start_daemon()
    host.start_daemon(armed(host, "both", point))
    for each in two.hosts:
        each.start_training(byte_gpt(each, "11M"))
    two.until_it_runs(exchanges=2)
    until("both have stepped", lambda: min(len(byte_gpt_steps(each)) for each in two.hosts) > 2, two.hosts)
    assert other.status()["last_exchange"]["of"] > 8, "more chunks than credit"

    since, stalled = len(byte_gpt_steps(other)), other.status()["stall_seconds"]
    host.home.with_suffix(".now").touch()
    until_dead(host, "both")
    until_failed(two, host)
    alone = len(byte_gpt_steps(other))
    until("the other steps on", lambda: len(byte_gpt_steps(other)) > alone + 2, two.hosts)
    incarnation = other.member(host.name)["incarnation"] + 1
    host.home.with_suffix(".now").unlink()
    reached = len(byte_gpt_steps(host))
    host.start_daemon()
    host.start_training(byte_gpt(host, "11M"))
    until("its daemon runs", host.status, two.hosts)
    until("it has the model", lambda: host.status().get("state") == "ready", two.hosts)
    until("training runs", lambda: host.status().get("training") == "attached", two.hosts)
    begun, had = time.monotonic(), host.exchanges()
    until_back(two, host, incarnation)
    # An exchange that it began as a whole peer: the daemon exchanges as soon as it has the model.
    until("one exchange more", lambda: host.exchanges() > had, two.hosts)
    took = time.monotonic() - begun
    until("it trains on", lambda: len(byte_gpt_steps(host)) > reached + 2, two.hosts)

    assert other.training is not None and other.training.code is None
    took_each = [later["elapsed"] - earlier["elapsed"] for earlier, later in pairwise(byte_gpt_steps(other))]
    pause, stalled = max(took_each[since - 1 :]), other.status()["stall_seconds"] - stalled
    watched = sum(took_each[since - 1 :])
    print(
        f"both of {host.name} at {point}: exchanging {took:.1f} s after training ran; {other.name} made "
        f"{len(took_each) - since + 1} steps meanwhile, the longest took {pause:.2f} s, "
        f"{stalled:.2f} of {watched:.0f} s in gossipdp"
    )
    assert stalled < STALL_SHARE * watched, f"{other.name} spent {stalled:.1f} of {watched:.0f} s in gossipdp"
    assert all(math.isfinite(line["loss"]) for each in two.hosts for line in byte_gpt_steps(each))
    assert sum(each.text().count("model founded") for each in two.hosts) == 1


@pytest.mark.long
def test_killed_again_and_again__four_of_four_in_turn(network: Callable[..., Network], record_property: Record) -> None:
    four = network(4)
    cases = list(
        zip(range(24), itertools.cycle(four.hosts), itertools.cycle(POINTS), itertools.cycle(VICTIMS), strict=False)
    )
    spelled = [armed(host, victim, point) for _, host, point, victim in cases]
    four.start(kill_at=spelled[:4])
    four.until_it_runs()
    for number, host, point, victim in cases:
        # Its next turn comes after all the others.
        kill_and_bring_back(four, host, victim, point, record_property, "".join(spelled[number + 4 : number + 5]))
