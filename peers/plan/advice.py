"""What a plan recommends, in words. Each follows from a page, which it names.

The thresholds are those of docs/choosing.md. Between what pages measured, the words say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from peers.plan.choice import CROWDED, FULLEST, MOST_WINDOW, Plan
from peers.plan.clock import DDP, DILOCO, GOSSIP, OVERLAPPED
from peers.plan.network import percent

__all__ = ["FAILURES", "Advice", "Reason", "advice_for"]

FAILURES: Final = ("none", "some", "churn")
Use = Literal["ddp", "either", "quorum", "gossip", "long", "none"]
CHOOSING, PERFORMANCE = "docs/choosing.md", "docs/performance.md"
CLOCK, FAILED, RACE, B9 = (f"simulations/results/{name}.md" for name in ("clock", "failures", "race", "b9"))
LEVEL: Final = 0.4
"""share of its time lost at which DDP is level with gossip, hosts being equal: between 0 %, where it is 0.07 nats
ahead, and 69 %, where it is 0.09 behind (clock.md), on a straight line over the logarithm of steps"""
LEVEL_UNEQUAL: Final = 0.2
"""the same with hosts of 1:2:4: 0.03 ahead and 0.13 behind"""
PLAYED: Final = 4.0
"""the fastest host of clock.md, as a multiple of the slowest"""
QUORUM_LOSES: Final = 0.05
"""share of time that DiLoCo at 4 bits may lose to links for the figures of failures.md to hold: there it loses 4 %"""
LONG: Final = 2.0
"""fill with the default round, above which docs/choosing.md takes longer rounds or DiLoCo"""
MANY: Final = 16
CORE_SECONDS: Final = 12e-9
"""of one core a parameter and exchange: vectors, encryption, Python (docs/performance.md, benchmarks)"""
CODING: Final = 0.2
"""share of a round from which they are told"""


@dataclass(frozen=True)
class Reason:
    text: str
    page: str


@dataclass(frozen=True)
class Advice:
    use: Use
    headline: str
    reasons: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    """on the settings"""


def advice_for(plan: Plan, failures: str, price: float | None = None) -> Advice:
    """What to use, and why.

    Args:
        failures: one of `FAILURES`.
        price: of a GB sent; None if bytes cost nothing.
    """
    use = _use(plan, failures)
    headline = {
        "ddp": "Use DDP here.",
        "either": "Try both DDP and gossip here.",
        "quorum": "DiLoCo with a quorum is ahead here, at 4 bits.",
        "gossip": "Use gossip here.",
        "none": "These links are too slow for this model.",
        "long": f"Use gossip with rounds of {plan.rows[GOSSIP].every} steps here, or DiLoCo with hundreds.",
    }[use]
    reasons = {"ddp": _ddp, "either": _either, "quorum": _quorum, "gossip": _gossip, "long": _long, "none": _none}[use]
    return Advice(use, headline, tuple(reasons(plan, failures)), tuple(_notes(plan, use, price)))


def _use(plan: Plan, failures: str) -> Use:
    lost, apart = plan.rows[DDP].link, max(plan.network.speeds)
    level = LEVEL if plan.network.equal else LEVEL_UNEQUAL
    hides = lost <= min(plan.accepted, level)
    if hides and apart <= PLAYED and failures != "churn":
        return "ddp"
    if failures == "none" and lost <= level:
        return "either"
    if failures == "some" and plan.short.link <= QUORUM_LOSES:
        return "quorum"
    if plan.fill > FULLEST:
        return "none"
    return "long" if plan.default_fill > LONG else "gossip"


def _ddp(plan: Plan, failures: str) -> Iterator[Reason]:
    row = plan.rows[DDP]
    if row.link == 0.0:
        yield Reason("Its all-reduce hides behind the step.", CHOOSING)
    else:
        yield Reason(f"The links cost it {percent(row.link)} of its time, no more than you accept.", CHOOSING)
    if plan.network.equal:
        yield Reason("In the same number of steps it learns best: 0.07 nats ahead of gossip.", CLOCK)
    else:
        yield Reason(
            f"Faster hosts wait for the slowest, and {percent(row.lost)} of all hosts' time is lost. It was 0.03 nats"
            " ahead of gossip even so, with hosts of 1:2:4.",
            CLOCK,
        )
    if failures == "some":
        yield Reason(
            "A host that died, paused or had a slow link left it 0.01 to 0.11 nats ahead of gossip, at 8 hosts.", FAILED
        )
    else:
        yield Reason("If hosts come and go, see --failures churn: then it is 0.17 nats behind gossip.", FAILED)


def _either(plan: Plan, _: str) -> Iterator[Reason]:
    row = plan.rows[DDP]
    if row.link <= plan.accepted:
        yield Reason(
            f"The links cost DDP {percent(row.link)} of its time. But hosts differ by more than 1:2:4, which no page"
            f" measured, and {percent(row.lost)} of all hosts' time is lost.",
            CLOCK,
        )
        return
    ahead, behind, level = ("0.07", "0.09", LEVEL) if plan.network.equal else ("0.03", "0.13", LEVEL_UNEQUAL)
    yield Reason(
        f"The links cost DDP {percent(row.link)} of its time. Where they cost 0 % it is {ahead} nats ahead of gossip,"
        f" where they cost 69 %, {behind} behind.",
        CLOCK,
    )
    yield Reason(
        f"In between nothing is measured. A straight line puts them level near {percent(level)}.",
        CHOOSING,
    )


def _quorum(plan: Plan, _: str) -> Iterator[Reason]:
    yield Reason(
        f"With rounds of {plan.short.every} steps the links cost it {percent(plan.short.link)} of the time. Where they"
        " cost 4 %, a host that died or paused left it 0.01 nats ahead of gossip, and a slow link 0.02 behind.",
        FAILED,
    )
    fp32 = plan.rows[DILOCO]
    yield Reason(
        f"torchft has the quorum, but no codec of 4 bits. In fp32, {fp32.every} steps a round, the links cost"
        f" {percent(fp32.link)}.",
        PERFORMANCE,
    )
    yield Reason("Without such a codec, use gossip: failures cost it 0.007 to 0.015 nats, and no host waits.", FAILED)


def _gossip(plan: Plan, failures: str) -> Iterator[Reason]:
    yield Reason(
        f"The links would cost DDP {percent(plan.rows[DDP].link)} of its time, and cost gossip none.", CHOOSING
    )
    if failures != "none":
        yield Reason("Failures cost it 0.007 to 0.015 nats, and no host waits.", FAILED)
        yield Reason("Among real processes on slow links it was ahead of DDP and of torchft's DiLoCo.", RACE)
    elif plan.network.equal and plan.fill >= CROWDED:
        yield Reason(
            "Where an exchange fills most of a round, DiLoCo overlapped at 4 bits was 0.04 nats behind in 1,200 steps"
            " of a transformer, and 0.05 ahead in 6,000 of an MLP. It needs all hosts in every round.",
            B9,
        )
    elif plan.network.equal:
        yield Reason(
            "While all hosts stay, DiLoCo overlapped at 4 bits is as good, within 0.01 nats. It needs"
            " all hosts in every round.",
            CLOCK,
        )
    else:
        yield Reason(
            "While all hosts stay, DiLoCo overlapped at 4 bits, each host at its own pace, is as good. It needs all"
            " hosts in every round.",
            CLOCK,
        )
    if plan.network.hosts > MANY:
        yield Reason(f"With more than {MANY} hosts an exact average gains 0.01 to 0.02 nats per doubling.", CHOOSING)


def _long(plan: Plan, _: str) -> Iterator[Reason]:
    yield Reason(
        f"An exchange fills {plan.default_fill:.1f} rounds of {plan.default.every} steps, so rounds must be longer."
        " Twice the steps cost about 0.01 nats.",
        CHOOSING,
    )
    yield Reason(f"Pages measured gossip with rounds of {plan.default.every} steps at most.", B9)
    row = plan.rows[OVERLAPPED]
    yield Reason(
        f"DiLoCo overlapped at 4 bits, {row.every} steps a round, loses {percent(row.link)}. It needs all hosts in"
        " every round.",
        CHOOSING,
    )


def _none(plan: Plan, _: str) -> Iterator[Reason]:
    yield Reason(
        f"An exchange would fill {plan.fill:.1f} rounds even of {plan.rows[GOSSIP].every} steps. Pages measured gossip"
        f" with rounds of {plan.default.every} steps at most.",
        B9,
    )
    yield Reason("Train a smaller model, a part of it (an adapter, frozen layers), or find faster links.", CHOOSING)


def _notes(plan: Plan, use: Use, price: float | None) -> Iterator[Reason]:
    row = plan.rows[GOSSIP]
    if CROWDED <= plan.fill <= FULLEST:
        yield Reason(
            f"An exchange fills {plan.fill:.2f} of a round, so a round makes one. momentum = 0.4 suits a run of"
            " thousands of steps; leave it out of a shorter one.",
            CHOOSING,
        )
    if plan.default.every < row.every and plan.default_fill <= LONG:
        yield Reason(
            f"every: with {plan.default.every} steps an exchange would fill {plan.default_fill:.2f} of a round.",
            CHOOSING,
        )
    if price:
        cost, ddp = (price * each.bytes / 1e9 for each in (row, plan.rows[DDP]))
        if use in ("ddp", "either"):
            yield Reason(f"The bytes of an hour of DDP cost {ddp:.2f} per host, those of gossip {cost:.2f}.", CHOOSING)
        yield Reason(
            f"Twice `every` halves the bytes of gossip, for about 0.01 nats: {cost / 2.0:.2f} instead of {cost:.2f} per"
            " hour and host.",
            CHOOSING,
        )
    if plan.window > MOST_WINDOW:
        yield Reason(f"window: this path needs {plan.window} chunks in flight, so exchanges take longer.", CHOOSING)
    coding = CORE_SECONDS * plan.network.parameters
    if coding > CODING * row.round.seconds:
        yield Reason(
            f"The clock counts links, not cores. An exchange takes some {coding:.0f} s of a core: let it have one.",
            PERFORMANCE,
        )
