"""The status page of more members than a handful, in a real browser: nothing overlaps, and nothing is cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulations.processes.progress import until
from tests.processes.browser import Browser
from tests.runtime.observability.page.network_of_many import NetworkOfMany

pytestmark = pytest.mark.needs("chromium")

WIDTHS = (1400, 390)
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
@pytest.mark.parametrize("count", [2, 5, 12, 24])
def test_picture__names_are_whole_and_lie_on_nothing(tmp_path: Path, count: int, width: int) -> None:
    with NetworkOfMany(count) as network, Browser(tmp_path, width=width) as browser:
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
