"""What if half of all peers die at once, in the middle of their exchanges, and come back? (safety.md, T4)

kill -9 of daemons and training processes together, as in a power cut; disks stay. The marks are T4's: the survivors
exchange again within ten seconds, and whoever restarts is back within thirty.
"""

from __future__ import annotations

from simulations.check import Check
from simulations.scenarios.base import Act, Findings, Panel, Scenario, Watched
from simulations.simulator.cluster import Plan
from simulations.simulator.nemesis import Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING, KILLED, DOWN = 10.0, 50.0, 20.0
BEFORE = Act("before", 20.0, KILLED)
DURING = Act("half are dead", KILLED, KILLED + DOWN)
AFTER = Act("restarted", KILLED + DOWN, KILLED + DOWN + 50.0)
BANDWIDTH = 2e4
"""bytes a second: exchanges last about as long as rounds do, so that many peers are in the middle of one"""
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


def read(run: Watched) -> Findings:
    victims = {fault.hosts[0] for fault in run.plan.script}
    survivors = set(range(run.plan.peers)) - victims
    usual = run.rate(BEFORE)
    again = [_first(run, host, survivors, KILLED) - KILLED for host in survivors]
    back = [_first(run, host, set(range(run.plan.peers)), AFTER.begins) - AFTER.begins for host in victims]
    rows = [
        (
            act.name,
            str(min(len(look.up) for look in run.between(act))),
            f"{run.rate(act, survivors):.1f}",
            f"{run.rate(act, victims):.1f}",
            f"{run.distance(act):.2g}",
            str(run.in_doubt(act)),
        )
        for act in (BEFORE, DURING, AFTER)
    ]
    after = run.rate(Act("", AFTER.ends - 20.0, AFTER.ends)) / usual
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
            Panel("members up, and known to the others", run.seen(), steps=True),
            Panel("exchanges a minute, of a peer that is up", {"exchanges": run.pace(6.0)}, mark=0.9 * usual),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        [(KILLED, KILLED + DOWN, f"{len(victims)} of {run.plan.peers} are dead")],
    )


def _first(run: Watched, host: int, partners: set[int], since: float) -> float:
    """When `host` first ended an exchange, begun after `since`, with one of `partners`."""
    ended = (
        one.at
        for one in run.exchanges
        if host in one.hosts and partners >= set(one.hosts) and one.at - one.lasted > since
    )
    return next(ended, float("inf"))


SCENARIO = Scenario("mass-kill", "What if half of all peers die at once, and come back?", 16, plan, read, least=4)
