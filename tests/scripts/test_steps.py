"""Scripts that step in other ways than `optimizer.step()` after `backward()`: steps count and are exchanged."""

import math

import pytest

from tests.scripts.pair import Pair

pytestmark = pytest.mark.processes

UNCOUNTED = 2
"""steps at most until an optimizer that is not the attached one is followed"""


@pytest.mark.parametrize(
    "script",
    ["sam_by_two_phases.py", "optimizer_made_anew.py", "optimizers_in_backward.py", "loop_without_an_optimizer.py"],
)
def test_script_that_steps_in_another_way__steps_are_counted_once_and_replicas_stay_near(
    scripts: Pair, script: str
) -> None:
    both = scripts.run(script)
    for each in both:
        assert each.last["made"] - UNCOUNTED <= each.last["steps"] <= each.last["made"]
        assert not each.stderr
    first, second = (each.last["weights"] for each in both)
    assert math.dist(first, second) < 0.3 * math.hypot(*first)


def test_a_loop_that_changes_parameters_and_calls_no_step__said_by_script_and_daemon(scripts: Pair) -> None:
    (only,) = scripts.run("loop_that_counts_no_step.py", hosts=[0])
    assert "GD-321" in only.stderr and "peer.step()" in only.stderr
    assert only.last["told"] and "peer.step()" in only.last["do"]
