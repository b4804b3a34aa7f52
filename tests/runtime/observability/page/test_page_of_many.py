"""The status page of a network in a real browser: nothing overlaps, nothing is cut, and hosts can be told apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulations.processes.progress import until
from tests.processes.browser import Browser
from tests.runtime.observability.page.network_of_many import NetworkOfMany

pytestmark = pytest.mark.needs("chromium")

WIDTHS = (1400, 1280, 500, 390)
BOXES = """
Array.from(document.querySelectorAll(%s), each => {
  const box = each.getBoundingClientRect();
  return [each.textContent || each.tagName, box.left, box.top, box.right, box.bottom];
})
"""
AIR = 1.0
"""pixels by which boxes may touch: a letter does not fill its box"""
Box = tuple[str, float, float, float, float]


def boxes(browser: Browser, selector: str) -> list[Box]:
    return [tuple(box) for box in browser.run(BOXES % json.dumps(selector))]  # type: ignore[misc]


def overlap(one: Box, other: Box) -> bool:
    across = min(one[3], other[3]) - max(one[1], other[1])
    return across > AIR and min(one[4], other[4]) - max(one[2], other[2]) > AIR


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("count", "cloud"), [(2, False), (4, False), (5, True), (12, True), (24, False)])
def test_picture__names_are_whole_and_lie_on_nothing(tmp_path: Path, count: int, cloud: bool, width: int) -> None:
    with NetworkOfMany(count, cloud=cloud) as network, Browser(tmp_path, width=width) as browser:
        browser.open(network.url)
        until("the members are drawn", lambda: len(boxes(browser, "#picture .node")) == count)
        (picture,) = boxes(browser, "#picture")
        names, dots = boxes(browser, "#picture text"), boxes(browser, "#picture .node circle")
        assert len(names) == count == len({name[0] for name in names})
        for at, name in enumerate(names):
            assert picture[1] <= name[1] and name[3] <= picture[3], name
            assert picture[2] <= name[2] and name[4] <= picture[4], name
            assert not [other for other in [*names[:at], *dots] if overlap(name, other)], name
        assert browser.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_twelve_fit_beside_each_other_and_on_a_phone(tmp_path: Path, width: int) -> None:
    with NetworkOfMany(12) as network, Browser(tmp_path, width=width) as browser:
        browser.open(network.url)
        until("the members are listed", lambda: len(boxes(browser, "#members tr")) == 13)
        assert browser.run("document.documentElement.scrollWidth") == width
        wide = "Array.from(document.querySelectorAll('.scroll'), each => each.scrollWidth - each.clientWidth)"
        assert browser.run(wide) == [0, 0]
        rows = boxes(browser, "#contribution li")
        assert len(rows) == 12 and max(row[4] - row[2] for row in rows) < 50
        assert len({box[0] for box in boxes(browser, "#contribution .who")}) == 12


def last_points(browser: Browser) -> dict[str, Any]:
    """By name of a line, the last x at which it has a value, as the page's own modules compute it."""
    script = """
    (async () => {
      const { losses } = await import("./course.js");
      const records = await (await fetch("history.json")).json();
      const me = (await (await fetch("status.json")).json()).status.id.slice(0, 8);
      return Object.fromEntries(losses(records, me, true).map(({ name, points }) => [name, points.at(-1)]));
    })()
    """
    return dict(browser.run(script))


def test_losses_against_samples__each_member_over_its_own(tmp_path: Path) -> None:
    with NetworkOfMany(3, records=1200) as network, Browser(tmp_path) as browser:
        browser.open(network.url)
        until("the loss is drawn", lambda: browser.run("document.querySelectorAll('#loss canvas').length") == 1)
        browser.run("document.getElementById('by-samples').click()")
        until("against samples", lambda: boxes(browser, "#loss .u-label")[0][0] == "samples")
        last = network.records[-1]
        assert last_points(browser) == {
            **{member.name: [member.samples, member.loss] for member in last.members},
            "evaluation here": [last.samples, last.eval_loss],
        }
        told = browser.run("document.getElementById('loss').getAttribute('aria-label')")
        assert all(f"{name[:4]}" in told for name in network.names) and "no value yet" not in told
        assert browser.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_default_names_of_cloud_hosts__whole_in_lists_and_told_apart_in_the_picture(tmp_path: Path, width: int) -> None:
    with NetworkOfMany(4, cloud=True) as network, Browser(tmp_path, width=width) as browser:
        browser.open(network.url)
        until("the loss is drawn", lambda: len(boxes(browser, "#loss .u-series")) == 6)
        assert [box[0] for box in boxes(browser, "#members td:first-child")] == network.names
        assert {box[0] for box in boxes(browser, "#contribution .who")} == set(network.names)
        assert {box[0] for box in boxes(browser, "#exchanges td.name")} == set(network.names[1:])
        for place in ("#picture text", "#loss .u-series th"):
            told = [box[0] for box in boxes(browser, place)]
            assert all(sum(host in text for text in told) == 1 for host in ("200", "31-201", "202", "31-203")), told
        for card in boxes(browser, "section"):
            inside = [box for box in boxes(browser, "section *") if overlap(box, card)]
            assert all(card[1] <= box[1] and box[3] <= card[3] for box in inside)
        assert browser.complaints == []


def test_names_in_little_room__what_tells_them_apart_stays(tmp_path: Path) -> None:
    names = {
        "a": "node-7",
        "b": "rack-of-berlin-01-x",
        "c": "rack-of-berlin-02-x",
        "d" * 9: "W" * 20,
        "e" * 9: "W" * 20,
    }
    script = f"""
    (async () => {{
      const {{ shortened }} = await import("./text.js");
      return Object.fromEntries(shortened(new Map(Object.entries({json.dumps(names)})), 10));
    }})()
    """
    with NetworkOfMany(2) as network, Browser(tmp_path) as browser:
        browser.open(network.url)
        until("the page is there", lambda: boxes(browser, "h1"))
        assert browser.run(script) == {
            "a": "node-7", "b": "…erlin-01…", "c": "…erlin-02…", "d" * 9: "d" * 8, "e" * 9: "e" * 8,
        }  # fmt: skip


NOTICE = "GD-101 10.0.0.2:4710: no peer answers there: refused"


@pytest.mark.parametrize(
    ("state", "title", "way"),
    [
        ("healthy", "Earlier notices", "If it comes again: open the port"),
        ("degraded", "What wants attention", "What to do: open the port"),
    ],
)
def test_notices_of_a_healthy_peer__told_as_earlier_ones(tmp_path: Path, state: str, title: str, way: str) -> None:
    verdict = {"state": state, "text": f"{state}: so it is", "do": []}
    told = {"notices": [NOTICE], "notices_ago": {NOTICE: 240.0}, "do": {"GD-101": "open the port"}}
    with NetworkOfMany(2, verdict=verdict, **told) as network, Browser(tmp_path) as browser:
        browser.open(network.url)
        until("the notice is shown", lambda: boxes(browser, "#notices li"))
        assert [box[0] for box in boxes(browser, "#notices-title, #notices span")] == [
            title,
            f"{NOTICE} (4 min ago)",
            way,
        ]


@pytest.mark.parametrize("reports", [False, True])
def test_loss_that_no_peer_reports__the_page_tells_how_to(tmp_path: Path, reports: bool) -> None:
    with NetworkOfMany(2, reports=reports) as network, Browser(tmp_path) as browser:
        browser.open(network.url)
        until("the plots are drawn", lambda: boxes(browser, "#stall canvas"))
        shown = [box[0] for box in boxes(browser, "#loss-told:not([hidden])")]
        assert [" ".join(text.split()) for text in shown] == ([] if reports else [HINT])
        assert len(boxes(browser, "#loss-drawn:not([hidden])")) == reports
        assert browser.complaints == []


HINT = (
    "No peer has reported a loss yet. A training script reports it with peer.report(loss=loss). "
    "Others see it with that peer's next round."
)


def test_no_time_lost__the_axis_begins_at_zero(tmp_path: Path) -> None:
    with NetworkOfMany(2) as network, Browser(tmp_path) as browser:
        browser.open(network.url)
        until("the plots are drawn", lambda: boxes(browser, "#stall canvas"))
        script = """
        (async () => {
          const { Plot } = await import("./plots.js");
          const plot = new Plot(document.getElementById("stall"), { unit: "%" });
          plot.show([[1, 2, 3], [0, 0, 0]], [{ name: "time lost" }]);
          await new Promise((drawn) => setTimeout(drawn));
          return plot.made.scales.y.min;
        })()
        """
        assert browser.run(script) == 0


def test_cursor_away_from_a_plot__its_legend_has_the_last_values(tmp_path: Path) -> None:
    with NetworkOfMany(2) as network, Browser(tmp_path) as browser:
        browser.open(network.url)
        until("the loss is drawn", lambda: boxes(browser, "#loss .u-value"))
        until("values are told", lambda: boxes(browser, "#agreement .u-value")[1][0] != "--")
        assert [box[0] for box in boxes(browser, "#agreement .u-value")] == ["last", "1.50", "0.0100"]
