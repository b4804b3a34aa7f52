"""What becomes of a network that is cut in two? Halves, and nine tenths against one; each heals (T5, I7, I8).

Both sides train on by themselves. After each heal all must know each other again, exchanges must be back to half of
their rate within a minute, and the distance of the replicas back to what it was.
"""

from __future__ import annotations

from gossipdp.protocol.membership.membership import LOCAL
from gossipdp.protocol.membership.suspicion import suspicion_bounds
from simulations.check import Check
from simulations.scenarios.base import Act, Findings, Panel, Scenario, Watched
from simulations.simulator.cluster import Plan
from simulations.simulator.nemesis import Fault
from simulations.simulator.network import Conditions

__all__ = ["SCENARIO", "plan"]

FORMING, BEFORE, CUT, HEALED = 10.0, 40.0, 60.0, 60.0
WEATHER = Conditions(latency=0.02, jitter=0.5, loss=0.01)
SETTLED = 30.0
"""seconds after a heal from which on the distance is taken"""


def smaller(peers: int) -> dict[str, tuple[int, ...]]:
    """The smaller side of each cut."""
    return {
        "50/50": tuple(range(peers // 2, peers)),
        "90/10": tuple(range(peers - max(1, round(peers / 10)), peers)),
    }


def cuts() -> list[float]:
    return [FORMING + BEFORE + number * (CUT + HEALED) for number in range(2)]


def plan(seed: int, peers: int) -> Plan:
    script = tuple(
        Fault(at=at, kind="halves", hosts=side, lasts=CUT)
        for at, side in zip(cuts(), smaller(peers).values(), strict=True)
    )
    chaos = BEFORE + 2 * (CUT + HEALED)
    return Plan(
        peers=peers,
        size=8192 + 300,
        conditions=WEATHER,
        every=10,
        window=4,
        script=script,
        forming=FORMING,
        chaos=chaos,
        calm=15.0,
    )


def read(run: Watched) -> Findings:
    before = Act("before", FORMING + 10.0, FORMING + BEFORE)
    usual, distance = run.rate(before), run.distance(before)
    rows = [(before.name, f"{run.plan.peers}", f"{usual:.1f}", f"{distance:.2g}", "")]
    checks, spans = [], []
    longest = suspicion_bounds(
        LOCAL.suspicion_multiplier, LOCAL.suspicion_longest, run.plan.peers, LOCAL.probe_interval
    )[1]
    for at, (name, side) in zip(cuts(), smaller(run.plan.peers).items(), strict=True):
        heal = at + CUT
        spans.append((at, heal, f"cut {name}"))
        cut, back = Act(f"cut {name}", at, heal), Act(f"{name} healed", heal, heal + HEALED)
        rest = [host for host in range(run.plan.peers) if host not in side]
        apart = run.after(at, lambda look: all(look.failed[host] >= set(side) for host in rest))  # noqa: B023
        other = run.after(at, lambda look: all(look.failed[host] >= set(rest) for host in side))  # noqa: B023
        together = run.after(heal, lambda look: all(seen == len(look.up) for seen in look.seen.values()))
        minute = run.rate(back)
        settled = run.distance(Act("", heal + SETTLED, heal + HEALED))
        for act, note in (
            (cut, f"{apart:.0f} s, {other:.0f} s until failed"),
            (back, f"all together after {together:.0f} s"),
        ):
            known = sorted({look.seen[host] for look in run.between(act)[-5:] for host in look.up}, reverse=True)
            rows.append(
                (act.name, " / ".join(map(str, known)), f"{run.rate(act):.1f}", f"{run.distance(act):.2g}", note)
            )
        bound = longest + 2.0 * LOCAL.probe_interval * run.plan.peers
        checks += [
            Check(
                f"{name}: smaller side failed to the larger",
                f"<= {bound:.0f} s",
                f"{apart:.0f} s",
                apart <= bound,
            ),
            Check(
                f"{name}: exchanges a minute after the heal (I7)",
                f">= 50 % of {usual:.1f} a minute",
                f"{minute / usual:.0%}",
                minute >= 0.5 * usual,
            ),
            Check(
                f"{name}: all know all again (I8)",
                "<= 5 s",
                f"{together:.0f} s",
                together <= 5.0,
            ),
            Check(
                f"{name}: distance {SETTLED:.0f} s after the heal",
                f"<= 1.5 times {distance:.2g}",
                f"{settled / distance:.2f} times",
                settled <= 1.5 * distance,
            ),
        ]
    return Findings(
        ("act", "known at its end", "exchanges/min", "distance", ""),
        rows,
        checks,
        [
            Panel("members up, and known to the others", run.seen(), steps=True),
            Panel("exchanges a minute, of a peer", {"exchanges": run.pace()}, mark=0.5 * usual),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        spans,
    )


SCENARIO = Scenario("partition", "What becomes of a network that is cut in two?", 20, plan, read, least=4)
