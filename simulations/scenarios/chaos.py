"""Does every invariant hold, whatever goes wrong? A network, its weather and its faults, all drawn from the seed (T1).

The seeds are those of `simulations.simulator.cluster`; the number of peers is the seed's own unless it is given.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from simulations.check import Check
from simulations.scenarios.base import Findings, Panel, Scenario, Watched
from simulations.simulator.cluster import Plan
from simulations.simulator.nemesis import draw

__all__ = ["SCENARIO", "plan"]


def plan(seed: int, peers: int) -> Plan:
    """With 0 peers what the seed draws; else the same in a network of so many, with faults of its own."""
    drawn = Plan.draw(seed)
    if peers in (0, drawn.peers):
        return drawn
    sized = drawn.of_size(seed, peers)
    count, ends = len(drawn.script), sized.forming + sized.chaos - 1.0
    random = Random(f"chaos/{seed}/{peers}")
    script = draw(random, count=count, peers=peers, begin=sized.forming, end=ends, long=sized.chaos > 30.0)
    return replace(sized, script=script)


def read(run: Watched) -> Findings:
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
                "I1, I2, I4, I7, I8, I9, I11 looked at; none was broken",
                "after every job, and at rest",
                f"{books.checked} times, {'' if books.rested else 'not '}at rest",
                books.checked >= books.mixed > 0 and books.rested,
            )
        ],
        [
            Panel("members up, and known to the others", run.seen(), steps=True),
            Panel("exchanges a minute, of a peer", {"exchanges": run.pace(4.0)}),
            Panel(
                "RMS distance of the replicas from their mean",
                {"distance": run.series(lambda look: look.distance)},
                log=True,
            ),
        ],
        [(begins, begins + run.plan.chaos, "faults")],
    )


SCENARIO = Scenario("chaos", "Does every invariant hold, whatever goes wrong?", 0, plan, read)
