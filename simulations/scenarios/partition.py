"""What happens to a network that is cut in two? Halves, then nine tenths against one tenth; each heals (T5, I7, I8).

Both sides train on. After each heal all must know each other again, exchanges must be back at half of their rate within
a minute, and the replicas must be as close as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.membership.suspects import suspicion_bounds
from simulations.check import Check
from simulations.scenarios.base import Scenario
from simulations.scenarios.findings import Findings, Panel
from simulations.scenarios.observed import Act, ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING, BEFORE, CUT, HEALED = 10.0, 40.0, 60.0, 60.0
WEATHER = Conditions(latency=0.02, jitter=0.5, loss=0.01)
SETTLED = 30.0
"""seconds after a heal from which the distance of the replicas is measured"""


def smaller(peers: int) -> dict[str, tuple[int, ...]]:
    """The smaller side of each cut."""
    return {
        "50/50": tuple(range(peers // 2, peers)),
        "90/10": tuple(range(peers - max(1, round(peers / 10)), peers)),
    }


def cuts() -> list[float]:
    """Begin of each cut."""
    return [FORMING + BEFORE + number * (CUT + HEALED) for number in range(2)]


def plan(seed: int, peers: int) -> Plan:
    script = tuple(
        Fault(at=at, kind="halves", hosts=side, lasts=CUT)
        for at, side in zip(cuts(), smaller(peers).values(), strict=True)
    )
    return Plan(
        peers=peers,
        size=8192 + 300,
        conditions=WEATHER,
        every=10,
        window=4,
        script=script,
        forming=FORMING,
        chaos=BEFORE + 2 * (CUT + HEALED),
        calm=15.0,
    )


def read(run: ObservedCluster) -> Findings:
    before = Act("before", FORMING + 10.0, FORMING + BEFORE)
    usual, distance = run.exchange_rate(before), run.distance(before)
    rows: list[tuple[str, ...]] = [(before.name, f"{run.plan.peers}", f"{usual:.1f}", f"{distance:.2g}", "")]
    checks: list[Check] = []
    for at, (name, side) in zip(cuts(), smaller(run.plan.peers).items(), strict=True):
        rest = [host for host in range(run.plan.peers) if host not in side]
        failed, failed_rest = _until_failed(run, at, rest, side), _until_failed(run, at, side, rest)
        together = run.seconds_until(lambda one: all(n == len(one.up) for n in one.seen.values()), since=at + CUT)
        rows += [
            _row(run, Act(f"cut {name}", at, at + CUT), f"{failed:.0f} s, {failed_rest:.0f} s until failed"),
            _row(run, _healed(name, at), f"all together after {together:.0f} s"),
        ]
        checks += _checks(run, name, at, failed, together, usual, distance)
    return Findings(
        ("act", "known at its end", "exchanges/min", "distance", ""),
        rows,
        checks,
        [
            run.members_panel(),
            Panel("exchanges a minute, of a peer", {"exchanges": run.exchange_rates()}, mark=0.5 * usual),
            run.distance_panel(),
        ],
        [(at, at + CUT, f"cut {name}") for at, name in zip(cuts(), smaller(run.plan.peers), strict=True)],
    )


def _healed(name: str, at: float) -> Act:
    return Act(f"{name} healed", at + CUT, at + CUT + HEALED)


def _until_failed(run: ObservedCluster, at: float, observers: Sequence[int], side: Sequence[int]) -> float:
    """Seconds from the cut until every observer believes all of `side` failed."""
    return run.seconds_until(lambda one: all(one.failed[host] >= set(side) for host in observers), since=at)


def _row(run: ObservedCluster, act: Act, note: str) -> tuple[str, ...]:
    known = sorted({one.seen[host] for one in run.between(act)[-5:] for host in one.up}, reverse=True)
    return act.name, " / ".join(map(str, known)), f"{run.exchange_rate(act):.1f}", f"{run.distance(act):.2g}", note


def _checks(
    run: ObservedCluster, name: str, at: float, failed: float, together: float, usual: float, distance: float
) -> list[Check]:
    """The marks of one cut. `usual` and `distance` are those before the first cut."""
    _, longest = suspicion_bounds(
        LOCAL.suspicion_multiplier, LOCAL.suspicion_longest, run.plan.peers, LOCAL.probe_interval
    )
    bound = longest + 2.0 * LOCAL.probe_interval * run.plan.peers
    rate = run.exchange_rate(_healed(name, at))
    settled = run.distance(Act("", at + CUT + SETTLED, at + CUT + HEALED))
    return [
        Check(f"{name}: smaller side failed to the larger", f"<= {bound:.0f} s", f"{failed:.0f} s", failed <= bound),
        Check(
            f"{name}: exchanges a minute after the heal (I7)",
            f">= 50 % of {usual:.1f} a minute",
            f"{rate / usual:.0%}",
            rate >= 0.5 * usual,
        ),
        Check(f"{name}: all know all again (I8)", "<= 5 s", f"{together:.0f} s", together <= 5.0),
        Check(
            f"{name}: distance {SETTLED:.0f} s after the heal",
            f"<= 1.5 times {distance:.2g}",
            f"{settled / distance:.2f} times",
            settled <= 1.5 * distance,
        ),
    ]


SCENARIO = Scenario("partition", "What happens to a network that is cut in two?", 20, plan, read, least=4)
