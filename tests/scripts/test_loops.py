"""Loops that step in the usual way, with models and optimizers made in unusual ways."""

import math

import pytest

from tests.scripts.pair import Pair, Script

pytestmark = pytest.mark.processes


def apart(first: Script, second: Script) -> float:
    """Distance between the replicas, as a share of their length."""
    return math.dist(first.last["weights"], second.last["weights"]) / math.hypot(*first.last["weights"])


def test_a_plain_loop_on_two_hosts_exchanges_and_the_replicas_stay_near(scripts: Pair) -> None:
    first, second = scripts.run("plain_loop.py")
    assert not first.last["alone"] and not second.last["alone"]
    assert apart(first, second) < 0.3


def test_a_network_and_its_loss_attached_as_several_modules__both_are_exchanged(scripts: Pair) -> None:
    first, second = scripts.run("several_modules.py")
    assert apart(first, second) < 0.3
    assert not first.stderr


def test_an_optimizer_that_trains_a_parameter_outside_the_model__it_is_named(scripts: Pair) -> None:
    (only,) = scripts.run("loss_outside_the_model.py", hosts=[0])
    assert "GD-319" in only.stderr and "parameter 0 of group 1 (1,)" in only.stderr


def test_a_schedule_around_the_optimizer__it_is_refused_with_the_attribute_to_pass(scripts: Pair) -> None:
    for each in scripts.run("wrapped_optimizer.py"):
        refused, trained = each.said
        assert refused["refused"] == "GD-317" and "attach(model, optimizer.optimizer)" in refused["do"]
        assert trained == {"alone": False}


def test_a_cell_that_is_run_again_a_fork_and_a_sweep__attach_works_once_the_first_model_is_gone(scripts: Pair) -> None:
    (only,) = scripts.run("sweep_in_one_process.py", hosts=[0])
    forked, again, sweep = only.said
    assert forked == {"after_the_fork": False}
    assert (again["again"], again["cause"]) == ("GD-503", "this process is attached already")
    # How far the model had trained when its moments came depends on time; gossipdp may find that they do not fit.
    said = [line for line in only.stderr.splitlines() if not line.startswith("ignored the moments received")]
    assert sweep == {"sweep": [20, 20, 20]}
    assert len(said) == 3 and all(line.startswith("GD-326 ") for line in said), "trials in one home share one model"
