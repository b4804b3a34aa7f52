"""LoRA in the laboratory: factors, what is trained, what averaging them apart loses, and runs as data."""

import math

import numpy as np
import pytest
import torch

from simulations.lab.core import Lab, Setting
from simulations.lab.inner import FREEZING
from simulations.lab.lora.problem import ALPHA, ByteLora, headers
from simulations.lab.lora.runs import LoraRun, factors_apart
from simulations.lab.runs.fingerprints import SourceSnapshot, fingerprint
from simulations.lab.runs.runs import Run, code_of
from simulations.lab.suites.lora import BOTH, EIGHT, JOINER, QUICK, SUITE, TURNS, WAYS
from tests.simulations.lab.sample_runs import SMALL, grid_of

PEERS, STEPS = np.arange(3), np.array([0, 5, 2])


def small(trained="both", **data):
    return ByteLora(trained=trained, stretch=3, **{**QUICK, **data})


def moved(problem, count):
    """Replicas away from the start."""
    start = problem.start(0).expand(count, -1)
    return start + 0.1 * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("trained", ["both", "B", "in turn"])
def test_batched_gradients_equal_those_of_each_replica(trained):
    problem = small(trained)
    lab = Lab(problem, Setting(peers=3, every=1, rounds=1))
    lab.x.copy_(moved(problem, 3))
    lab.steps[:] = STEPS
    found = lab.gradients()
    batch = problem.batches(PEERS, STEPS, 0)
    for peer in PEERS:
        x = lab.x[peer].clone().requires_grad_()
        problem.loss(x, *[rows[peer] for rows in batch]).backward()
        torch.testing.assert_close(found[peer], x.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("trained", ["both", "B", "in turn"])
def test_adapters_begin_as_the_frozen_model_which_learned_other_text(trained):
    problem = small(trained, pretraining=60)
    assert all(map(torch.equal, problem._tensors(problem.start(0)), problem.base))
    frozen = torch.cat([tensor.flatten() for tensor in problem.base])
    untrained = problem.model.start(0)
    (windows,) = problem.model.batches(np.arange(64), np.zeros(64, np.int64), 1)
    before, after = (float(problem.model.loss(x, windows.flatten(0, 1))) for x in (untrained, frozen))
    assert after < before - 0.3


def test_a_product_is_scaled_by_alpha_over_r_and_only_matrices_of_blocks_get_one():
    problem = small(rank=4)
    x = moved(problem, 1)[0]
    table, positions, gain, attention, *_ = map(torch.sub, problem._tensors(x), problem.base)
    a, b = problem.factors(x)
    assert a[0].shape == (16, 4) and b[0].shape == (4, 48)
    torch.testing.assert_close(attention, ALPHA / 4 * a[0] @ b[0], atol=1e-5, rtol=1e-4)
    assert not any(tensor.any() for tensor in (table, positions, gain))


def test_the_loss_of_given_products_is_that_of_the_factors_that_make_them():
    problem = small(pretraining=60)
    x = moved(problem, 1)[0]
    assert problem.score(problem.products(x)) == pytest.approx(problem.evaluate(x).loss, rel=1e-5)


def test_b_alone_has_the_first_a_of_a_run_with_both_factors_and_exchanges_none_of_it():
    both, alone = small(), small("B", drawn=7)
    (a, b), (first, zeros) = both.factors(both.start(7)), alone.factors(alone.start(0))
    assert all(map(torch.equal, a, first)) and all(map(torch.equal, b, zeros))
    assert alone.parameters == sum(each.numel() for each in b)
    assert both.parameters == alone.parameters + sum(each.numel() for each in a)


def test_factors_in_turn_train_one_at_a_time_and_the_other_keeps_still():
    problem = small("in turn")
    lab = Lab(problem, Setting(peers=2, every=1, rounds=1, lr=1e-2, inner=FREEZING))
    for step in range(12):
        before, moments = lab.x.clone(), lab.inner.m.clone()
        lab.train(1)
        still, other = (1, 0) if step // 3 % 2 else (0, 1)  # places of A and B among the factors
        old, new = (problem.factors(x[1]) for x in (before, lab.x))
        assert all(map(torch.equal, old[still], new[still])), step
        assert not any(map(torch.equal, old[other], new[other])), step
        kept, changed = (problem.factors(m[1]) for m in (moments, lab.inner.m))
        assert all(map(torch.equal, kept[still], changed[still])), step


def test_an_inner_optimizer_that_freezes_is_adamw_where_no_gradient_is_zero():
    problem = small("B")
    ends = []
    for inner in ("adamw", FREEZING):
        lab = Lab(problem, Setting(peers=3, every=1, rounds=1, lr=1e-2, inner=inner))
        lab.train(np.array([4, 2, 3]))
        ends.append(lab.x)
    torch.testing.assert_close(*ends, atol=0.0, rtol=0.0)


def test_the_mean_of_factors_is_not_that_of_products_unless_one_factor_is_shared():
    problem = small()
    x = torch.zeros(2, problem.parameters)
    # One replica has A = B = 1 everywhere, the other zeros: the mean of products is 1/2, the product of means 1/4.
    x[0] = 1.0
    found = factors_apart(problem, x)
    assert found["apart"] == pytest.approx(0.5) and found["factors"] != found["products"]
    equal = factors_apart(problem, moved(problem, 1).expand(3, -1))
    assert equal["apart"] == pytest.approx(0.0, abs=1e-6) and equal["factors"] == pytest.approx(equal["products"])
    alone = small("B")
    shared = factors_apart(alone, moved(alone, 3))
    assert shared["apart"] == pytest.approx(0.0, abs=1e-6) and shared["factors"] == pytest.approx(shared["products"])


def test_the_new_text_is_of_files_that_exist_everywhere_and_is_split_by_file():
    text = headers()
    assert text is headers() and sum(text.sizes) == len(text.train) > 8 * len(text.validation) > 800_000
    assert b"#pragma once" in text.train.tobytes() and b"def __init__(self" not in text.train.tobytes()[:1_000_000]


# -- runs ----------------------------------------------------------------------------------------------------------


def tasks():
    return {(arm.group, arm.label): arm.task for arm in SUITE.arms("quick")}


def test_a_joiner_is_away_for_half_of_the_run_and_ends_with_the_same_model():
    setting = tasks()[JOINER, BOTH].setting
    problem, method, _, lab = tasks()[JOINER, BOTH]._played()
    assert lab.steps.tolist() == [setting.seconds] * 7 + [setting.seconds // 2]
    before = problem.evaluate(lab.x[-1]).loss
    assert method.finish(lab) == pytest.approx(before, abs=0.05)
    assert float((lab.x[-1] - lab.x[0]).norm()) < 0.05 * float(lab.x[0].norm())


def test_answers_tell_the_loss_of_both_means_and_of_the_finished_model():
    told = tasks()[EIGHT, BOTH].seeded(1).play()
    facts = told["facts"]
    assert set(facts) == {"factors", "products", "apart", "finished"} and 0.0 < facts["apart"] < 0.1
    assert all(math.isfinite(value) for value in facts.values())


def test_a_seed_draws_another_constant_a():
    one, other = (tasks()[EIGHT, "B alone"].seeded(seed) for seed in (0, 1))
    assert one.data["drawn"] == 0 and other.data["drawn"] == 1
    assert one.spec() != other.spec() and one.spec()["kind"] == "lora"


def test_kept_answers_depend_on_lora_only_where_they_play_it():
    lora = fingerprint({"simulations.lab.lora.problem"})
    assert lora != fingerprint({"simulations.lab.problems"})
    play = tasks()
    assert "simulations.lab.lora.problem" in play[EIGHT, BOTH].modules()
    assert "simulations.lab.failures.gossip" in play[JOINER, BOTH].modules() - play[EIGHT, BOTH].modules()
    assert "simulations.lab.lora.problem" not in Run(setting=SMALL).modules()
    assert code_of(play[EIGHT, BOTH], SourceSnapshot()) != code_of(Run(setting=SMALL), SourceSnapshot())


def test_every_way_has_the_same_conditions_and_steps():
    for arm in grid_of("lora"):
        task = arm.task
        assert isinstance(task, LoraRun)
        steps = task.options.get("warmup_steps", 0) + task.setting.every * task.setting.rounds
        assert steps == 500 * (8 if arm.label.endswith("N times the steps") and arm.group == EIGHT else 1) * (
            2 if arm.label.endswith("N times the steps") and arm.group == "2 peers" else 1
        )
    assert set(WAYS) == {BOTH, "B alone", TURNS}
