"""The suite `stability`: optimizers as torch's, a lone twin, events, verdicts, and a few cells of the law."""

import pytest
import torch

from peers.plan.pairs import USUAL
from simulations.lab.inner import InnerTerms
from simulations.lab.stability.cells import GONE, Cell, CellLab, CellSetting
from simulations.lab.stability.optimizers import OPTIMIZERS
from simulations.lab.stability.problems import PROBLEMS, LeastSquares
from simulations.lab.suites.stability import verdict

TERMS = InnerTerms(betas=(0.9, 0.99), weight_decay=0.0)
MOMENTUM = CellSetting(peers=2, every=20, rounds=18, lr=0.5)


def cell(lands, guard="both", setting=MOMENTUM):
    return Cell(
        setting=setting, problem="least squares", data={"decades": 0.0}, lands=(lands, lands), guard=guard
    ).play()


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("momentum", lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.9)),
        ("nesterov", lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.9, nesterov=True)),
        ("adam", lambda x: torch.optim.Adam([x], lr=0.1, betas=(0.9, 0.99))),
        ("l-bfgs", lambda x: torch.optim.LBFGS([x], lr=0.1, max_iter=1, history_size=5, tolerance_grad=0.0)),
    ],
)
def test_an_optimizer_steps_as_torch_does(name, theirs):
    curvature = torch.linspace(0.5, 2.0, 8)
    rows = torch.stack([torch.ones(8), 2.0 * torch.ones(8)])
    x = torch.nn.Parameter(rows[1].clone())
    ours, other = OPTIMIZERS[name](rows, TERMS), theirs(x)

    def closure():
        x.grad = (curvature * x).detach()
        return torch.tensor(0.0)

    for number in range(12):
        # The first row steps less often.
        chosen = slice(None) if number % 3 == 0 else torch.tensor([1])
        ours.step(rows, curvature * rows[chosen], chosen, 0.1)
        other.step(closure)
    torch.testing.assert_close(rows[1], x.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_learns(name):
    problem = PROBLEMS[name]()
    lab = CellLab(problem, CellSetting(peers=2, every=1, rounds=1, lr=0.05))
    before = problem.evaluate(lab.x[0]).loss
    lab.train(20)
    assert problem.evaluate(lab.x[0]).loss < 0.95 * before


def test_events_change_the_rate_thaw_a_tensor_and_put_weights_back():
    def half(event):
        lab = CellLab(LeastSquares(), CellSetting(peers=2, every=2, rounds=8, lr=0.1, event=event))
        seen = []
        for number in range(6):
            lab.begin_round(number)
            seen.append((lab.lr, float(lab.x[0].abs().sum())))
            lab.train(2)
        return lab, seen

    assert [rate for rate, _ in half("tenfold")[1]] == pytest.approx([0.1] * 4 + [1.0] * 2)
    lab, seen = half("thawed")
    assert [size for _, size in seen[:5]] == [0.0] * 5 and float(lab.x.abs().sum()) > 0.0
    _, seen = half("checkpoint")
    assert seen[4][1] == seen[2][1] != seen[3][1]


def test_the_twin_without_exchanges_is_the_bare_optimizer():
    setting = CellSetting(peers=2, every=5, rounds=4, lr=0.5)
    told = Cell(setting=setting, problem="least squares", data={"decades": 0.0}, lands=(0.9, 0.9)).play()
    problem = LeastSquares(decades=0.0)
    lab = CellLab(problem, setting)
    lab.train(USUAL.warmup_steps + 20)
    assert told["alone"] == [problem.evaluate(x).loss for x in lab.x]
    assert told["hosts"] != told["alone"]


def test_a_loop_that_explodes_without_the_guard_does_not_with_it():
    """The law in short: least squares, momentum 0.9, half the edge, corrections that land late."""
    bare, guarded = cell(0.9, "none"), cell(0.9)
    assert min(bare["hosts"]) > 1e-6 * bare["start"]
    assert max(guarded["hosts"]) < 1e-9 * guarded["start"] and guarded["mixed"] < 1.5
    assert max(guarded["alone"]) < 1e-9 * guarded["start"]


@pytest.mark.long
def test_corrections_that_land_early_are_stable_with_the_guard():
    told = cell(0.05, setting=CellSetting(peers=2, every=20, rounds=24, lr=0.125))
    assert max(told["hosts"]) < 2e-4 * told["start"] and told["ran"] == 0


def told(hosts, alone, **facts):
    return {"start": 1.0, "own": 1.0, "mixed": 1.0, "ran": 0, "hosts": hosts, "alone": alone, **facts}


def test_a_host_is_worse_beyond_two_standard_errors_and_not_where_both_are_tiny():
    within = verdict([told([0.20], [0.19]), told([0.18], [0.20]), told([0.21], [0.20])])
    assert within.no_worse and within.sound and within.seeds == 3
    assert not verdict([told([0.1, 0.20], [0.1, 0.18]), told([0.1, 0.21], [0.1, 0.18])]).no_worse
    assert verdict([told([9e-5], [1e-9])]).no_worse and not verdict([told([2e-4], [1e-9])]).no_worse


def test_one_seed_that_explodes_is_not_hidden_by_its_own_error():
    assert not verdict([told([GONE], [0.2]), told([0.1], [0.2]), told([0.1], [0.2])]).no_worse


def test_a_drain_is_judged_by_the_worst_and_a_lone_host_must_converge():
    assert not verdict([told([0.1], [0.1]), told([0.1], [0.1], own=1.6)]).sound
    assert not verdict([told([0.1], [0.1], mixed=GONE)]).sound
    assert verdict([told([0.1], [0.95])]) is None
    assert verdict([told([0.1], [0.95], own=9.0), told([0.1], [0.1])]).sound
