"""Shrinks a failing run: fewer faults, fewer peers, a calmer network, as long as the run fails in the same way.

A plan is data. Shrinking tries smaller plans and keeps those that still fail (delta debugging: Zeller and Hildebrandt,
"Simplifying and isolating failure-inducing input", 2002). Removing a fault or a peer shifts all later events, so such a
plan is tried with several seeds. The calm after the faults is never cut: a run needs it to come to rest. `story` tells
the shrunk run line by line (`tracing`), as far as it concerns the peers and the exchange that the failure names.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from gossipdp.protocol.wire.messages import Accept
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.faults import FOREVER, Fault
from simulations.simulator.network import Conditions, Record
from simulations.simulator.tracing import Reader, about, concerning, number, sentence

__all__ = ["Failure", "Shrunk", "attempt", "plan_from_json", "plan_to_json", "shrink", "story"]

SEEDS = 4
"""seeds tried for a plan with fewer faults or peers"""
TOLD = 60
"""most lines of a trace; the last ones are kept"""


@dataclass(frozen=True)
class Failure:
    text: str
    way: str
    """the text without numbers: runs that fail in the same way have most likely met the same bug"""
    at: float

    @classmethod
    def of(cls, error: Exception, at: float) -> Failure:
        text = str(error)
        if not isinstance(error, AssertionError) or not text:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} in {where.name}: {text}"
        return cls(text, re.sub(r"\b(p)?\d[\d.e+-]*\b|b'[^']*'|\([\d, ]+\)", "#", text)[:80], at)


@dataclass(frozen=True)
class Shrunk:
    seed: int
    plan: Plan
    failure: Failure
    runs: int
    """number of plans tried"""
    seconds: float
    """CPU seconds"""


Attempt = Callable[[int, Plan], Failure | None]


def attempt(seed: int, plan: Plan, trace: Callable[[Record], None] | None = None) -> Failure | None:
    """Play a plan. Return how it failed, or None."""
    cluster = Cluster(seed, plan, trace)
    try:
        cluster.run()
    except Exception as error:
        return Failure.of(error, cluster.network.now)
    return None


def shrink(
    seed: int,
    plan: Plan,
    failure: Failure,
    *,
    budget: float = 60.0,
    say: Callable[[str], None] | None = None,
    attempt: Attempt = attempt,
    clock: Callable[[], float] = time.process_time,
) -> Shrunk:
    """Find a smaller plan that fails in the same way.

    Args:
        seed, plan, failure: the run to shrink.
        budget: CPU seconds to spend.
        say: receives a line after each success.
        attempt: plays a plan; tests replace it.
        clock: returns CPU seconds; tests replace it.

    Returns:
        the smallest run found within the budget, which may be the given one.
    """
    began = clock()
    best = Shrunk(seed, plan, failure, 0, 0.0)
    runs = 0

    def fails(smaller: Plan, seeds: int) -> Shrunk | None:
        nonlocal runs
        for other in range(best.seed, best.seed + seeds):
            if clock() - began > budget:
                return None
            runs += 1
            found = attempt(other, smaller)
            if found is not None and found.way == failure.way:
                return Shrunk(other, smaller, found, runs, clock() - began)
        return None

    shrunk = True
    while shrunk and clock() - began <= budget:
        shrunk = False
        for step in (_half_the_peers, _fewer_faults, _fewer_peers, _calmer, _plainer_faults, _shorter):
            again = True
            while again and clock() - began <= budget:
                again = False
                for smaller, seeds in step(best):
                    if (found := fails(smaller, seeds)) is not None:
                        best, again, shrunk = found, True, True
                        if say is not None:
                            say(f"{runs} runs: {_size(best.plan)}")
                        break
    return replace(best, runs=runs, seconds=clock() - began)


def _size(plan: Plan) -> str:
    return f"{plan.peers} peers, {len(plan.script)} faults, {plan.forming + plan.chaos:.1f} s until all is calm"


# -- smaller plans, the boldest first; each with how many seeds it is worth -------------------------------------------


def _fewer_faults(now: Shrunk) -> Iterator[tuple[Plan, int]]:
    script = now.plan.script
    half = len(script) // 2
    if script:
        yield replace(now.plan, script=()), SEEDS
    if half > 1:
        yield replace(now.plan, script=script[:half]), SEEDS
        yield replace(now.plan, script=script[half:]), SEEDS
    if len(script) > 1:
        for place in reversed(range(len(script))):
            yield replace(now.plan, script=script[:place] + script[place + 1 :]), SEEDS


def _half_the_peers(now: Shrunk) -> Iterator[tuple[Plan, int]]:
    """Halves of a large network, where each run is expensive. The founder stays."""
    peers = now.plan.peers
    if peers > 4:
        yield without(now.plan, *range(1 + peers // 2, peers)), SEEDS
        yield without(now.plan, *range(1, 1 + peers // 2)), SEEDS


def _fewer_peers(now: Shrunk) -> Iterator[tuple[Plan, int]]:
    for host in reversed(range(1, now.plan.peers)):
        if now.plan.peers > 2:
            yield without(now.plan, host), SEEDS


def without(plan: Plan, *gone: int) -> Plan:
    """The plan of a network without the hosts `gone`. Later hosts get lower numbers."""
    left = {host: place for place, host in enumerate(host for host in range(plan.peers) if host not in gone)}
    script = []
    for fault in plan.script:
        hosts = tuple(left[host] for host in fault.hosts if host in left)
        if hosts:
            script.append(replace(fault, hosts=hosts))
    slowness = tuple(slow for host, slow in enumerate(plan.slowness) if host in left)
    return replace(plan, peers=len(left), script=tuple(script), slowness=slowness)


def _calmer(now: Shrunk) -> Iterator[tuple[Plan, int]]:
    plan, rough, calm = now.plan, now.plan.conditions, Conditions()
    if rough != calm:
        yield replace(plan, conditions=calm), 2
    for name in ("loss", "duplicate", "reorder", "late", "jitter", "latency", "bandwidth", "job"):
        if getattr(rough, name) != getattr(calm, name):
            changed: dict[str, Any] = {name: getattr(calm, name)}
            yield replace(plan, conditions=replace(rough, **changed)), 2
    least = 300
    if plan.size > least:
        yield replace(plan, size=least), 2
    if plan.agree:
        yield replace(plan, agree=False), 1
    if plan.slowness:
        yield replace(plan, slowness=()), 2


def _plainer_faults(now: Shrunk) -> Iterator[tuple[Plan, int]]:
    plan = now.plan
    for place, fault in enumerate(plan.script):
        for plainer in _plainer(fault):
            yield replace(plan, script=(*plan.script[:place], plainer, *plan.script[place + 1 :])), 1


def _plainer(fault: Fault) -> Iterator[Fault]:
    if fault.busy:
        yield replace(fault, busy=False)
    if fault.trainer:
        yield replace(fault, trainer=False)
    if not fault.disk:
        yield replace(fault, disk=True)
    if fault.kind == "torn":
        yield replace(fault, kind="crash")
    if fault.kind == "flapping":
        yield replace(fault, kind="isolated")
    if fault.lasts not in (FOREVER, 2.0):
        yield replace(fault, lasts=2.0)
    if fault.at != round(fault.at, 1):
        yield replace(fault, at=round(fault.at, 1))


def _shorter(now: Shrunk) -> Iterator[tuple[Plan, int]]:
    plan = now.plan
    last = max((fault.at + min(fault.lasts, 10.0) for fault in plan.script), default=plan.forming)
    chaos = round(max(1.0, last - plan.forming + 0.5), 1)
    if chaos < plan.chaos:
        yield replace(plan, chaos=chaos), 1
    if plan.script and (early := plan.script[0].at - plan.forming) > 1.0:
        sooner = tuple(replace(fault, at=round(fault.at - early + 0.5, 3)) for fault in plan.script)
        yield replace(plan, script=sooner, chaos=max(1.0, plan.chaos - early + 0.5)), 2


# -- what is left, told ---------------------------------------------------------------------------------------------


def story(shrunk: Shrunk, *, most: int = TOLD) -> str:
    """The plan, the failure, and the events before it, at most `most` lines."""
    plan, failure = shrunk.plan, shrunk.failure
    rough, calm = asdict(plan.conditions), asdict(Conditions())
    weather = ", ".join(f"{name} {value:g}" for name, value in rough.items() if value != calm[name])
    heading = [
        f"{plan.peers} peers, {plan.size} parameters, seed {shrunk.seed}, a round every {plan.every} steps"
        + (f"; {weather}" if weather else ""),
        *(f"{fault.at:9.3f}  {sentence(fault)}" for fault in plan.script),
        f"{failure.at:9.3f}  fails: {failure.text}",
    ]
    records: list[Record] = []
    cluster = Cluster(shrunk.seed, plan, records.append)
    try:
        cluster.run()
    except Exception:
        pass
    hosts, exchange = concerning(failure.text, plan.peers)
    network = {host.id: host.name for host in cluster.network.hosts}
    key = getattr(records[-1].what, "key", None) if records else None
    if not exchange and key is not None:  # it failed over a job on a chunk
        hosts, exchange = frozenset({records[-1].host or 0}), number(key.exchange)
    if exchange:
        hosts |= _partners(records, hosts, exchange)
    lines = Reader(network).lines(filter(about(hosts, exchange), records))
    left = len(lines) - most
    what = f"what concerns {', '.join(f'p{host}' for host in sorted(hosts))}" if hosts else "all of it"
    told = f", exchange {exchange} alone" if exchange else ""
    heading += ["", f"{what}{told}:"] + ([f"           ... {left} lines before"] if left > 0 else [])
    return "\n".join([*heading, *lines[-most:]])


def _partners(records: Sequence[Record], hosts: frozenset[int], exchange: str) -> frozenset[int]:
    """Both ends of the exchange. With `hosts`, only of an exchange that one of them took part in."""
    accepted = [
        {end for end in (record.host, record.other) if end is not None}
        for record in records
        if isinstance(record.what, Accept) and number(record.what.exchange) == exchange
    ]
    return frozenset(end for ends in accepted if not hosts or ends & hosts for end in ends)


def plan_to_json(seed: int, plan: Plan) -> str:
    """Encode a run for `plan_from_json`."""
    return json.dumps({"seed": seed, "plan": asdict(plan)}, indent=1)


class _Run(msgspec.Struct, forbid_unknown_fields=True):
    seed: int
    plan: Plan


def plan_from_json(text: str) -> tuple[int, Plan]:
    """Decode seed and plan.

    Raises:
        ValueError: the text is not a run.
    """
    run = msgspec.convert(json.loads(text), _Run)
    return run.seed, run.plan
