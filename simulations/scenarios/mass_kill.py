"""What if half of all peers die at once, in the middle of their exchanges, and come back? (campaign T4)

Daemons and training processes get kill -9 together, as in a power cut. Disks stay. The marks are T4's: the survivors
exchange again within ten seconds, and the restarted peers within thirty.
"""

from __future__ import annotations

from simulations.check import Check
from simulations.scenarios.base import Scenario
from simulations.scenarios.findings import Findings, Panel
from simulations.scenarios.observed import Act, ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING, KILLED, DOWN = 10.0, 50.0, 20.0
BEFORE = Act("before", 20.0, KILLED)
DURING = Act("half are dead", KILLED, KILLED + DOWN)
AFTER = Act("restarted", KILLED + DOWN, KILLED + DOWN + 50.0)
BANDWIDTH = 2e4
"""bytes per second: exchanges last about as long as rounds, so many peers are in the middle of one"""
SURVIVORS_WITHIN, RESTARTED_WITHIN = 10.0, 30.0


def plan(seed: int, peers: int) -> Plan:
    victims = range(peers - peers // 2, peers)
    return Plan(
        peers=peers,
        size=3 * 8192 + 300,
        conditions=Conditions(latency=0.02, jitter=0.5, bandwidth=BANDWIDTH),
        every=10,
        window=2,
        script=tuple(Fault(at=KILLED, kind="crash", hosts=(host,), lasts=DOWN, trainer=True) for host in victims),
        forming=FORMING,
        chaos=AFTER.ends - FORMING,
        calm=15.0,
    )


def read(run: ObservedCluster) -> Findings:
    victims = {fault.hosts[0] for fault in run.plan.script}
    survivors = set(range(run.plan.peers)) - victims
    usual = run.exchange_rate(BEFORE)
    again = [_first(run, host, survivors, KILLED) - KILLED for host in survivors]
    back = [_first(run, host, set(range(run.plan.peers)), AFTER.begins) - AFTER.begins for host in victims]
    rows = [
        (
            act.name,
            str(min(len(one.up) for one in run.between(act))),
            f"{run.exchange_rate(act, survivors):.1f}",
            f"{run.exchange_rate(act, victims):.1f}",
            f"{run.distance(act):.2g}",
            str(run.in_doubt(act)),
        )
        for act in (BEFORE, DURING, AFTER)
    ]
    after = run.exchange_rate(Act("", AFTER.ends - 20.0, AFTER.ends)) / usual
    checks = [
        Check(
            "survivors exchange again with each other (T4)",
            f"<= {SURVIVORS_WITHIN:.0f} s",
            f"{max(again):.1f} s",
            max(again) <= SURVIVORS_WITHIN,
        ),
        Check(
            "the restarted exchange again (T4)",
            f"<= {RESTARTED_WITHIN:.0f} s",
            f"{max(back):.1f} s",
            max(back) <= RESTARTED_WITHIN,
        ),
        Check("exchanges at the end (I7)", ">= 90 % of before", f"{after:.0%}", after >= 0.9),
    ]
    return Findings(
        ("act", "peers up", "exchanges/min: survivors", "the killed", "distance", "in doubt"),
        rows,
        checks,
        [
            run.members_panel(),
            Panel("exchanges a minute, of a peer that is up", {"exchanges": run.exchange_rates(6.0)}, mark=0.9 * usual),
            run.distance_panel(),
        ],
        [(KILLED, KILLED + DOWN, f"{len(victims)} of {run.plan.peers} are dead")],
    )


def _first(run: ObservedCluster, host: int, partners: set[int], since: float) -> float:
    """End of the first exchange of `host` with one of `partners` that began after `since`."""
    ended = (
        one.at
        for one in run.exchanges
        if host in one.hosts and partners >= set(one.hosts) and one.at - one.duration > since
    )
    return next(ended, float("inf"))


SCENARIO = Scenario("mass-kill", "What if half of all peers die at once, and come back?", 16, plan, read, least=4)
