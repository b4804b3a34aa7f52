"""The status page of a real daemon in a real browser, also among members with hostile names."""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.browser import Browser
from tests.processes.hostile_member import HostileMember
from tests.processes.running import Network, running, until

pytestmark = [pytest.mark.processes, pytest.mark.needs("chromium")]

HOSTILE = ["<img src=x onerror=alert(1)>", '"></title><script>alert(2)</script>']


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Two hosts that exchange, and two members with names that no configuration allows."""
    with running(tmp_path_factory.mktemp("hosts"), 2, pace=0.02) as two, contextlib.ExitStack() as stack:
        two.start()
        two.until_it_runs()
        for name in HOSTILE:
            hostile = HostileMember(two.hosts, name)
            stack.callback(hostile.close)
            hostile.until("it is a member", lambda name=name: two.founder.member(name))  # type: ignore[misc]
        yield two


def page_of(network: Network) -> str:
    return str(network.founder.status()["page"])


def shown(browser: Browser, selector: str) -> list[str]:
    """The text of all elements that a selector finds."""
    script = f"Array.from(document.querySelectorAll({json.dumps(selector)}), each => each.textContent)"
    return [str(each) for each in browser.run(script)]


def test_page_shows_members_exchanges_and_plots_without_a_complaint(network: Network, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(page_of(network))
        until("all members are listed", lambda: len(shown(browser, "#members tbody tr")) == 4, network.hosts)
        until("an exchange is lit", lambda: shown(browser, "#picture .lit"), network.hosts)
        until("four plots", lambda: browser.run("document.querySelectorAll('.plot canvas').length") == 4)
        names = shown(browser, "#members tbody td:first-child")
        assert names[0] == "h0" and set(names[1:]) == {"h1", *HOSTILE}
        assert len(shown(browser, "#picture .node")) == 4 and len(shown(browser, "#picture .link")) >= 1
        assert {"h0", "h1"} <= set(shown(browser, "#contribution .who"))
        assert shown(browser, "#exchanges tbody tr")
        assert shown(browser, "#state") == [network.founder.status()["verdict"]["state"]]
        assert shown(browser, "#silent:not([hidden])") == []
        # A name stays text, wherever it is written.
        assert browser.run("document.images.length") == 0
        scripts = browser.run("Array.from(document.scripts, each => new URL(each.src).pathname)")
        assert scripts == ["/uplot.js", "/page.js"]
        browser.run("document.getElementById('by-samples').click()")
        assert shown(browser, "#by-samples[aria-pressed=true]") == ["over samples of each peer"]
        until("the plot is against samples", lambda: shown(browser, "#loss .u-label")[:1] == ["samples"])
        assert browser.complaints == []


def test_page_is_as_wide_as_a_phone_and_follows_the_colours_of_the_system(network: Network, tmp_path: Path) -> None:
    papers = []
    for dark in (False, True):
        with Browser(tmp_path / str(dark), width=390, height=800, dark=dark) as browser:
            browser.open(page_of(network))
            until("all members are listed", lambda: len(shown(browser, "#members tbody tr")) == 4)
            assert browser.run("document.documentElement.scrollWidth") == 390
            assert (
                browser.run("getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length")
                == 1
            )
            papers.append(browser.run("getComputedStyle(document.body).backgroundColor"))
            assert browser.complaints == []
    assert len(set(papers)) == 2


def test_daemon_that_stops_answering__the_page_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "hosts", 1) as one:
        one.start()
        until("the founder answers", one.founder.status, one.hosts)
        with Browser(tmp_path / "browser") as browser:
            browser.open(page_of(one))
            until("the page shows the host", lambda: "h0" in "".join(shown(browser, "#host")), one.hosts)
            one.end()
            until("the page tells", lambda: shown(browser, "#silent:not([hidden])"))
            assert shown(browser, "#silent")[0].startswith("The daemon does not answer, last ")


def test_answers_are_those_of_the_commands(network: Network) -> None:
    def read(path: str) -> Any:
        with urllib.request.urlopen(page_of(network) + path) as answer:
            return json.load(answer)

    told, status, members = read("status.json"), network.founder.status(), network.founder.members()
    assert told["status"].keys() == status.keys() and told["status"]["id"] == status["id"]
    assert [row["id"] for row in told["members"]] == [row["id"] for row in members]
    assert told["members"][0].keys() == members[0].keys()
    records = until("a record of the history", lambda: read("history.json"), network.hosts)
    assert records[0]["time"] <= read("history.json")[-1]["time"]
    assert read(f"history.json?since={records[-1]['time'] + 3600}") == []
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(urllib.request.Request(page_of(network), data=b"leave=1", method="POST"))
