"""Pages and pictures of a suite, and the overview of all."""

from dataclasses import replace

import pytest

from simulations.lab.pages import main as pages
from simulations.lab.pages import pictures
from simulations.lab.pages.main import SUITES
from simulations.lab.pages.report import OVERVIEW, About, brief, overview, page
from simulations.lab.suites.base import Findings, Graph, Line
from simulations.lab.suites.figures import Check, reported


def the_runs(**changes):
    """What a page says of its two runs."""
    return About(command="run", seeds=3, scale="normal", machines=["m"], on="2026-01-02", runs=2, hours=2.0, **changes)


def test_page_lists_missed_marks_failures_and_old_runs():
    suite = SUITES["b8"]
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
    pages = {"b8": page(SUITES["b8"], findings, about, {}), "clock": page(SUITES["clock"], Findings(), about, {})}
    lines = overview(pages, {"race": "# The race: real\n\ntext"}).splitlines()
    played = "normal; seeds 0 to 2; 2 runs | abc, with changes, 2026-01-02 |"
    assert f"| [b8](b8.md) | Does it hold for a transformer? | 1 of 2 | {played}" in lines
    assert f"| [clock](clock.md) | At equal time, where does each method stand? | none | {played}" in lines
    below = lines.index("|---|---|---|---|", lines.index("## Marks missed"))
    assert lines[below + 1 : below + 4] == ["| b8 | b's \\| loss, nats | <= 1 | 2 (1 seed) |", "", "## Other pages"]
    assert "| [race](race.md) | The race: real |" in lines


def test_overview_is_written_with_every_page_and_replaces_no_other_file(tmp_path):
    (tmp_path / "b7.md").write_text(
        page(
            SUITES["b7"],
            Findings(),
            About(command="x", seeds=1, scale="normal", commit="c", machines=["m"], on="2026-01-02", runs=1, hours=0.1),
            {},
        )
    )
    pages._overview(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(OVERVIEW) and "[b7](b7.md)" in text
    (tmp_path / "b7.md").unlink()
    pages._overview(tmp_path)
    assert "[b7]" not in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Mine")
    pages._overview(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"README.md": "# Mine"}


def test_page_says_what_was_tried_where_a_mark_is_missed():
    met, missed = Check("d, nats", "<= 1", "0", True), Check("b's loss, nats", "<= 1", "2", False)
    about, said = the_runs(commit="abc"), "\n\nTried, where marks are missed: magic.\n"
    suite = replace(SUITES["b8"], tried="magic")
    assert said in page(suite, Findings(checks=[met, missed]), about, {})
    assert "Tried" not in page(suite, Findings(checks=[met]), about, {})
    assert "Tried" not in page(SUITES["b8"], Findings(checks=[met, missed]), about, {})


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


def test_a_row_of_one_seed_says_so_once():
    assert brief(("A", "16", "2.1 (1 seed)", "0.3 (1 seed)", "-")) == ("A (1 seed)", "16", "2.1", "0.3", "-")
    for mixed in (("A", "2.1 (1 seed)", "2.0 (1.9 to 2.1)", "0.3 (1 seed)"), ("A", "2.1 (1 seed)", "-")):
        assert brief(mixed) == mixed
