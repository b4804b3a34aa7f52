"""What if many peers join at once? Four peers train. Then all the others come within two seconds and fetch the state.

Every host has one uplink for all it sends. A source of many joiners serves each of them slowly, and its own exchanges
wait. The load must spread: each joiner that has the state serves it too.
"""

from __future__ import annotations

from random import Random
from statistics import median

from simulations.check import Check
from simulations.scenarios.base import Scenario, percentile
from simulations.scenarios.findings import Findings, Panel
from simulations.scenarios.observed import Act, ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import FOREVER, Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

SOURCES = 4
FORMING, COME = 10.0, 60.0
CHUNKS = 8
SIZE = (CHUNKS - 1) * 8192 + 300
UPLINK = 2.5e5
"""bytes per second"""
BEFORE, CROWD, AFTER = (
    Act("before", 35.0, COME),
    Act("crowd", COME, COME + 30.0),
    Act("after", COME + 45.0, COME + 65.0),
)


def plan(seed: int, peers: int) -> Plan:
    random = Random(f"flash-crowd/{seed}/{peers}")
    script = [
        Fault(at=round(COME + random.uniform(0.0, 2.0), 3), kind="join", hosts=(host,), lasts=FOREVER)
        for host in range(SOURCES, peers)
    ]
    weather = Conditions(latency=0.02, jitter=0.5, bandwidth=UPLINK, uplink=UPLINK)
    return Plan(
        peers=peers,
        size=SIZE,
        conditions=weather,
        before=weather,
        every=8,
        window=4,
        step_time=0.5,
        script=tuple(sorted(script, key=lambda fault: fault.at)),
        forming=FORMING,
        chaos=AFTER.ends - FORMING,
        calm=20.0,
    )


def read(run: ObservedCluster) -> Findings:
    joiners, sources = range(SOURCES, run.plan.peers), range(SOURCES)
    waited = [run.ready_at.get((host, 1), float("inf")) - run.started_at[host, 1] for host in joiners]
    served = [host for at, host in run.served if at >= COME]
    first, total = sum(host in sources for host in served), len(served)
    needed = CHUNKS * len(joiners)
    usual = run.exchange_rate(BEFORE, sources)
    kept, after = run.exchange_rate(CROWD, sources) / usual, run.exchange_rate(AFTER, sources) / usual
    wrong = run.falsely_failed()
    alone = 2.0 * SIZE / UPLINK
    # Twice the time that the four need to serve all at full uplink, and two seconds for the latest joiner.
    bound = 2.0 * alone * len(joiners) / SOURCES + 2.0
    checks = [
        Check("all joiners have the state", f"<= {bound:.0f} s", f"{max(waited):.1f} s", max(waited) <= bound),
        Check("chunks of state sent, of those needed", "<= 150 %", f"{total / needed:.0%}", total <= 1.5 * needed),
        Check("exchanges of the four meanwhile", ">= 50 % of before", f"{kept:.0%}", kept >= 0.5),
        Check("exchanges of the four afterwards", ">= 75 % of before", f"{after:.0%}", after >= 0.75),
        Check("live peers believed failed", "none", str(wrong), wrong == 0),
    ]
    rows = [
        *(_row(run, act) for act in (BEFORE, CROWD, AFTER)),
        ("time to state", "median", f"{median(waited):.1f} s", f"95 %: {percentile(waited, 0.95):.1f} s", ""),
        ("served by", "the four", f"{first / total:.0%}", "", ""),
    ]
    last = max(run.ready_at.get((host, 1), float("inf")) for host in joiners)
    return Findings(
        ("act", "with the state", "the four: exchanges/min", "joiners", "distance"),
        rows,
        checks,
        [
            Panel(
                "peers with the state",
                {
                    "up": run.series(lambda one: float(len(one.up))),
                    "with the state": run.series(lambda one: float(len(one.ready))),
                },
                steps=True,
            ),
            Panel("exchanges a minute, of one of the four", {"exchanges": _rates_of_sources(run)}),
            run.distance_panel(),
        ],
        [(COME, last if last < float("inf") else CROWD.ends, f"{len(joiners)} join")],
    )


def _row(run: ObservedCluster, act: Act) -> tuple[str, ...]:
    ready = [len(one.ready) for one in run.between(act)]
    return (
        act.name,
        f"{min(ready)}-{max(ready)}",
        f"{run.exchange_rate(act, range(SOURCES)):.1f}",
        f"{run.exchange_rate(act, range(SOURCES, run.plan.peers)):.1f}" if act is not BEFORE else "",
        f"{run.distance(act):.2g}",
    )


def _rates_of_sources(run: ObservedCluster, window: float = 12.0) -> tuple[list[float], list[float]]:
    times = [one.at for one in run.observations if one.at >= FORMING]
    half = window / 2
    return times, [run.exchange_rate(Act("", at - half, min(at + half, times[-1])), range(SOURCES)) for at in times]


SCENARIO = Scenario("flash-crowd", "What if many peers join at once?", 32, plan, read, least=SOURCES + 2)
