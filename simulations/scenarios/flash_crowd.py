"""What if many join at once? Four peers train; then all the others come within two seconds and want the state.

Every host has one uplink for all it sends, so whoever serves many serves each of them slowly, and its own exchanges
wait behind. A crowd is served well if the load spreads: whoever has the state serves it too.
"""

from __future__ import annotations

from random import Random
from statistics import median

from simulations.check import Check
from simulations.scenarios.base import Act, Findings, Panel, Scenario, Watched, percentile
from simulations.simulator.cluster import Plan
from simulations.simulator.nemesis import FOREVER, Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

SOURCES = 4
FORMING, COME = 10.0, 60.0
CHUNKS = 8
SIZE = (CHUNKS - 1) * 8192 + 300
UPLINK = 2.5e5
"""bytes a second"""
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


def read(run: Watched) -> Findings:
    joiners = range(SOURCES, run.plan.peers)
    waited = [run.ready.get((host, 1), float("inf")) - run.started[host, 1] for host in joiners]
    sources = range(SOURCES)
    alone = 2.0 * SIZE / UPLINK
    rows = [
        (
            act.name,
            f"{min(len(look.ready) for look in run.between(act))}-{max(len(look.ready) for look in run.between(act))}",
            f"{run.rate(act, sources):.1f}",
            f"{run.rate(act, joiners):.1f}" if act is not BEFORE else "",
            f"{run.distance(act):.2g}",
        )
        for act in (BEFORE, CROWD, AFTER)
    ]
    served = [host for at, host in run.served if at >= COME]
    first, total = sum(host in sources for host in served), len(served)
    needed = CHUNKS * len(joiners)
    kept = run.rate(CROWD, sources) / run.rate(BEFORE, sources)
    after = run.rate(AFTER, sources) / run.rate(BEFORE, sources)
    wronged = sum(look.wronged for look in run.looks)
    # Twice what it takes if the four serve all, each at its uplink's rate; and two seconds for those who come last.
    bound = 2.0 * alone * len(joiners) / SOURCES + 2.0
    checks = [
        Check("all joiners have the state", f"<= {bound:.0f} s", f"{max(waited):.1f} s", max(waited) <= bound),
        Check("chunks of state sent, of those needed", "<= 150 %", f"{total / needed:.0%}", total <= 1.5 * needed),
        Check("exchanges of the four meanwhile", ">= 50 % of before", f"{kept:.0%}", kept >= 0.5),
        Check("exchanges of the four afterwards", ">= 75 % of before", f"{after:.0%}", after >= 0.75),
        Check("live peers held for failed", "none", str(wronged), wronged == 0),
    ]
    rows += [
        ("time to state", "median", f"{median(waited):.1f} s", f"95 %: {percentile(waited, 0.95):.1f} s", ""),
        ("served by", "the four", f"{first / total:.0%}", "", ""),
    ]
    times = sorted(run.ready.get((host, 1), float("inf")) for host in joiners)
    return Findings(
        ("act", "with the state", "the four: exchanges/min", "joiners", "distance"),
        rows,
        checks,
        [
            Panel(
                "peers with the state",
                {
                    "up": run.series(lambda look: float(len(look.up))),
                    "with the state": run.series(lambda look: float(len(look.ready))),
                },
                steps=True,
            ),
            Panel("exchanges a minute, of one of the four", {"exchanges": _pace(run)}),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        [(COME, times[-1] if times[-1] < float("inf") else CROWD.ends, f"{len(joiners)} join")],
    )


def _pace(run: Watched, window: float = 12.0) -> tuple[list[float], list[float]]:
    times = [look.at for look in run.looks if look.at >= FORMING]
    half = window / 2
    return times, [run.rate(Act("", at - half, min(at + half, times[-1])), range(SOURCES)) for at in times]


SCENARIO = Scenario("flash-crowd", "What if many peers join at once?", 32, plan, read, least=SOURCES + 2)
