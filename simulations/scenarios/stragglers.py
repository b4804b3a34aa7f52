"""Do slow peers delay the others? A quarter is ten times slower, one of them a hundred times (safety.md, T7).

Slow is all that a machine does: its training steps and its jobs on vectors. Compared are the fast peers with
themselves, before the others became slow, and with a peer that trains alone. Steps reach a daemon a round at a time, so
their rate is good to a percent or two.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

from simulations.check import Check
from simulations.scenarios.base import Act, Ended, Findings, Panel, Scenario, Watched, percentile
from simulations.simulator.cluster import Plan
from simulations.simulator.nemesis import Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING = 10.0
BEFORE, SLOW = Act("all fast", 20.0, 60.0), Act("some slow", 60.0, 180.0)
WINDOW = 10.0


def slow(peers: int) -> tuple[tuple[int, ...], int]:
    """Those ten times slower, and the one a hundred times; the last hosts."""
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


def steps_per_second(run: Watched, act: Act, hosts: tuple[int, ...]) -> float:
    """Steps a second that the daemons were told of: what training gets into rounds."""
    looks = run.between(act)
    first, last = looks[0], looks[-1]
    return sum(last.steps[host] - first.steps[host] for host in hosts) / len(hosts) / (last.at - first.at)


def read(run: Watched) -> Findings:
    ten, hundred = slow(run.plan.peers)
    fast = tuple(range(ten[0]))
    groups = {"fast": fast, "10 times slower": ten, "100 times slower": (hundred,)}
    alone = 1.0 / run.plan.step_time
    rows = []
    for act in (BEFORE, SLOW):
        for name, group in groups.items():
            mine = [one for one in run.exchanges if act.begins <= one.at < act.ends and set(one.hosts) & set(group)]
            rows.append(
                (
                    act.name,
                    name if act is SLOW else f"later {name}",
                    f"{steps_per_second(run, act, group):.2f}",
                    f"{run.rate(act, group):.1f}",
                    f"{run.rate(act, group, among=True):.1f}",
                    f"{median([one.lasted for one in mine] or [0.0]):.2f} s",
                )
            )
    speed = steps_per_second(run, SLOW, fast) / alone
    usual, now = run.rate(BEFORE, fast, among=True), run.rate(SLOW, fast, among=True)
    mixed = [one.lasted for one in run.exchanges if SLOW.begins <= one.at < SLOW.ends and _ends(one, fast) == 1]
    held = percentile(mixed, 0.95) if mixed else 0.0
    wronged = sum(look.wronged for look in run.between(SLOW))
    checks = [
        Check("steps/s of fast peers, of one alone (T7)", ">= 95 %", f"{speed:.1%}", speed >= 0.95),
        Check("exchanges among fast peers, of before", ">= 75 %", f"{now / usual:.0%}", now >= 0.75 * usual),
        Check("an exchange of fast with slow lasts, 95 %", "<= 6 s", f"{held:.1f} s", held <= 6.0),
        Check("live peers held for failed", "none", str(wronged), wronged == 0),
    ]
    return Findings(
        ("act", "peers", "steps/s", "exchanges/min", "among them", "one lasts"),
        rows,
        checks,
        [
            Panel(
                "steps of one peer",
                {name: _steps(run, group) for name, group in groups.items()},
            ),
            Panel(
                "exchanges a minute in the whole network",
                {"fast with fast": _pace(run, fast, 2), "fast with slow": _pace(run, fast, 1)},
            ),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        [(SLOW.begins, SLOW.ends, "a quarter is 10 times slower, one of it 100 times")],
    )


def _ends(one: Ended, hosts: Collection[int]) -> int:
    return len(set(one.hosts) & set(hosts))


def _steps(run: Watched, group: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """The mean over the group."""
    looks = [look for look in run.looks if look.steps.keys() >= set(group)]
    return [look.at for look in looks], [sum(look.steps[host] for host in group) / len(group) for look in looks]


def _pace(run: Watched, fast: tuple[int, ...], ends: int) -> tuple[list[float], list[float]]:
    at = [one.at for one in run.exchanges if _ends(one, fast) == ends]
    times = [look.at for look in run.looks if look.at >= WINDOW]
    return times, [sum(now - WINDOW < one <= now for one in at) * 60.0 / WINDOW for now in times]


SCENARIO = Scenario("stragglers", "Do slow peers delay the others?", 16, plan, read, least=6)
