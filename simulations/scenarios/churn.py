"""Does a network go on in which a fifth of the peers go, and as many come, every minute? (safety.md, T1's churn)

Half of those that go say goodbye, half are killed, some of these with their disk; those that come are new. The first
two hosts stay, for they are the seeds that the others know.
"""

from __future__ import annotations

from random import Random

from simulations.check import Check
from simulations.scenarios.base import Act, Findings, Panel, Scenario, Watched, percentile
from simulations.simulator.cluster import Plan
from simulations.simulator.nemesis import FOREVER, Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING = 10.0
BEFORE, CHURN, AFTER = Act("before", 20.0, 60.0), Act("churn", 60.0, 180.0), Act("after", 180.0, 220.0)
SHARE = 0.2
"""of the peers go in a minute, and as many come"""
SEEDS = 2


def plan(seed: int, peers: int) -> Plan:
    random = Random(f"churn/{seed}/{peers}")
    count = max(1, round(SHARE * peers * CHURN.minutes))
    going = random.sample(range(SEEDS, peers), min(count, peers - SEEDS))
    script = []
    for number, host in enumerate(going):
        at = round(random.uniform(CHURN.begins, CHURN.ends), 3)
        kind = "leave" if number % 2 else "crash"
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


def read(run: Watched) -> Findings:
    joined = [fault.hosts[0] for fault in run.plan.script if fault.kind == "join"]
    waited = [run.trains[host, 1] - run.started[host, 1] for host in joined if (host, 1) in run.trains]
    usual = run.rate(BEFORE)
    rows = []
    for act in (BEFORE, CHURN, AFTER):
        happened = [fault.kind for fault in run.plan.script if act.begins <= fault.at < act.ends]
        up = [len(look.up) for look in run.between(act)]
        rows.append(
            (
                act.name,
                f"{min(up)}-{max(up)}",
                *(str(happened.count(kind)) for kind in ("leave", "crash", "join")),
                f"{run.rate(act):.1f}",
                f"{run.distance(act):.2g}",
                str(run.in_doubt(act)),
            )
        )
    during, after = run.rate(CHURN) / usual, run.rate(AFTER) / usual
    wronged = sum(look.wronged for look in run.looks)
    late = percentile(waited, 0.95)
    checks = [
        Check("exchanges during the churn", ">= 75 % of before", f"{during:.0%}", during >= 0.75),
        Check("exchanges after it (I7)", ">= 90 % of before", f"{after:.0%}", after >= 0.9),
        Check("joiners that train", "all", f"{len(waited)} of {len(joined)}", len(waited) == len(joined)),
        Check("a joiner's time until it trains, 95 %", "<= 10 s", f"{late:.1f} s", late <= 10.0),
        Check("live peers held for failed", "none", str(wronged), wronged == 0),
    ]
    return Findings(
        ("act", "peers up", "left", "killed", "joined", "exchanges/min", "distance", "in doubt"),
        rows,
        checks,
        [
            Panel("members up, and known to the others", run.seen(), steps=True),
            Panel("exchanges a minute, of a peer", {"exchanges": run.pace()}, mark=0.75 * usual),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        [(CHURN.begins, CHURN.ends, "20 % a minute come and go")],
    )


SCENARIO = Scenario("churn", "Does a network go on while peers come and go?", 16, plan, read, least=4)
