"""The GPU's laboratory, with a tiny model on the CPU: every arm, runs that are cut off, text, and the page."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from peers.plan.timeline import FREE
from simulations.lab.baselines.synchronous import FourBitDiLoCo
from simulations.lab.core import Lab, Setting
from simulations.lab.gpu.__main__ import Player
from simulations.lab.gpu.arms import ARMS, PEERS, SIZES, problem_of
from simulations.lab.gpu.lab import DeviceLab
from simulations.lab.gpu.page import page
from simulations.lab.gpu.text import gather, prepare
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions

TINY = replace(
    SIZES["small"],
    text=1_000_000,
    model={"vocabulary": 300, "context": 8, "width": 16, "heads": 2, "blocks": 1, "batch": 2, "held_out": 16},
    warmup=6,
    every=3,
    rounds=4,
    points=2,
    lr=3e-2,
    begin=0.0,
)
FOREVER, AT_ONCE = float("inf"), -float("inf")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A folder with the text of the tiny size."""
    folder = tmp_path_factory.mktemp("build")
    prepare(folder / "tiny", TINY.text, TINY.model["vocabulary"])
    return folder


@pytest.fixture(scope="module")
def through(build, tmp_path_factory):
    """All arms in one call."""
    player = player_of(build, tmp_path_factory.mktemp("answers"), FOREVER)
    assert player.play()
    return player.kept


def player_of(build, folder, until):
    return Player("tiny", TINY, "cpu", build, folder / "answers.json", until)


def tiny(build):
    return problem_of(TINY, prepare(build / "tiny", TINY.text, TINY.model["vocabulary"]), "cpu")


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_learns_and_makes_the_steps_of_its_setting(through, name):
    arm = through["arms"][name]
    first, last = arm["points"][0], arm["points"][-1]
    steps = TINY.warmup + TINY.every * TINY.rounds
    assert arm["done"]
    assert last[2] == steps * (PEERS if name == "all" else 1)
    assert last[3] < first[3] - 0.1


def test_arms_receive_the_bytes_of_their_method(through):
    received = {name: arm["points"][-1][1] for name, arm in through["arms"].items()}
    assert received["alone"] == received["all"] == 0.0
    steps = TINY.warmup + TINY.every * TINY.rounds
    assert received["ddp"] == pytest.approx(2.0 * (1.0 - 1.0 / PEERS) * 2.0 * steps)
    assert received["quorum"] < received["diloco"] / 7.5
    assert 0.0 < received["pairwise"] < received["ddp"]


def test_a_run_cut_off_after_each_round_equals_one_that_ran_through(build, through, tmp_path):
    calls = 0
    text = build / "tiny"
    (tmp_path / "tiny").mkdir()
    for name in ("text.json", "train.npy", "validation.npy"):
        (tmp_path / "tiny" / name).write_bytes((text / name).read_bytes())
    # Every call ends after a round, and the next one reads the run from disk.
    while not (player := Cut("tiny", TINY, "cpu", tmp_path, tmp_path / "answers.json", FOREVER)).play():
        calls += 1
    assert calls >= len(ARMS) * (TINY.rounds - 1)
    for name, arm in player.kept["arms"].items():
        assert arm["points"] == through["arms"][name]["points"], name
    assert not list((tmp_path / "tiny").glob("*.run"))


class Cut(Player):
    """Ends after every round."""

    def _advance(self, run):
        self._until = AT_ONCE
        super()._advance(run)


def test_without_time_nothing_begins_and_the_page_names_what_is_missing(build, tmp_path):
    player = player_of(build, tmp_path, AT_ONCE)
    assert not player.play(again=True) and player.kept["arms"] == {}
    told = page({})
    assert told.count("Missing: nothing of it has been played") == len(SIZES)


def test_the_page_names_arms_that_are_missing_or_under_way(through):
    arms = dict(through["arms"])
    del arms["diloco"]
    arms["pairwise"] = {**arms["pairwise"], "done": False, "points": arms["pairwise"]["points"][:-1]}
    told = page({"small": {**through, "arms": arms}})
    rounds = arms["pairwise"]["points"][-1][0]
    assert f"Missing: pairwise, the daemon's defaults (under way, round {rounds} of 4); DiLoCo, fp32." in told
    assert f"| DDP, gradients in bf16 | whole | {arms['ddp']['points'][-1][3]:.3f} |" in told
    assert "Missing: nothing." in page({"small": through})


def test_answers_are_kept_and_not_played_again(build, through, tmp_path):
    """Those of this machine count where the repository has none."""
    player = player_of(build, tmp_path, AT_ONCE)
    assert player.play() and player.kept == through


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_device_trains_as_the_laboratory_does(build):
    """One step after the other on rows, against all rows at once."""
    problem = tiny(build)
    setting = Setting(peers=4, every=60, rounds=1, lr=1e-2)
    ours, theirs = DeviceLab(problem, setting), Lab(problem, setting)
    for lab in (ours, theirs):
        lab.start()
        lab.train(2)
    ramp = [step / 50 for step in (1, 2)]
    assert (ours.x != ours.problem.start(0)).any()
    assert ours.lr == pytest.approx(theirs.lr * ramp[-1])
    theirs.x.copy_(ours.x)
    torch.testing.assert_close(ours.gradients(), theirs.gradients())


def test_pairwise_with_a_mirror_and_on_all_cores_equals_the_method_itself(build):
    setting, method = ARMS["pairwise"].make(TINY, TINY.rounds)
    labs = [DeviceLab(tiny(build), setting) for _ in range(2)]
    labs[1].mirror = labs[1].x  # one memory, which the method may read and write at any time
    methods = [method, PairwiseGossip(PairwiseOptions(warmup_steps=TINY.warmup))]
    for lab, each in zip(labs, methods, strict=True):
        each.begin(lab)
        lab.start()
        for _ in range(TINY.rounds):
            each.round(lab)
    assert torch.equal(labs[0].x, labs[1].x)
    assert np.array_equal(labs[0].received, labs[1].received)


def test_a_quorum_of_all_hosts_is_diloco_in_four_bits(build, through):
    setting, _ = ARMS["diloco"].make(TINY, TINY.rounds)
    lab, method = DeviceLab(tiny(build), setting), FourBitDiLoCo(1.0, 0.8, plain_first=True, warmup_steps=TINY.warmup)
    assert setting.link == FREE
    method.begin(lab)
    lab.start()
    for _ in range(TINY.rounds):
        method.round(lab)
    loss = lab.problem.evaluate(method.model(lab)).loss
    assert loss == pytest.approx(through["arms"]["quorum"]["points"][-1][3], abs=1e-3)


def test_half_precision_gives_nearly_the_same_loss(build):
    whole = tiny(build)
    half = replace(whole, half=True)
    x = whole.start(0)
    assert half.evaluate(x).loss == pytest.approx(whole.evaluate(x).loss, abs=0.02)


def test_hosts_read_disjoint_shares_once_a_pass(build):
    problem = tiny(build)
    own = problem.windows // PEERS
    steps = own // problem.batch
    read = [np.concatenate([problem._places(peer, step, 0) for step in range(steps)]) for peer in range(PEERS)]
    assert len(np.unique(np.concatenate(read))) == PEERS * steps * problem.batch
    later = np.concatenate([problem._places(0, step, 0) for step in range(steps, 2 * steps)])
    assert set(later) <= set(problem._places(0, steps, 0)) | set(range(0, problem.windows, PEERS))
    assert not np.array_equal(later, read[0])


def test_text_has_each_content_once_and_no_more_than_is_wanted(tmp_path):
    files = {
        "a/x.py": "a" * 3000,
        "a/copy.py": "a" * 3000,
        "b/y.py": "b" * 3000,
        "b/short.py": "b",
        "b/z.txt": "c" * 3000,
    }
    files["b/site-packages/z.py"] = "d" * 3000
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = [tmp_path / "a", tmp_path / "b"]
    found = gather(folders, 6000)
    assert sorted(text[0] for _, text in found) == ["a", "b"]
    assert [name for name, _ in found] == sorted(name for name, _ in found)
    assert len(gather(folders, 5999)) == 1
