"""Pictures of a suite."""

from __future__ import annotations

import pytest

from simulations.lab.pages import pictures
from simulations.lab.suites.base import Graph, Line
from simulations.lab.suites.graphs import distance_graph
from tests.simulations.lab.sample_runs import ended, outcome


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
