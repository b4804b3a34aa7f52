"""LoRA: what it costs to average A and B apart, and whether training B alone, or each in turn, is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from simulations.lab.core import Setting
from simulations.lab.failures.hosts import Event, FailureSetting
from simulations.lab.inner import FREEZING
from simulations.lab.lora.problem import ByteLora
from simulations.lab.lora.runs import LoraRun
from simulations.lab.suites.arms import SHORT_START, explicit_options, with_short_start
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import Figure, Reported, check, formatted, reported

__all__ = ["SUITE"]

STEPS: Final = 500
"""the steps of the warm start included"""
WARMUP: Final = 100
BASE: Final = Setting(peers=8, every=20, rounds=STEPS // 20, inner=FREEZING, evaluate_every=STEPS)
BOTH, ALONE, TURNS = "A and B", "B alone", "A and B in turn"
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    BOTH: {"trained": "both"},
    ALONE: {"trained": "B"},
    TURNS: {"trained": "in turn"},
}
"""data of the problem"""
RATES: Final = (0.001, 0.002, 0.004, 0.008, 0.016)
PLAIN_RATES: Final = (0.004, 0.008, 0.016, 0.032)
"""without outer momentum"""
RATE: Final[Mapping[str, float]] = {BOTH: 0.004, ALONE: 0.008, TURNS: 0.002}
"""of 8 peers"""
RATE_OF_TWO: Final[Mapping[str, float]] = {BOTH: 0.008, ALONE: 0.016, TURNS: 0.008}
"""the best of RATES"""
PLAIN_RATE: Final = 0.016
"""the best of PLAIN_RATES"""
LONE_RATE: Final = 0.008
"""the best of RATES without exchanges"""
PLAIN: Final = "no outer momentum"
NO_MOMENTUM: Final = {"lr": 1.0, "momentum": 0.0}
LONGER: Final = "A and B in turn, five rounds each"
APART, TOGETHER, LONGEST = "every host alone, then merged", "one host, N times the batch", "one host, N times the steps"
TWO, EIGHT = "2 peers", "8 peers"
COLD, JOINER, UNLIKE = "8 peers, cold", "8 peers, one joins after half of the steps", "8 peers, Dirichlet 0.1"
RARE: Final = "8 peers, H 100"
RANKS: Final = (2, 32)
BY_RATE: Final = "2 peers, by learning rate"
QUICK: Final[Mapping[str, Any]] = {"width": 16, "blocks": 1, "context": 8, "held_out": 8, "pretraining": 5}
"""a model for tests"""
LIMIT: Final = 0.005
"""nats that averaging A and B apart may cost"""


def _rank(rank: int) -> str:
    return f"8 peers, r {rank}"


def _arms(scale: Scale) -> list[Arm]:
    found: list[Arm] = []

    def add(
        group: str,
        label: str,
        setting: Setting,
        data: Mapping[str, Any],
        *,
        method: str = "pairwise",
        warmup: int = 0,
        outer: Mapping[str, float] = {},
        seeds: int | None = None,
    ) -> None:
        """Add an arm; a warm start takes its steps from the rounds."""
        short = replace(setting, rounds=setting.rounds - warmup // setting.every)
        options: dict[str, Any] = {**outer, "warmup_steps": warmup} if warmup else {}
        if scale == "quick":
            short, data = _quick(short), {**data, **QUICK}
            options = with_short_start(options, scale)
        told = explicit_options(method, options)
        found.append(Arm(group, label, LoraRun(setting=short, data=data, method=method, options=told), seeds))

    for group, peers, rates in ((TWO, 2, RATE_OF_TWO), (EIGHT, 8, RATE)):
        setting = replace(BASE, peers=peers)
        for label, data in WAYS.items():
            add(group, label, replace(setting, lr=rates[label]), data, warmup=WARMUP)
        rated = replace(setting, lr=PLAIN_RATE)
        for label, seeds in ((BOTH, None), (TURNS, 1)):
            add(group, f"{label}, {PLAIN}", rated, WAYS[label], warmup=WARMUP, outer=NO_MOMENTUM, seeds=seeds)
        rated = replace(setting, lr=LONE_RATE)
        add(group, APART, rated, {}, method="local-only")
        single = replace(rated, peers=1)
        add(group, TOGETHER, single, {"batch": peers * ByteLora().batch}, method="local-only", seeds=1)
        add(group, LONGEST, replace(single, rounds=peers * single.rounds), {}, method="local-only", seeds=1)
    for label in (BOTH, ALONE):
        rated, data = replace(BASE, lr=RATE[label]), WAYS[label]
        add(COLD, label, rated, data, seeds=1)
        add(RARE, label, replace(rated, every=100, rounds=STEPS // 100), data, warmup=WARMUP, seeds=1)
        add(JOINER, label, _joined(rated), data, warmup=WARMUP, seeds=1)
        add(UNLIKE, label, rated, {**data, "dirichlet": 0.1}, warmup=WARMUP, seeds=1)
        for rank in RANKS:
            add(_rank(rank), label, rated, {**data, "rank": rank}, warmup=WARMUP, seeds=1)
    for lr in RATES:
        rated = replace(BASE, peers=2, lr=lr)
        for label, data in WAYS.items():
            add(BY_RATE, f"{label}, {lr:g}", rated, data, warmup=WARMUP, seeds=1)
        add(BY_RATE, f"{APART}, {lr:g}", rated, {}, method="local-only", seeds=1)
    for lr in PLAIN_RATES:
        rated = replace(BASE, peers=2, lr=lr)
        for label, data in WAYS.items():
            add(BY_RATE, f"{label}, {PLAIN}, {lr:g}", rated, data, warmup=WARMUP, outer=NO_MOMENTUM, seeds=1)
    slower = {**WAYS[TURNS], "stretch": 5 * BASE.every}
    lr = RATE_OF_TWO[TURNS]
    add(BY_RATE, f"{LONGER}, {lr:g}", replace(BASE, peers=2, lr=lr), slower, warmup=WARMUP, seeds=1)
    return found


def _joined(setting: Setting) -> FailureSetting:
    """The setting with a host that is away for the first half of the steps."""
    late = Event(host=setting.peers - 1, kind="gone", begin=0.0, end=STEPS / 2)
    values = {each.name: getattr(setting, each.name) for each in fields(setting)}
    return FailureSetting(**values, seconds=float(STEPS), events=(late,))


def _quick(setting: Setting) -> Setting:
    short = replace(setting, every=2, rounds=3)
    if not isinstance(short, FailureSetting):
        return short
    seconds = float(SHORT_START + short.every * short.rounds)
    return replace(short, seconds=seconds, events=tuple(replace(one, end=seconds / 2) for one in short.events))


def _read(results: Results) -> Findings:
    tables = [_table(group, outcomes) for group, outcomes in results.groups.items()]
    averaged = [(group, results[group, BOTH]) for group in results.groups if group != BY_RATE]
    checks = [
        check(
            f"{group}: what averaging A and B apart costs, nats",
            f"<= {LIMIT}",
            outcome.fact("factors") - outcome.fact("products"),
            digits=5,
        )
        for group, outcome in averaged
    ]
    figures: list[Reported] = []
    for group, outcome in averaged:
        others = {label: results.groups[group][label] for label in (ALONE, TURNS) if label in results.groups[group]}
        figures += [
            reported(
                f"{group}: {label} above {BOTH}, finished models, nats",
                other.finished_loss - outcome.finished_loss,
                replicas=other.replica_loss - outcome.replica_loss,
            )
            for label, other in others.items()
        ]
    for group in (TWO, EIGHT):
        once, plain, ours = (results[group, label] for label in (APART, f"{BOTH}, {PLAIN}", BOTH))
        named = {
            f"{BOTH}, {PLAIN}, above that with it, finished models": plain.finished_loss - ours.finished_loss,
            f"{BOTH} above one host alone": ours.finished_loss - once.replica_loss,
            f"{BOTH} above one host, N times the batch": ours.finished_loss - results[group, TOGETHER].replica_loss,
            "averaged once, factors above products": once.fact("factors") - once.fact("products"),
        }
        figures += [reported(f"{group}: {name}, nats", figure) for name, figure in named.items()]
    frozen = Figure(results[EIGHT, APART].each(lambda curve: curve.points[0].loss))
    figures.append(reported("the frozen base on the new text, nats", frozen))
    return Findings(tables, checks, notes=NOTES, reported=figures)


def _table(group: str, outcomes: Mapping[str, Outcome]) -> Table:
    columns: tuple[str, ...] = (
        "what is trained",
        "parameters",
        "single replicas",
        "mean of the factors",
        "mean of the products",
        "apart, %",
        "finished model",
        "bytes a parameter",
    )
    rows: list[tuple[str, ...]] = []
    for label, outcome in outcomes.items():
        task = outcome.arm.task
        assert isinstance(task, LoraRun)
        several, gossips = outcome.setting.peers > 1, task.method == "pairwise"
        rows.append(
            (
                label,
                f"{ByteLora(**task.data).parameters:,}",
                formatted(outcome.replica_losses),
                *(formatted(outcome.fact(name)) if several else "-" for name in ("factors", "products")),
                formatted(100.0 * outcome.fact("apart"), 2) if several else "-",
                formatted(outcome.finished_losses) if gossips else "-",
                formatted(outcome.bytes, 0) if gossips else "-",
            )
        )
    if group == BY_RATE:
        shown = [0, columns.index("single replicas"), columns.index("finished model")]
        columns, *rows = (tuple(row[place] for place in shown) for row in (columns, *rows))
    return Table(f"{group[0].upper()}{group[1:]}", columns, rows)


NOTES: Final = (
    "Mean of the factors: the model of mean(A) and mean(B), which averaging leaves. Mean of the products: W + "
    "mean(A B) of the same replicas, whose rank may be as high as N r. Apart: the norm of the difference of "
    "these two, as a share of the mean product's. All three are of the replicas at the end of training. The "
    "finished model is what `gossipdp finish` leaves afterwards.",
    "Learning rates: 2 peers have the best of the last table, which has seed 0: "
    f"{', '.join(f'{label} {rate:g}' for label, rate in RATE_OF_TWO.items())}, without outer momentum {PLAIN_RATE:g}, "
    f"without exchanges {LONE_RATE:g}. 8 peers have {', '.join(f'{label} {rate:g}' for label, rate in RATE.items())}: "
    "the best of two peers with outer momentum 0.6.",
    "In turn, the frozen factor takes no step of AdamW. The outer momentum of `pairwise` goes on moving it. Only the "
    "rows without outer momentum are RoLoRA's way.",
)

SUITE = Suite(
    name="lora",
    question="LoRA: may A and B be averaged apart, or is B alone better?",
    about="A transformer of two blocks (width 64, context 32) learned the standard library's Python in "
    f"{ByteLora.pretraining:,} steps of 16 windows. LoRA (Hu et al. 2021, arXiv 2106.09685) adapts its eight "
    "matrices to the C++ headers of torch: r 8 unless stated, alpha 8 and A's spread as in PEFT. Every host "
    f"makes {STEPS} steps of {ByteLora.batch} windows. Pairwise has the daemon's defaults, H = {BASE.every} and "
    f"a warm start of {WARMUP} of these steps. Links take no time. A and B: both are trained, and each is "
    "averaged by itself (FedIT, Zhang et al. 2023, arXiv 2305.05644). B alone: A is drawn once, is the same "
    "everywhere, and stays (LoRA-FA, Zhang et al. 2023, arXiv 2308.03303; FFA-LoRA, Sun et al. 2024, arXiv "
    f"2403.12313). In turn: B in one stretch of {BASE.every} steps, A in the next (RoLoRA, Chen et al. 2025, "
    "arXiv 2502.01755). Then merged: hosts train A and B from one start without exchanges, and the products are "
    "averaged once. Such exact means need a change of the frozen weights (FedEx-LoRA, Singhal et al. 2024, "
    "arXiv 2410.09432) or a rank of N r (FLoRA, Wang et al. 2024, arXiv 2409.05976). The joiner arrives when "
    "half of the steps are over, and copies a member's factors and moments.",
    arms=_arms,
    read=_read,
)
