"""B3: churn, and exchanges that fail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from simulations.lab.problems import ByteMlp
from simulations.lab.runs.runs import link
from simulations.lab.suites.arms import Ways, arms, at_scale
from simulations.lab.suites.base import Arm, Findings, Results, Scale, Suite
from simulations.lab.suites.figures import check, reported
from simulations.lab.suites.graphs import bytes_graph, distance_graph
from simulations.lab.suites.model import MLP, diloco
from simulations.lab.suites.rates import RATES
from simulations.lab.suites.tables import curves_table

__all__ = ["SUITE"]

CHURN: Final = {"every": 5, "share": 0.1}
CALM, CHURNING, LOSING, BOTH = "calm", "churn", "loss", "churn and loss"
SPARSE: Final = {**CHURN, "share": 0.05}
DESIGNED: Final = "one goes, one comes, and loss"
"""of 16 peers: a tenth leaves or joins"""
STEADY: Final[Ways] = {
    "pairwise": ("pairwise", {}),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0, "exchanges": 1}),
}
UNCLIPPED: Final[Ways] = {"pairwise, no clipping": ("pairwise", {"clip": math.inf})}
POOR: Final[Ways] = {
    "pairwise, joiners without moments": ("pairwise", {"moments": False}),
}
"""`exchange.moments = false`; without joiners this changes nothing"""
VARIANTS: Final = {
    "pairwise, no clipping": "pairwise, no clipping",
    "pairwise, joiners without moments": "pairwise",
}
"""with the calm run that each is compared with"""
OTHERS: Final[Ways] = {
    "DiLoCo fp32, mu 0.8": ("diloco", diloco(MLP.rounds)),
    "SwarmSGD": ("swarm", {}),
}


def _moving(ways: Ways, scale: Scale, churn: Mapping[str, Any] = CHURN) -> Ways:
    churn = churn if scale != "quick" else {**churn, "every": 2}
    return {label: (f"{method}-churning", {**options, **churn}) for label, (method, options) in ways.items()}


def _arms(scale: Scale) -> list[Arm]:
    calm = replace(at_scale(MLP, scale), link=link(100.0, 40.0, ByteMlp().parameters, 1e8))
    losing = replace(calm, failing=0.2)
    moving = _moving({**STEADY, **UNCLIPPED, **POOR}, scale)
    return [
        *arms(CALM, calm, {**STEADY, **UNCLIPPED, **OTHERS}, rates=RATES),
        *arms(CHURNING, calm, moving, rates=RATES),
        *arms(LOSING, losing, {**STEADY, **OTHERS}, rates=RATES),
        *arms(BOTH, losing, moving, rates=RATES),
        *arms(DESIGNED, losing, _moving(STEADY, scale, SPARSE), rates=RATES),
    ]


def _read(results: Results) -> Findings:
    checks, figures = [], []
    for group, label in product((DESIGNED, BOTH), STEADY):
        rough, calm = results[group, label], results[CALM, label]
        replicas = rough.replica_loss - calm.replica_loss
        name = f"{label}, {group}: loss above the calm run's, nats"
        checks.append(check(name, "<= 0.05", rough.loss - calm.loss, replicas=replicas))
    for label, reference in (dict.fromkeys(STEADY, "") | VARIANTS).items():
        calm = results[CALM, reference or label]
        for name in (CHURNING, BOTH) if reference else (CHURNING,):
            rough = results[name, label]
            replicas = rough.replica_loss - calm.replica_loss
            what = f"{label}, {name}: loss above the calm run's, nats"
            figures.append(reported(what, rough.loss - calm.loss, replicas=replicas))
    notes = [
        f"{label}, churn and loss: {results[BOTH, label].fact('failed'):.0f} exchanges came to nothing, "
        f"{results[BOTH, label].fact('cut'):.0f} were cut."
        for label in STEADY
    ]
    tables = [curves_table(group, outcomes) for group, outcomes in results.groups.items()]
    return Findings(tables, checks, [distance_graph(results.groups), bytes_graph(results.groups)], notes, figures)


SUITE = Suite(
    name="b3",
    question="What do churn and loss cost?",
    about="The model of B1, N = 16, on links of 100 Mbit/s and 80 ms round trip. They carry as many bytes as a "
    "model of 100 million parameters would send: an exchange lasts about four of a round's 20 s. Churn: every "
    "5 rounds a tenth of the peers leaves (two, the same for every method), one of them in the middle of an "
    "exchange. As many join at once. Each joiner copies one peer's anchor and Adam moments "
    "(`exchange.moments`), with outer momentum at zero. Loss: every fifth exchange fails. "
    "Both are harsher than the design, which has a tenth that leaves or joins, and a fifth of the messages "
    f'lost. The protocol repeats most of these. The group "{DESIGNED}" changes a tenth every 5 rounds, and '
    "leaving peers finish their exchange. A failed exchange costs pairwise neither bytes nor seconds here. "
    "Other methods pay for it whole, so their bytes and seconds under loss are not comparable. Methods that wait "
    "repeat what failed. They have no answer to churn and are not played under "
    "it.",
    arms=_arms,
    read=_read,
    tried="no clipping: here",
)
