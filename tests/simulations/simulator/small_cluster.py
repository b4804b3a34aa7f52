"""A cluster of three small peers under a few faults."""

from simulations.simulator.cluster import Plan, run_seed
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions


def small(**changes):
    fields = {
        "peers": 3,
        "size": 8192 + 300,
        "conditions": Conditions(latency=0.02, loss=0.2, duplicate=0.1, reorder=0.2, late=1.0, job=0.01),
        "every": 4,
        "window": 2,
        "script": (
            Fault(at=7.0, kind="crash", hosts=(1,), lasts=0.5, busy=True, trainer=True),
            Fault(at=9.0, kind="halves", hosts=(0,), lasts=2.0),
            Fault(at=12.0, kind="die", hosts=(2,), lasts=0.02),
            Fault(at=15.0, kind="crash", hosts=(2,), lasts=3.0, disk=False),
        ),
    }
    return Plan(**{**fields, **changes})


def fails(seeds=range(6), **changes):
    """The violation that the first failing run reports, or an empty string."""
    for seed in seeds:
        try:
            run_seed(2000 + seed, plan=small(**changes))
        except AssertionError as error:
            return str(error)
    return ""
