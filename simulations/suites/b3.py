"""B3: peers that come and go, exchanges that come to nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulations.suites.b1 import EPIDEMIC, MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Results,
    Scale,
    Suite,
    Ways,
    arms,
    bytes_graph,
    check,
    curves_table,
    distance_graph,
    sized,
    told,
)

__all__ = ["SUITE"]

CHURN: Final = {"every": 5, "share": 0.1}
CALM, CHURNING, LOSING, BOTH = "calm", "churn", "loss", "churn and loss"
STEADY: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}),
    "epidemic k=128": ("epidemic", EPIDEMIC),
}
MOVING: Final[Ways] = {
    label: (f"{method}-churning", {**options, **CHURN}) for label, (method, options) in STEADY.items()
}
OTHERS: Final[Ways] = {
    "DiLoCo fp32, mu 0.8": ("diloco", {"mu": 0.8}),
    "SwarmSGD": ("swarm", {}),
}


def _arms(scale: Scale) -> list[Arm]:
    calm = sized(MLP, scale)
    losing = replace(calm, failing=0.2)
    return [
        *arms(CALM, calm, {**STEADY, **OTHERS}),
        *arms(CHURNING, calm, MOVING),
        *arms(LOSING, losing, {**STEADY, **OTHERS}),
        *arms(BOTH, losing, MOVING),
    ]


def _read(results: Results) -> Findings:
    checks = []
    for label in STEADY:
        worse = results[BOTH, label].loss - results[CALM, label].loss
        checks.append(check(f"{label}: loss above the calm run's, nats", "<= 0.05", worse, worse <= 0.05))
    notes = [
        f"{label}, churn and loss: {told(results[BOTH, label].each(lambda curve: curve.last.replica_loss))} nats for "
        f"single replicas, {results[BOTH, label].fact('failed'):.0f} exchanges came to nothing, "
        f"{results[BOTH, label].fact('cut'):.0f} were cut."
        for label in STEADY
        if STEADY[label][0] == "pairwise"
    ]
    tables = [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    return Findings(tables, checks, [distance_graph(results.groups), bytes_graph(results.groups)], notes)


SUITE = Suite(
    name="b3",
    question="What do churn and loss cost?",
    about="The model of B1, N = 16. Churn: every 5 rounds a tenth of the peers (two) goes, one of them in the middle "
    "of an exchange, and as many come, each a copy of one peer's anchor with its momenta (e in epidemic) at zero. "
    "Loss: every fifth exchange comes to nothing. That is harsher than a fifth of the messages, most of which the "
    "protocol sends again; what epidemic lost is asked for again, and what it published outlives its sender. Methods "
    "that wait repeat what failed; they have no answer to churn and are not played under it.",
    arms=_arms,
    read=_read,
)
