"""Runs are played once, and their answers kept and packed."""

import math
import re
from dataclasses import dataclass, replace

import pytest

from simulations.lab.core import Setting
from simulations.lab.runs import runs
from simulations.lab.runs.answers import Answer, Answers, pack, rounded
from simulations.lab.runs.runs import Run, name_of, play_all
from tests.simulations.lab.sample_runs import SMALL


@dataclass(frozen=True)
class Counting:
    """A task that leaves a file in a folder whenever it is played."""

    folder: str
    seed: int = 0
    fails: bool = False
    name: str = "counting"

    def seeded(self, seed):
        return replace(self, seed=seed)

    def spec(self):
        return {"kind": "counting", "seed": self.seed}

    def modules(self):
        return {"simulations.lab.core"}

    def play(self):
        with open(f"{self.folder}/{self.seed}", "a") as file:
            file.write("x")
        if self.fails:
            raise KeyError("no")
        return {"seed": self.seed}

    def estimate(self):
        return 1.0


def quiet(line):
    pass


def plays(folder):
    return {path.name: len(path.read_text()) for path in folder.iterdir()}


def test_finished_runs_are_not_played_again(tmp_path, played):
    tasks = [Counting(str(played), seed) for seed in (0, 1, 1)]
    first = play_all(tasks[:1], Answers(tmp_path / "kept"), say=quiet)
    again = play_all(tasks, Answers(tmp_path / "kept"), say=quiet)
    assert [answer.result["seed"] for answer in again] == [0, 1, 1]
    assert again[0] == replace(first[0], cpu=again[0].cpu)
    assert plays(played) == {"0": 1, "1": 1}


def test_answers_of_other_code_count_only_with_any_code(tmp_path, played, monkeypatch):
    task, kept = Counting(str(played)), Answers(tmp_path / "kept")
    play_all([task], kept, say=quiet)
    monkeypatch.setattr(runs, "code_of", lambda task: "other code")
    assert play_all([task], kept, say=quiet, any_code=True)[0].code != "other code"
    assert plays(played) == {"0": 1}
    assert play_all([task], kept, say=quiet)[0].code == "other code"
    assert plays(played) == {"0": 2}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"told": {}}'])
def test_damaged_answer_is_played_again(tmp_path, played, damage):
    task, kept = Counting(str(played)), Answers(tmp_path / "kept")
    play_all([task], kept, say=quiet)
    (file,) = (tmp_path / "kept").iterdir()
    file.write_text(damage)
    assert play_all([task], kept, say=quiet)[0].result == {"seed": 0}
    assert plays(played) == {"0": 2}


def test_failure_is_reported_and_not_kept(tmp_path, played):
    tasks = [Counting(str(played), 0, fails=True), Counting(str(played), 1)]
    answers = play_all(tasks, Answers(tmp_path / "kept"), say=quiet)
    assert answers[0].error.startswith("KeyError: 'no' (simulations/lab/runs/runs.py:")
    assert answers[1].result == {"seed": 1}
    play_all(tasks, Answers(tmp_path / "kept"), say=quiet)
    assert plays(played) == {"0": 2, "1": 1}


def test_failure_says_where_in_this_project_it_was():
    run = Run(setting=SMALL, problem="quadratic", data={"size": 8}, options={"codec": "none"})
    found = runs.answer(run, "code")
    assert re.fullmatch(r"KeyError: 'none' \((simulations|gossipdp)/\S+\.py:\d+\)", found.error), found.error


def test_answer_that_cannot_be_kept_fails_its_run_only(tmp_path, played, monkeypatch):
    monkeypatch.setattr(Counting, "play", lambda self: {"seed": self.seed} if self.seed else {"seed": object()})
    answers = play_all([Counting(str(played), seed) for seed in (0, 1)], Answers(tmp_path / "kept"), say=quiet)
    assert answers[0].error.startswith("TypeError: ") and answers[1].result == {"seed": 1}


def test_fingerprints_are_taken_before_the_first_run(tmp_path, played, monkeypatch):
    monkeypatch.setattr(runs, "code_of", lambda task: f"code with {len(plays(played))} played")
    answers = play_all([Counting(str(played), seed) for seed in range(3)], Answers(tmp_path / "kept"), say=quiet)
    assert {answer.code for answer in answers} == {"code with 0 played"}


def test_packed_answers_count_as_played_here(tmp_path, played):
    tasks = [Counting(str(played), seed) for seed in (0, 1)]
    answers = dict(zip(map(name_of, tasks), play_all(tasks, Answers(tmp_path / "kept"), say=quiet), strict=True))
    specs = {name_of(task): task.spec() for task in tasks}
    for name in ("one", "other"):
        pack(tmp_path / "packed" / f"{name}.jsonl.gz", specs, dict(reversed(answers.items())))
    one, other = (tmp_path / "packed").iterdir()
    assert one.read_bytes() == other.read_bytes(), "the same answers are the same file"
    again = play_all(tasks, Answers(tmp_path / "nothing", tmp_path / "packed"), say=quiet)
    assert [answer.result for answer in again] == [{"seed": 0}, {"seed": 1}] and plays(played) == {"0": 1, "1": 1}
    assert again[0].machine == answers[name_of(tasks[0])].machine != ""


def test_answer_of_this_code_wins_over_another(tmp_path, played):
    task = Counting(str(played))
    answers = Answers(tmp_path / "kept", tmp_path / "packed")
    older, ours = Answer({"seed": 7}, "older", 1.0), Answer({"seed": 0}, "ours", 1.0)
    for kept, stands in ((older, ours), (ours, older)):
        answers.keep(task.spec(), kept)
        pack(tmp_path / "packed" / "a.jsonl.gz", {name_of(task): task.spec()}, {name_of(task): stands})
        both = Answers(tmp_path / "kept", tmp_path / "packed")
        assert both.find(task.spec(), "ours") == ours and both.find(task.spec(), "older") == older
        assert both.find(task.spec(), "newer") == kept


def test_damaged_pack_counts_as_missing(tmp_path, played):
    task = Counting(str(played))
    (tmp_path / "packed").mkdir()
    pack(good := tmp_path / "good.jsonl.gz", {name_of(task): task.spec()}, {name_of(task): Answer({}, "c", 1.0)})
    for damaged in (b"", b"no", good.read_bytes()[:-9]):
        (tmp_path / "packed" / "a.jsonl.gz").write_bytes(damaged)
        assert Answers(tmp_path / "kept", tmp_path / "packed").find(task.spec(), "c") is None


def test_answers_have_the_digits_that_are_kept():
    assert rounded({"a": [1.23456789012, {"b": -1e-30 / 3}], "n": 3, "s": "x"}) == {
        "a": [1.234568, {"b": -3.333333e-31}],
        "n": 3,
        "s": "x",
    }
    assert str(rounded([math.nan, math.inf])) == "[nan, inf]"


@pytest.mark.long
def test_processes_give_the_same_answers_as_one(tmp_path):
    setting = Setting(peers=4, every=4, rounds=3, lr=3e-3)
    tasks = [Run(setting=setting, problem="digits-mlp").seeded(seed) for seed in range(3)]
    by_one = play_all(tasks, Answers(tmp_path / "one"), say=quiet)
    together = play_all(tasks, Answers(tmp_path / "two"), jobs=2, say=quiet)
    assert [answer.result for answer in together] == [answer.result for answer in by_one]
