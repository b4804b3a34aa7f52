"""Does every invariant hold, whatever goes wrong? The seed draws a network, its weather and its faults (campaign T1).

The seeds are those of `simulations.simulator.cluster`. The seed decides the number of peers unless one is given.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from simulations.check import Check
from simulations.scenarios.base import Scenario
from simulations.scenarios.findings import Findings, Panel
from simulations.scenarios.observed import ObservedCluster
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import draw

__all__ = ["SCENARIO", "plan"]


def plan(seed: int, peers: int) -> Plan:
    """The seed's own plan. Another number of peers gets the same weather and faults of its own."""
    drawn = Plan.draw(seed)
    if peers in (0, drawn.peers):
        return drawn
    sized = drawn.of_size(seed, peers)
    count, ends = len(drawn.script), sized.forming + sized.chaos - 1.0
    random = Random(f"chaos/{seed}/{peers}")
    script = draw(random, count=count, peers=peers, begin=sized.forming, end=ends, long=sized.chaos > 30.0)
    return replace(sized, script=script)


def read(run: ObservedCluster) -> Findings:
    books = run.books
    rough = run.plan.conditions
    rows = [
        ("peers", str(run.plan.peers)),
        ("faults", str(len(run.plan.script))),
        ("loss, doubled, out of order", f"{rough.loss:.0%}, {rough.duplicate:.0%}, {rough.reorder:.0%}"),
        ("latency", f"{rough.latency * 1e3:.0f} ms"),
        ("exchanges", str(books.exchanges)),
        ("chunks mixed, by each side", str(books.mixed)),
        ("rounds", str(books.rounds)),
        ("chunks in doubt after crashes", str(sum(books.doubts.values()))),
    ]
    begins = run.plan.forming
    return Findings(
        ("what", "how much"),
        rows,
        [
            Check(
                "I1, I2, I4, I7, I8, I9, I11 checked; none was broken",
                "after every job, and at rest",
                f"{books.checked} times, {'' if books.rested else 'not '}at rest",
                books.checked >= books.mixed > 0 and books.rested,
            )
        ],
        [
            run.members_panel(),
            Panel("exchanges a minute, of a peer", {"exchanges": run.exchange_rates(4.0)}),
            run.distance_panel(),
        ],
        [(begins, begins + run.plan.chaos, "faults")],
    )


SCENARIO = Scenario("chaos", "Does every invariant hold, whatever goes wrong?", 0, plan, read)
