"""Do slow peers delay the others? A quarter is ten times slower, one of them a hundred times (safety.md, T7).

Slow is all that a machine does: its training steps and its jobs on vectors. Compared are the fast peers with themselves,
before the others became slow, and with a peer that trains alone.
"""

from __future__ import annotations

from statistics import median

from simulations.cluster import Plan
from simulations.nemesis import Fault
from simulations.network import Conditions
from simulations.scenarios.base import Act, Check, Findings, Panel, Scenario, Watched, percentile

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
    fast = tuple(range(run.plan.peers - len(ten) - 1))
    alone = 1.0 / run.plan.step_time
    rows = []
    for act in (BEFORE, SLOW):
        for name, group in (("fast", fast), ("10 times slower", ten), ("100 times slower", (hundred,))):
            who = name if act is SLOW else f"(then {name})"
            mine = [one for one in run.exchanges if act.begins <= one.at < act.ends and set(one.hosts) & set(group)]
            rows.append(
                (
                    act.name,
                    who,
                    str(len(group)),
                    f"{steps_per_second(run, act, group):.2f}",
                    f"{2 * len(mine) / act.minutes / len(group):.1f}" if group is not fast else f"{_of(run, act, fast):.1f}",
                    f"{run.rate(act, fast):.1f}" if group is fast else "",
                    f"{median([one.lasted for one in mine] or [0.0]) * 1e3:.0f}",
                )
            )
    speed = steps_per_second(run, SLOW, fast) / alone
    usual, now = run.rate(BEFORE, fast), run.rate(SLOW, fast)
    both = [one for one in run.exchanges if SLOW.begins + WINDOW <= one.at < SLOW.ends]
    mixed = [one.lasted for one in both if len(set(one.hosts) & set(fast)) == 1]
    held = percentile(mixed, 0.95) if mixed else 0.0
    wronged = sum(look.wronged for look in run.between(SLOW))
    checks = [
        Check("steps/s of fast peers, of one alone (T7)", ">= 95 %", f"{speed:.1%}", speed >= 0.95),
        Check("exchanges among fast peers, of before", ">= 75 %", f"{now / usual:.0%}", now >= 0.75 * usual),
        Check("an exchange of fast with slow lasts, 95 %", "<= 6 s", f"{held:.1f} s", held <= 6.0),
        Check("live peers held for failed", "none", str(wronged), wronged == 0),
    ]
    lines = {
        "fast with fast": _pace(run, lambda hosts: hosts <= set(fast)),
        "fast with slow": _pace(run, lambda hosts: len(hosts & set(fast)) == 1),
    }
    return Findings(
        ("act", "peers", "", "steps/s", "exchanges/min", "among them", "one lasts ms"),
        rows,
        checks,
        [
            Panel("steps a second, told to the daemons", _speeds(run, fast, ten, hundred), log=True),
            Panel("exchanges a minute in the whole network", lines),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        [(SLOW.begins, SLOW.ends, "a quarter is 10 times slower, one of it 100 times")],
    )
