"""Do slow peers delay the others? A quarter is ten times slower, one of these a hundred times (campaign T7).

A slow machine takes longer for its training steps and for its jobs on vectors. The fast peers are compared with
themselves before the others became slow, and with a peer that trains alone. A daemon learns of steps one round at a
time, so the rate of steps is good to a percent or two.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

from simulations.check import Check
from simulations.scenarios.base import Scenario, percentile
from simulations.scenarios.findings import Findings, Panel
from simulations.scenarios.observed import Act, EndedExchange, ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING = 10.0
BEFORE, SLOW = Act("all fast", 20.0, 60.0), Act("some slow", 60.0, 180.0)
WINDOW = 10.0
"""seconds over which exchanges are counted in the graph"""


def slow(peers: int) -> tuple[tuple[int, ...], int]:
    """The hosts that are ten times slower, and the one that is a hundred times slower: the last hosts."""
    count = max(2, peers // 4)
    return tuple(range(peers - count, peers - 1)), peers - 1


def plan(seed: int, peers: int) -> Plan:
    ten, hundred = slow(peers)
    lasts = SLOW.ends - SLOW.begins
    return Plan(
        peers=peers,
        size=3 * 8192 + 300,
        conditions=Conditions(latency=0.02, jitter=0.5, bandwidth=1.25e6),
        every=10,
        window=2,
        script=(
            Fault(at=SLOW.begins, kind="straggler", hosts=ten, lasts=lasts, factor=10.0),
            Fault(at=SLOW.begins, kind="straggler", hosts=(hundred,), lasts=lasts, factor=100.0),
        ),
        forming=FORMING,
        chaos=SLOW.ends - FORMING,
        calm=45.0,
    )


def steps_per_second(run: ObservedCluster, act: Act, hosts: tuple[int, ...]) -> float:
    """Training steps a second of one host, as far as its daemon knows of them."""
    observations = run.between(act)
    first, last = observations[0], observations[-1]
    return sum(last.steps[host] - first.steps[host] for host in hosts) / len(hosts) / (last.at - first.at)


def read(run: ObservedCluster) -> Findings:
    ten, hundred = slow(run.plan.peers)
    fast = tuple(range(ten[0]))
    groups = {"fast": fast, "10 times slower": ten, "100 times slower": (hundred,)}
    speed = steps_per_second(run, SLOW, fast) * run.plan.step_time
    usual, now = run.exchange_rate(BEFORE, fast, among=True), run.exchange_rate(SLOW, fast, among=True)
    mixed = [one.duration for one in run.exchanges if SLOW.begins <= one.at < SLOW.ends and _ends(one, fast) == 1]
    lasts = percentile(mixed, 0.95) if mixed else 0.0
    wrong = sum(one.falsely_failed for one in run.between(SLOW))
    checks = [
        Check("steps/s of fast peers, of one alone (T7)", ">= 95 %", f"{speed:.1%}", speed >= 0.95),
        Check("exchanges among fast peers, of before", ">= 75 %", f"{now / usual:.0%}", now >= 0.75 * usual),
        Check("an exchange of fast with slow lasts, 95 %", "<= 6 s", f"{lasts:.1f} s", lasts <= 6.0),
        Check("live peers believed failed", "none", str(wrong), wrong == 0),
    ]
    return Findings(
        ("act", "peers", "steps/s", "exchanges/min", "among them", "one lasts"),
        [_row(run, act, name, group) for act in (BEFORE, SLOW) for name, group in groups.items()],
        checks,
        [
            Panel("steps of one peer", {name: _steps(run, group) for name, group in groups.items()}),
            Panel(
                "exchanges a minute in the whole network",
                {"fast with fast": _rates(run, fast, 2), "fast with slow": _rates(run, fast, 1)},
            ),
            run.distance_panel(),
        ],
        [(SLOW.begins, SLOW.ends, "a quarter is 10 times slower, one of it 100 times")],
    )


def _row(run: ObservedCluster, act: Act, name: str, group: tuple[int, ...]) -> tuple[str, ...]:
    mine = [one for one in run.exchanges if act.begins <= one.at < act.ends and _ends(one, group)]
    return (
        act.name,
        name if act is SLOW else f"later {name}",
        f"{steps_per_second(run, act, group):.2f}",
        f"{run.exchange_rate(act, group):.1f}",
        f"{run.exchange_rate(act, group, among=True):.1f}",
        f"{median([one.duration for one in mine] or [0.0]):.2f} s",
    )


def _ends(one: EndedExchange, hosts: Collection[int]) -> int:
    """How many of the exchange's two hosts are in `hosts`."""
    return len(set(one.hosts) & set(hosts))


def _steps(run: ObservedCluster, group: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Times, and mean steps of the group."""
    known = [one for one in run.observations if one.steps.keys() >= set(group)]
    return [one.at for one in known], [sum(one.steps[host] for host in group) / len(group) for one in known]


def _rates(run: ObservedCluster, fast: tuple[int, ...], ends: int) -> tuple[list[float], list[float]]:
    """Times, and exchanges a minute of which `ends` sides are fast."""
    at = [one.at for one in run.exchanges if _ends(one, fast) == ends]
    times = [one.at for one in run.observations if one.at >= WINDOW]
    return times, [sum(now - WINDOW < one <= now for one in at) * 60.0 / WINDOW for now in times]


SCENARIO = Scenario("stragglers", "Do slow peers delay the others?", 16, plan, read, least=6)
