"""Does a network go on if a fifth of its peers is replaced every minute? (campaign T1)

Half of those that go leave in order. The others are killed, and some of these lose their disk. New peers replace them.
The first two hosts stay, because all others know them as seeds.
"""

from __future__ import annotations

from random import Random

from simulations.check import Check
from simulations.scenarios.base import Scenario, percentile
from simulations.scenarios.findings import Findings, Panel
from simulations.scenarios.observed import Act, ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import FOREVER, Fault, FaultKind
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING = 10.0
BEFORE, CHURN, AFTER = Act("before", 20.0, 60.0), Act("churn", 60.0, 180.0), Act("after", 180.0, 220.0)
SHARE = 0.2
"""share of the peers that is replaced in a minute"""
SEEDS = 2


def plan(seed: int, peers: int) -> Plan:
    random = Random(f"churn/{seed}/{peers}")
    count = max(1, round(SHARE * peers * CHURN.minutes))
    going = random.sample(range(SEEDS, peers), min(count, peers - SEEDS))
    script = []
    for number, host in enumerate(going):
        at = round(random.uniform(CHURN.begins, CHURN.ends), 3)
        kind: FaultKind = "leave" if number % 2 else "crash"
        script.append(Fault(at=at, kind=kind, hosts=(host,), lasts=FOREVER, trainer=True, disk=random.random() < 0.7))
    for number in range(count):
        at = round(random.uniform(CHURN.begins, CHURN.ends - 10.0), 3)
        script.append(Fault(at=at, kind="join", hosts=(peers + number,), lasts=FOREVER))
    return Plan(
        peers=peers + count,
        size=8192 + 300,
        conditions=Conditions(latency=0.02, jitter=0.5, loss=0.01),
        every=10,
        window=4,
        script=tuple(sorted(script, key=lambda fault: fault.at)),
        forming=FORMING,
        chaos=AFTER.ends - FORMING,
        calm=15.0,
    )


def read(run: ObservedCluster) -> Findings:
    joined = [fault.hosts[0] for fault in run.plan.script if fault.kind == "join"]
    waited = [run.trains_at[host, 1] - run.started_at[host, 1] for host in joined if (host, 1) in run.trains_at]
    usual = run.exchange_rate(BEFORE)
    during, after = run.exchange_rate(CHURN) / usual, run.exchange_rate(AFTER) / usual
    wrong = run.falsely_failed()
    late = percentile(waited, 0.95)
    checks = [
        Check("exchanges during the churn", ">= 75 % of before", f"{during:.0%}", during >= 0.75),
        Check("exchanges after it (I7)", ">= 90 % of before", f"{after:.0%}", after >= 0.9),
        Check("joiners that train", "all", f"{len(waited)} of {len(joined)}", len(waited) == len(joined)),
        Check("a joiner's time until it trains, 95 %", "<= 10 s", f"{late:.1f} s", late <= 10.0),
        Check("live peers believed failed", "none", str(wrong), wrong == 0),
    ]
    return Findings(
        ("act", "peers up", "left", "killed", "joined", "exchanges/min", "distance", "in doubt"),
        [_row(run, act) for act in (BEFORE, CHURN, AFTER)],
        checks,
        [
            run.members_panel(),
            Panel("exchanges a minute, of a peer", {"exchanges": run.exchange_rates()}, mark=0.75 * usual),
            run.distance_panel(),
        ],
        [(CHURN.begins, CHURN.ends, "20 % a minute come and go")],
    )


def _row(run: ObservedCluster, act: Act) -> tuple[str, ...]:
    happened = [fault.kind for fault in run.plan.script if act.begins <= fault.at < act.ends]
    up = [len(one.up) for one in run.between(act)]
    return (
        act.name,
        f"{min(up)}-{max(up)}",
        *(str(happened.count(kind)) for kind in ("leave", "crash", "join")),
        f"{run.exchange_rate(act):.1f}",
        f"{run.distance(act):.2g}",
        str(run.in_doubt(act)),
    )


SCENARIO = Scenario("churn", "Does a network go on while peers come and go?", 16, plan, read, least=4)
