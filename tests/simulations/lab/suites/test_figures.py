"""Figures of several seeds, and the tables that show them."""

import math

import pytest

from simulations.lab.pages.main import SUITES
from simulations.lab.pages.report import About, page
from simulations.lab.runs.runs import Run
from simulations.lab.suites.base import Arm, Findings, Outcome
from simulations.lab.suites.figures import Check, Figure, check, formatted, reported
from simulations.lab.suites.tables import best, curves_table
from tests.simulations.lab.sample_runs import SMALL, ended, outcome


def test_figures_show_their_range_and_the_number_of_few_seeds():
    assert formatted([1.0, 2.0, 3.0], 1) == "2.0 (1.0 to 3.0)"
    assert formatted([2.0, 2.0, 2.0], 1) == "2.0"
    assert formatted([1.0, 2.0], 1) == "1.5 (1.0 to 2.0; 2 seeds)"
    assert formatted([1.0]) == "1.000 (1 seed)"
    assert formatted(1.0) == "1.000"
    assert formatted([]) == "failed"
    assert formatted([math.inf, math.inf, math.inf]) == "never"
    assert formatted([1.0, 3.0, math.inf, -math.inf], 1) == "- (-inf to never)"


def test_figure_with_failed_seeds_counts_them_and_is_nan():
    values = [1.0, math.nan, 3.0]
    assert formatted(values, 1) == "2.0 (1.0 to 3.0; 1 of 3 seeds failed)"
    assert math.isnan(Figure(values)) and formatted(Figure(values), 1) == formatted(values, 1)
    assert formatted([math.nan, math.nan]) == "-"


def test_figures_are_computed_seed_by_seed():
    ours, theirs = Figure([1.0, 2.0, 6.0]), Figure([2.0, 4.0, 6.0])
    assert ours == 3.0 and formatted(theirs - ours, 1) == "1.0 (0.0 to 2.0)"
    assert formatted(100 * ours / theirs, 0) == "67 (50 to 100)"
    assert formatted(abs(1.0 - ours), 0) == formatted(abs(-(ours - 1.0)), 0) == "2 (0 to 5)"
    assert (2.0 / ours).each == (2.0, 1.0, 2.0 / 6.0) and (1.0 + ours).each == (2.0, 3.0, 7.0)
    assert math.isnan(ours / Figure([1.0, 0.0, 1.0]))


def test_figures_are_compared_by_the_seeds_that_both_have():
    assert formatted(Figure([1.0, 2.0, 6.0]) - Figure([0.5])) == "0.500 (1 seed)"
    assert formatted(Figure([1.0]) - Figure([])) == "failed"


def test_mark_is_met_by_the_mean_unless_a_seed_failed():
    assert check("a", ">= 1", math.nan) == Check("a", ">= 1", "-", False)
    assert check("a", "<= 1.5", Figure([1.0, 1.0, 2.0])) == Check("a", "<= 1.5", "1.333 (1.000 to 2.000)", True)
    assert not check("a", "<= 1.5", Figure([1.0, 1.0, math.nan])).passed
    assert not check("a", "<= 1.5", Figure([])).passed
    found = check("a", ">= 12", Figure([12.0, 14.0, 10.0]), digits=1, replicas=Figure([1.0, 2.0, 3.0]))
    assert found.measured == "12.0 (10.0 to 14.0); single replicas 2.0 (1.0 to 3.0)" and found.passed
    with pytest.raises(ValueError, match="about 3"):
        check("a", "about 3", 1.0)


def test_arm_with_a_failed_seed_has_no_mean_and_its_table_says_so():
    partly, wholly = outcome(ended(2.0), None, ended(1.0)), outcome(None, None, None)
    assert all(map(math.isnan, (partly.loss, partly.bytes, partly.fact("blocks"), wholly.loss)))
    assert (partly.failed, len(partly.curves), partly.losses[2]) == (1, 2, 1.0)
    rows = {label: loss for label, loss, *_ in curves_table("t", {"partly": partly, "wholly": wholly}).rows}
    assert rows == {"partly": "1.500 (1.000 to 2.000; 1 of 3 seeds failed)", "wholly": "failed"}


def test_best_avoids_arms_with_a_failed_seed():
    found = {"fell": outcome(ended(1.0), None), "good": outcome(ended(1.6), ended(1.8)), "bad": outcome(ended(3.0))}
    assert best(found) == "good" and best(found, ["fell", "bad"]) == "bad" and best(found, ["fell"]) == "fell"


def test_single_replicas_are_shown_beside_their_mean():
    found = {"a": outcome(ended(2.0, 2.5), ended(2.0, 2.5), ended(2.0, 2.5)), "cheap": outcome(ended(2.0, 2.5, 5.0))}
    assert curves_table("t", found).rows[0][1:3] == ("2.000", "2.500")


def test_a_method_without_an_end_leaves_its_model_and_an_unmeasured_end_of_pairwise_is_unknown():
    ended_as, plain = ended(2.0), ended(2.5)
    ended_as.result["facts"]["finished"] = 1.5
    assert outcome(ended_as, None).finished_losses == [1.5, pytest.approx(math.nan, nan_ok=True)]
    assert math.isnan(outcome(plain).finished_loss) and outcome(None).finished_losses == []
    other = Outcome(Arm("g", "a", Run(setting=SMALL, method="ddp")), [plain])
    assert other.finished_losses == other.losses == [2.5]


def test_figures_without_a_mark_are_shown_and_not_counted():
    findings = Findings(checks=[Check("loss", "<= 1", "2", False)], reported=[reported("gap", 0.5)])
    about = About(
        command="run", seeds=1, scale="quick", commit="abc", machines=["m"], on="2026-01-02", runs=1, hours=0.1
    )
    text = page(SUITES["b8"], findings, about, {})
    assert "0 of 1 met" in text and "## Without a mark" in text and "| gap | 0.500 |" in text
    assert reported("gap", math.nan).measured == "-"
    alone = reported("gap", Figure([0.5]), replicas=Figure([0.7]))
    assert alone.measured == "0.500 (1 seed); single replicas 0.700 (1 seed)"
