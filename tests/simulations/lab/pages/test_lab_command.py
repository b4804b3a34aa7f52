"""The command that plays suites: from end to end, and its options."""

import shutil
from dataclasses import replace

import pytest

from simulations import __main__ as command
from simulations.lab.core import Setting
from simulations.lab.pages import main as pages
from simulations.lab.pages.main import SUITES, SuiteError, lab, pack_suite, play_arms
from simulations.lab.runs import fingerprints, runs
from simulations.lab.suites import b8
from simulations.lab.suites.arms import arms
from simulations.lab.suites.base import Findings, Suite
from simulations.lab.suites.figures import check
from simulations.lab.suites.graphs import seconds_graph
from simulations.lab.suites.tables import curves_table


def test_single_arm_is_played_and_printed_without_a_page(tmp_path, capsys):
    assert play_arms("b8", ["DDP"], seeds=1, size="quick", kept=tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"N = {b8.SIZES[0]}, warm, DDP:" and said[1].startswith("    loss ")
    assert [path.suffix for path in tmp_path.iterdir()] == [".json", ".json"]
    for name, labels in (("b0", ["DDP"]), ("b8", ["DDP", "half way"])):
        with pytest.raises(SuiteError, match=r"no (suite|arm)"):
            play_arms(name, labels, size="quick", kept=tmp_path)


# -- from end to end -----------------------------------------------------------------------------------------------


TINY = Setting(peers=4, every=4, rounds=4, lr=3e-3)
WAYS = {"pairwise": ("pairwise", {}), "DiLoCo": ("diloco", {"mu": 0.5})}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A suite of these arms without marks."""

    def play(grid, read=lambda results: Findings(), seeds=2):
        suite = Suite(name="tiny", question="Small?", about="Yes.", arms=lambda scale: grid, read=read)
        monkeypatch.setitem(SUITES, "tiny", suite)
        status = lab("tiny", seeds=seeds, kept=tmp_path / "kept", out=tmp_path)
        return status, (tmp_path / "tiny.md").read_text()

    return play


@pytest.mark.long
def test_small_suite_from_end_to_end(tmp_path, tiny, capsys):
    pytest.importorskip("matplotlib")

    def read(results):
        outcomes = results.groups["digits"]
        loss = outcomes["pairwise"].loss
        panels = {"digits": outcomes}
        return Findings([curves_table("All", outcomes)], [check("loss", "< 2.2", loss)], [seconds_graph(panels, "t")])

    grid = arms("digits", TINY, WAYS, problem="digits-mlp")
    # Two arms share the same run, which counts once.
    grid += arms("again", TINY, WAYS, problem="digits-mlp")
    for _ in range(2):
        status, text = tiny(grid, read)
        assert status == 0
    assert len(list((tmp_path / "kept").iterdir())) == 4
    assert "![t](tiny-seconds.png)" in text and "| loss | < 2.2 |" in text and "; 4 runs, " in text
    assert (tmp_path / "tiny-seconds.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr()
    assert "4 runs, 4 of them kept" in said.err and "met    loss" in said.out
    # The answers beside the page are enough to write it again elsewhere.
    shutil.rmtree(tmp_path / "kept")
    assert tiny(grid, read) == (0, text) and "4 runs, 4 of them kept" in capsys.readouterr().err


def test_finished_answers_are_packed_and_not_played_again(tmp_path, tiny, capsys, monkeypatch):
    few, grid = (arms("digits", TINY, ways, problem="digits-mlp") for ways in ({"pairwise": WAYS["pairwise"]}, WAYS))
    tiny(few)
    (tmp_path / "answers" / "tiny.jsonl.gz").unlink()
    monkeypatch.setitem(SUITES, "tiny", replace(SUITES["tiny"], arms=lambda scale: grid))
    assert pack_suite("tiny", seeds=2, kept=tmp_path / "kept", out=tmp_path) == (2, 4)
    # Answers of other code do not count, and are kept.
    before = (tmp_path / "answers" / "tiny.jsonl.gz").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(pages, "code_of", lambda task: "other code")
        assert pack_suite("tiny", seeds=2, kept=tmp_path / "nothing", out=tmp_path) == (0, 4)
    assert (tmp_path / "answers" / "tiny.jsonl.gz").read_bytes() == before
    shutil.rmtree(tmp_path / "kept")
    capsys.readouterr()
    tiny(grid)
    assert "4 runs, 2 of them kept" in capsys.readouterr().err
    with pytest.raises(SuiteError, match="no suite"):
        pack_suite("b0")


def test_suite_without_marks_fails_if_all_runs_failed(tiny, capsys):
    status, text = tiny(arms("g", TINY, {"a": ("pairwise", {"codec": "none"})}, problem="digits-mlp"))
    assert status == 1
    assert text.count("- a, pairwise on digits-mlp, 4 peers, 4 rounds, seed") == 2 and "KeyError: 'none' (" in text
    assert "no marks; 2 runs, 2 failed" in capsys.readouterr().out


def test_page_names_the_commit_at_the_start_and_code_that_changed_since(tiny, monkeypatch):
    monkeypatch.setattr(pages, "commit", lambda root: f"commit with {fingerprints._parsed('simulations.lab.core')[0]}")
    parsed, play = fingerprints._parsed, runs.registry.answered
    first = parsed("simulations.lab.core")[0]

    def playing(*arguments):
        other = {"simulations.lab.core": ("other", parsed("simulations.lab.core")[1])}
        monkeypatch.setattr(fingerprints, "_parsed", lambda name: other.get(name) or parsed(name))
        return play(*arguments)

    monkeypatch.setattr(runs.registry, "answered", playing)
    status, text = tiny(arms("g", TINY, WAYS, problem="digits-mlp"), seeds=1)
    assert status == 0 and f"commit with {first}" in text
    assert "**The code of 2 of the runs changed on disk while the suite played.**" in text
    with pytest.raises(SuiteError, match="changed since this process began"):
        tiny(arms("g", TINY, WAYS, problem="digits-mlp"), seeds=1)


# -- the command ---------------------------------------------------------------------------------------------------


def test_lab_without_a_suite_lists_the_suites(capsys):
    assert command.main(["lab"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "b7           Do replicas agree as fast as the formulas say?"


def test_lab_passes_its_options_on(monkeypatch):
    seen = []
    monkeypatch.setattr(pages, "lab", lambda name, **options: seen.append((name, options)) or 1)
    assert command.main(["lab", "b7", "--seeds", "2", "--jobs", "4", "--quick"]) == 1
    assert command.main(["lab", "b8", "--full"]) == 1
    assert seen == [
        ("b7", {"seeds": 2, "jobs": 4, "size": "quick"}),
        ("b8", {"seeds": 3, "jobs": 1, "size": "full"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lab", "nonsense"], "no suite 'nonsense'; there are b7, b8"),
        (["lab", "b8", "--quick", "--full"], "--quick or --full"),
        (["chaos", "b8"], "only lab has suites"),
        (["chaos", "--quick"], "only lab has suites"),
    ],
)
def test_unplayable_request_is_a_usage_error(capsys, arguments, words):
    assert command.main(arguments) == 2
    assert words in capsys.readouterr().err
