"""Can the outer loop run away, whatever the script does? A law for all later tuning (algorithms sections 3b and 3c)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulations.lab.stability.cells import EVENTS, GONE, TINY, Cell, CellSetting
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite, Table
from simulations.lab.suites.figures import check
from simulations.lab.theory.feedback import Loop

__all__ = ["SUITE", "Verdict", "verdict"]

FLAT: Final = "least squares, all eigenvalues 1"
STEEP: Final = "least squares, eigenvalues over six decades"
STILL: Final = "least squares, one batch per host"
QUADRATICS: Final[Mapping[str, Mapping[str, Any]]] = {
    FLAT: {"decades": 0.0},
    STEEP: {},
    STILL: {"decades": 0.0, "batch": 128},
}
DRAWN: Final = ("regression", "batch norm", "transformer")
EDGE: Final[Mapping[str, Mapping[str, float]]] = {
    FLAT: {"momentum": 1.0, "nesterov": 2.0, "adam": 0.06},
    STEEP: {"momentum": 16.0, "nesterov": 16.0, "adam": 0.125, "l-bfgs": 1.0},
    STILL: {"momentum": 1.0, "nesterov": 2.0, "adam": 0.06, "l-bfgs": 1.0},
    "regression": {"momentum": 1.0, "nesterov": 0.5, "adam": 0.06, "l-bfgs": 0.5},
    "batch norm": {"momentum": 0.5, "nesterov": 0.5, "adam": 0.125, "l-bfgs": 0.25},
    "transformer": {"momentum": 0.25, "nesterov": 0.25, "adam": 0.015, "l-bfgs": 0.25},
}
"""largest learning rates at which three lone hosts converged in 240 steps; twice as much was too much, or of no use"""
LANDINGS: Final[Sequence[tuple[float, float]]] = (
    (0.05, 0.05),
    (0.3, 0.3),
    (0.6, 0.6),
    (0.9, 0.9),
    (1.02, 1.02),
    (1.5, 1.5),
    (2.0, 2.0),
    (0.05, 2.0),
)
LIFTED: Final = 1.5
"""largest ratio of the loss after a drain to that before"""
ERRORS: Final = 2.0
"""standard errors by which a replica may be worse than the same host alone"""
FALLEN: Final = 0.9
"""share of the loss at the start below which a lone host must end, or the seed is not judged"""
STEPS: Final = 480
"""of a host, at least 12 rounds"""
DRAWS: Final[Mapping[Scale, int]] = {"quick": 1, "normal": 4, "full": 24}
SECONDS: Final = {"batch norm": 4e-3, "transformer": 3e-3}
"""rough seconds of a step of a host, both runs together; of others 2e-3"""


# -- arms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    optimizer: str
    rate: float
    """share of the edge"""
    every: int
    lands: tuple[float, float]
    peers: int = 2
    speeds: tuple[float, ...] = (1.0,)
    event: str = ""

    @property
    def label(self) -> str:
        first, last = self.lands
        lands = f"{first:.2f}" if first == last else f"{first:g} to {last:g}"
        parts = [f"{self.optimizer} {self.rate:.2g}", f"H {self.every}", f"lands {lands}", f"N {self.peers}"]
        parts += ["speeds 1:4"] * (len(self.speeds) > 1) + [self.event] * bool(self.event)
        return ", ".join(parts)


def _arm(group: str, drawn: _Drawn, *, scale: Scale = "normal") -> Arm:
    edge = EDGE[group][drawn.optimizer] / (10.0 if drawn.event == "tenfold" else 1.0)
    setting = CellSetting(
        peers=drawn.peers,
        every=drawn.every,
        rounds=16 if scale == "quick" else max(12, STEPS // drawn.every),
        lr=drawn.rate * edge,
        speeds=drawn.speeds,
        optimizer=drawn.optimizer,
        event=drawn.event,
        one_batch=group == STILL or drawn.optimizer == "l-bfgs",
    )
    problem, data = "least squares" if group in QUADRATICS else group, dict(QUADRATICS.get(group, {}))
    if drawn.optimizer == "l-bfgs" and group in (STEEP, "regression"):
        data["batch"] = 128
    seconds = setting.peers * setting.every * setting.rounds * SECONDS.get(group, 2e-3)
    cell = Cell(setting=setting, problem=problem, data=data, lands=drawn.lands, seconds=seconds)
    return Arm(group, drawn.label, cell)


def _grid(group: str, scale: Scale) -> list[_Drawn]:
    """The grid of a quadratic: optimizers, rates, H and landings of two peers; then more peers and unequal speeds."""
    few = LANDINGS[1:4:2]
    if scale == "quick":
        return [_Drawn(optimizer="momentum", rate=0.5, every=20, lands=lands) for lands in LANDINGS[2:4]]
    full = scale == "full"
    optimizers = [*EDGE[group]] if full else ["momentum"]
    rates, lengths = ([1.0, 0.5, 0.125], [5, 20, 100]) if full else ([1.0, 0.5], [20])
    landings, many = (LANDINGS, LANDINGS) if full else ([*LANDINGS[1:6], LANDINGS[7]], LANDINGS[3:4])
    found = [
        _Drawn(optimizer=optimizer, rate=rate, every=every, lands=lands)
        for optimizer in optimizers
        for rate in rates
        for every in lengths
        for lands in landings
    ]
    found += [
        _Drawn(optimizer="momentum", rate=rate, every=20, lands=lands, peers=peers, speeds=speeds)
        for peers, speeds in ((4, (0.5, 2.0)), (16, (1.0,)))
        for rate in rates[: 2 if full else 1]
        for lands in many
    ]
    if not full:
        others = [each for each in EDGE[group] if each != "momentum"]
        found += [_Drawn(optimizer=each, rate=0.5, every=20, lands=lands) for each in others for lands in few]
    found += [_Drawn(optimizer="momentum", rate=0.5, every=20, lands=(0.3, 0.3), event=each) for each in EVENTS[1:]]
    return found


def _drawn(group: str, count: int) -> list[_Drawn]:
    """Settings at random, the same at every scale: the first `count` of them."""
    random, found = np.random.default_rng([*group.encode()]), []
    for number in range(count):
        lands = float(np.round(random.uniform(0.05, 2.0), 2))
        found.append(
            _Drawn(
                optimizer=tuple(EDGE[group])[(number + int(random.integers(2))) % 4],
                rate=float(np.round(2.0 ** -random.uniform(0.0, 4.0), 2)),
                every=round(5.0 * 20.0 ** random.uniform()),
                lands=(0.05, 2.0) if random.uniform() < 0.25 else (lands, lands),
                peers=int(random.choice([2, 3, 4, 8, 16])),
                speeds=((1.0,), (0.5, 2.0))[int(random.integers(2))],
                event=EVENTS[int(random.integers(4))] if random.uniform() < 0.5 else "",
            )
        )
    return found


def _arms(scale: Scale) -> list[Arm]:
    found = [_arm(group, drawn, scale=scale) for group in QUADRATICS for drawn in _grid(group, scale)]
    for group in DRAWN:
        found += [_arm(group, drawn, scale=scale) for drawn in _drawn(group, DRAWS[scale])]
    return found


# -- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """How a cell stands to its marks. Losses are shares of that at the start."""

    seeds: int
    """seeds in which every host converges alone"""
    own: float
    """worst ratio over a drain of an outer step"""
    mixed: float
    """worst ratio over a drain of exchanges"""
    alone: float
    hosts: float
    """mean loss of all hosts"""
    excess: float
    """of the worst host above itself alone, mean over the seeds"""
    error: float
    """standard error of it; 0 with one seed"""
    tiny: bool
    """that host is below `TINY` with and without exchanges"""
    highest: float
    """loss of any host in any seed"""
    ran: float

    @property
    def sound(self) -> bool:
        """Mark (a)."""
        return max(self.own, self.mixed) <= LIFTED

    @property
    def no_worse(self) -> bool:
        """Mark (b). One seed that ends above its start widens the error so much that it would hide itself."""
        return self.highest <= 1.0 and (self.tiny or self.excess <= ERRORS * self.error)


def verdict(told: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """The verdict from the answers of all seeds; None if lone hosts converge in none."""
    good = [one for one in told if max(one["alone"]) < FALLEN * one["start"]]
    if not good:
        return None
    alone, hosts = (
        np.array([[loss / one["start"] for loss in one[key]] for one in good]) for key in ("alone", "hosts")
    )
    apart = hosts - alone
    error = apart.std(0, ddof=1) / math.sqrt(len(good)) if len(good) > 1 else np.zeros(apart.shape[1])
    tiny = (hosts.mean(0) < TINY) & (alone.mean(0) < TINY)
    worst = int(np.where(tiny, -np.inf, apart.mean(0) - ERRORS * error).argmax())
    return Verdict(
        len(good),
        max(float(one["own"]) for one in good),
        max(float(one["mixed"]) for one in good),
        float(alone.mean()),
        float(hosts.mean()),
        float(apart.mean(0)[worst]),
        float(error[worst]),
        bool(tiny[worst]),
        float(hosts.max()),
        statistics.mean(float(one["ran"]) for one in good),
    )


def _number(value: float) -> str:
    return "exploded" if value > 1e-3 * GONE else f"{value:.2g}"


def _row(group: str, label: str, found: Verdict) -> tuple[str, ...]:
    failed = " and ".join(["(a)"] * (not found.sound) + ["(b)"] * (not found.no_worse))
    excess = _number(found.excess) if found.excess > 1e3 else f"{found.excess:+.1e} ± {found.error:.0e}"
    figures = (
        _number(found.own),
        _number(found.mixed),
        _number(found.alone),
        _number(found.hosts),
        excess,
        f"{found.ran:.0f}",
    )
    return (group, label, str(found.seeds), *figures, failed or "-")


COLUMNS: Final = (
    "problem",
    "cell",
    "seeds",
    "(a) outer step",
    "(a) exchange",
    "alone",
    "with exchanges",
    "(b) worst host",
    "ran",
    "fails",
)


def _told(outcome: Outcome) -> list[Mapping[str, Any]]:
    return [answer.result for answer in outcome.answers if not answer.error]


def _read(results: Results) -> Findings:
    checks, rows, aside = [], [], []
    for group, cells in results.groups.items():
        found = {label: verdict(_told(outcome)) for label, outcome in cells.items()}
        judged = {label: one for label, one in found.items() if one is not None}
        rows += [_row(group, label, one) for label, one in judged.items()]
        # A cell with a failed seed meets no mark.
        broken = {label for label, outcome in cells.items() if outcome.failed}
        aside += [f"{group}: {label}" for label, one in found.items() if one is None and label not in broken]
        lifted = len(broken | {label for label, one in judged.items() if not one.sound})
        worse = len(broken | {label for label, one in judged.items() if not one.no_worse})
        of = f"of {len(cells)} cells"
        checks.append(check(f"{group}: cells that miss (a), {of}", "<= 0", float(lifted), digits=0))
        checks.append(check(f"{group}: cells that miss (b), {of}", "<= 0", float(worse), digits=0))
    missed = [row for row in rows if row[-1] != "-"]
    tables = [
        Table("Cells that miss a mark", COLUMNS, missed),
        _theory(),
        TRIED,
    ]
    notes = [f"Not judged, because a lone host does not converge there: {'; '.join(aside)}."] if aside else []
    return Findings([table for table in tables if table.rows], checks, notes=[LEGEND, *notes])


def _theory() -> Table:
    """Growth of the difference of two peers in a round."""
    rows = []
    for h in (1 / 64, 0.1):
        for mu in (0.0, 0.8):
            loops = [Loop(h=h, every=20, lands=lands, mu=mu) for lands in (0.05, 0.3, 0.6, 0.9, 1.0)]
            rows.append((f"h {h:.2g}, mu {mu:g}", *(f"{loop.growth():.2f}" for loop in loops)))
            if mu:
                rows.append(("the same, g 4", *(f"{loop.growth(guarded=True):.2f}" for loop in loops)))
    return Table(
        "Theory: growth of a difference per round, by when the exchange lands",
        ("", "0.05", "0.3", "0.6", "0.9", "1.0"),
        rows,
        "SGD with momentum 0.9, H 20, h the learning rate times the eigenvalue. Above 1 the loop explodes. Polynomial: "
        "`simulations/lab/theory/feedback.py`. Runs of the product's pairwise agree to 1 % without g. With g they come "
        "to rest where rounds swing just enough. g 4 is the most that a peer goes to.",
    )


LEGEND: Final = (
    "**How to read it.** Each cell is played twice on the same data: with exchanges and without. A rate is the share "
    "of the edge at which a lone host still converges. (a): the worst ratio of a fixed batch's loss after a drain to "
    f"that before, less {TINY:g} of the loss at the start; at most {LIFTED:g}. (b): the loss of the worst host above "
    f"that of the same host alone, before its last outer step; at most {ERRORS:g} standard errors, or both below "
    f"{TINY:g}, and below the start in every seed. Losses are shares of that at the start. ran: rounds as if "
    "alone, by the last line of defence. "
    "checkpoint: the first host's weights after a quarter of the run are put back at half, without notice. tenfold: "
    "the rate rises then. thawed: the first tensor trains from then on. A run begins with the daemon's "
    "warm start of 200 steps. Batch normalisation uses the "
    "batch's statistics. One batch per host is training without gradient noise."
)
TRIED: Final = Table(
    "Tried and thrown away",
    ("g", "least squares, equal eigenvalues, rate at half the edge", "cost, nats"),
    (
        (
            "<D, c> / |c|^2, c of two rounds",
            "stable",
            "0.03 at speeds 1:1:2:4: a fast host's progress looks like an answer",
        ),
        ("the same, dead zone of 0.1 or 0.2", "one or five cells explode", "none"),
        ("progress regressed out, absolute value, ungated", "stable", "0.024 in b8 from its own start"),
        ("the same, c of the round before alone, ungated", "stable, and at the edge if it lands late", "0.03 in b8"),
        (
            "the same, gated by R^2, q above 2 counts as 0",
            "stable; explodes over six decades",
            "0.006 in b8; b9 0.008 ahead",
        ),
        ("cosine of D and an average of earlier D, instead", "stable, also over six decades", "none in b8, b9"),
        ("cosine of D and the D before, from 0.05 on", "the same", "0.015 in b9, 0.035 at speeds 1:1:2:4"),
        ("the same, from 0.15 on; H 10", "explodes: D turns by a right angle", "none"),
        ("the same with D of two rounds before (in use)", "stable, also over six decades", "none"),
        ("positive q alone; two rounds in a row before g rises", "stable; more cells explode at the edge", "-"),
        ("corrections held until the next round begins", "stable", "0.03 in b9"),
    ),
    "By a model of the loop in numpy (64 x 64, two peers, alpha 1, H 10 to 50), and the pairwise of this laboratory.",
)
SUITE = Suite(
    name="stability",
    question="Can the outer loop run away, whatever the script does?",
    about="Least squares with equal eigenvalues, over six decades, and without gradient noise; drawn settings of a "
    "regression, a small CNN with batch normalisation and a transformer on bytes. SGD with momentum 0.9, Nesterov's, "
    "Adam and L-BFGS steps; rates up to the edge; corrections that land 0.05 to 2 rounds late, or at varying times; 2 "
    f"to 16 peers; speeds 1:4. Scale full has the whole grid, H 5, 20 and 100, and {DRAWS['full']} draws for each "
    f"model; normal has a part of the grid at H 20 and {DRAWS['normal']} draws. The mark (b) is meant for five seeds.",
    arms=_arms,
    read=_read,
    tried="see the tables of this page, and algorithms section 3b",
)
