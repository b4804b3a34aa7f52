"""Pages and pictures of a suite, and the overview of all."""

from dataclasses import replace

import pytest

from simulations.lab.pages import main as pages
from simulations.lab.pages import pictures
from simulations.lab.pages.main import SUITES
from simulations.lab.pages.report import OVERVIEW, About, overview, page
from simulations.lab.suites.base import Findings, Graph, Line
from simulations.lab.suites.figures import Check, reported
from simulations.lab.suites.graphs import distance_graph
from tests.simulations.lab.sample_runs import ended, outcome


def the_runs(**changes):
    """What a page says of its two runs."""
    return About(command="run", seeds=3, scale="normal", machines=["m"], on="2026-01-02", runs=2, hours=2.0, **changes)


def test_page_lists_missed_marks_failures_and_old_runs():
    suite = SUITES["b1"]
    findings = Findings(
        checks=[Check("loss", "<= 1", "2", False), Check("bytes", "<= 1", "0", True)], notes=["So it is."]
    )
    about = the_runs(commit="abc", older=1, changed=2, failed=["x: fell"])
    text = page(suite, findings, about, {})
    assert "| loss | <= 1 | 2 | **no**" in text and "| bytes | <= 1 | 0 | yes |" in text
    assert "1 of 2 met" in text and "2.0 hours" in text and "- x: fell" in text
    assert "Commit abc, 2026-01-02. m." in text
    assert "**1 of the runs" in text and "**The code of 2 of the runs changed" in text and "So it is." in text


def test_overview_repeats_the_missed_marks_of_its_pages():
    missed = Check("b's | loss, nats", "<= 1", "2 (1 seed)", False)
    findings = Findings(checks=[Check("d", "<= 1", "0", True), missed], reported=[reported("gap", 0.5)])
    about = the_runs(commit="abc, with changes")
    pages = {"b1": page(SUITES["b1"], findings, about, {}), "clock": page(SUITES["clock"], Findings(), about, {})}
    lines = overview(pages, {"race": "# The race: real\n\ntext"}).splitlines()
    played = "normal; seeds 0 to 2; 2 runs | abc, with changes, 2026-01-02 |"
    assert f"| [b1](b1.md) | How good a model for how many bytes? | 1 of 2 | {played}" in lines
    assert f"| [clock](clock.md) | At equal time, where does each method stand? | none | {played}" in lines
    below = lines.index("|---|---|---|---|", lines.index("## Marks missed"))
    assert lines[below + 1 : below + 4] == ["| b1 | b's \\| loss, nats | <= 1 | 2 (1 seed) |", "", "## Other pages"]
    assert "| [race](race.md) | The race: real |" in lines


def test_overview_is_written_with_every_page_and_replaces_no_other_file(tmp_path):
    (tmp_path / "b2.md").write_text(
        page(
            SUITES["b2"],
            Findings(),
            About(command="x", seeds=1, scale="normal", commit="c", machines=["m"], on="2026-01-02", runs=1, hours=0.1),
            {},
        )
    )
    pages._overview(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(OVERVIEW) and "[b2](b2.md)" in text
    (tmp_path / "b2.md").unlink()
    pages._overview(tmp_path)
    assert "[b2]" not in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Mine")
    pages._overview(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"README.md": "# Mine"}


def test_page_says_beside_each_missed_mark_what_was_tried():
    missed = [Check(name, "<= 1", "2", False) for name in ("b's loss, nats", "c's points", "a's loss, nats", "c's")]
    findings = Findings(checks=[Check("d, nats", "<= 1", "0", True), *missed])
    about = the_runs(commit="abc")
    suite = replace(SUITES["b1"], tried=(("b's", "magic: here"), ("points", "magic: here"), ("points", "more: b2")))
    text = page(suite, findings, about, {})
    assert "| b's loss, nats | <= 1 | 2 | **no**; tried: 1 |" in text
    assert "| c's points | <= 1 | 2 | **no**; tried: 1, 2 |" in text
    # A mark without an entry shows what was tried of all methods, or nothing if that would not help.
    assert "| a's loss, nats | <= 1 | 2 | **no**; tried: 3, 4 |" in text
    assert "| c's | <= 1 | 2 | **no**; nothing else was tried |" in text
    assert "\n1. magic: here\n2. more: b2\n3. other settings" in text and "[trials](trials.md)" in text
    assert page(replace(suite, tried="magic"), findings, about, {}).count("**no**; tried: 1 |") == 4
    assert "trials.md" not in page(replace(suite, name="trials", tried=()), findings, about, {})
    assert "Tried, " not in page(suite, Findings(checks=findings.checks[:1]), about, {})


def apart(distances):
    """Three seeds with replicas at these distances. Those of the first seed are a little larger."""
    answers = [ended(2.0) for _ in range(3)]
    for number, answer in enumerate(answers):
        answer.result["points"] = [
            [place, 0.0, 0.0, 0.0, 2.0, 0.9, 2.0, distance * (2.0 if number == 0 else 0.5)]
            for place, distance in enumerate(distances)
        ]
    return outcome(*answers)


def test_picture_of_distances_leaves_out_rounding_errors():
    drawn = distance_graph({"p": {"equal": apart([1e-5, 2e-5, 2e-5]), "apart": apart([1e-5, 10.0, 0.015])}})
    assert list(drawn.panels["p"]) == ["apart"] and "0.001 of the largest" in drawn.title
    line = drawn.panels["p"]["apart"]
    assert line.x == [1.0, 2.0] and line.y == pytest.approx([10.0, 0.015])
    assert line.low == pytest.approx([5.0, 0.01]) and line.high == pytest.approx([20.0, 0.03])


@pytest.mark.parametrize(
    ("first", "last", "scale", "labels"),
    [
        (1100.0, 1900.0, "linear", None),
        (1.5, 70.0, "log", ["2", "5", "10", "20", "50"]),
        (0.5, 500.0, "log", ["$\\mathdefault{10^{0}}$", "$\\mathdefault{10^{1}}$", "$\\mathdefault{10^{2}}$"]),
    ],
)
def test_labels_of_a_picture_do_not_overlap(first, last, scale, labels):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axis = pyplot.subplots()
    line = Line([first, last], [2.0, 1.0])
    pictures._panel(axis, Graph("g", "t", "x", "y", {}, log_x=True), "p", {"a": line}, ["a"])
    assert axis.get_xscale() == scale
    if labels is not None:
        low, high = axis.get_xlim()
        ticks = [tick for minor in (False, True) for tick in axis.xaxis.get_ticklabels(minor=minor) if tick.get_text()]
        assert [tick.get_text() for tick in ticks if low <= tick.get_position()[0] <= high] == labels
    pyplot.close(figure)
