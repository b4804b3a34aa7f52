"""The report of a run: what it reads, what it draws, and that it is whole and harmless."""

import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossipdp.errors import ConfigError
from gossipdp.runtime.observability.history import FILE, MOST, MemberRecord, Record
from peers.report.gather import bytes_per_parameter, events, gather
from peers.report.page import MODULES, POINTS, SHARED, colours, figures
from peers.report.page import MOST as LARGEST
from peers.report.write import write
from simulations.processes.needs import found
from simulations.processes.progress import until
from tests.peers.commands.running import Run
from tests.processes.browser import Browser

PLOTS = SHARED / "plots.js"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def record(time: float, **changes: Any) -> Record:
    made = Record(
        time=time, life=1, round=int(time), steps=int(10 * time), samples=int(80 * time), loss=3.0 - 0.01 * time
    )
    return msgspec.structs.replace(made, **changes)


def keep(home: Path, records: list[Record]) -> None:
    (home / FILE).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in records))


def log(home: Path, name: str, *lines: str) -> None:
    (home / "log").mkdir(exist_ok=True)
    (home / "log" / name).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def home(founder: Path) -> Path:
    """A peer that ran for 100 s, was away for 200 s and ran again."""
    lives = [record(float(at), sent=10 * at, stall=0.1 * at, exchanges=at) for at in range(0, 101, 10)]
    for at in range(300, 341, 10):
        since = {"steps": at - 300, "samples": 8 * (at - 300), "sent": at - 300}
        lives.append(record(float(at), life=2, stall=0.0, received=7, failed=1, **since))
    members = (MemberRecord("aaaaaaaa", HOSTILE, 100, 10, 2.5), MemberRecord("bbbbbbbb", "b", 300, 30))
    keep(founder, [msgspec.structs.replace(each, members=members) for each in lives])
    return founder


def test_counters_are_added_up_over_the_lives_of_a_daemon(home: Path) -> None:
    (peer,) = gather([home])
    totals = peer.totals
    assert (totals.seconds, totals.away, totals.lives) == (340.0, 200.0, 2)
    assert (totals.sent, totals.received, totals.exchanges, totals.failed) == (1040, 7, 100, 1)
    assert totals.stall == pytest.approx(10.0) and totals.rounds == 340
    assert (totals.steps, totals.samples) == (1040, 8320)
    losses = next(figure for figure in figures([peer]) if figure["title"] == "Loss against samples of that peer")
    samples = [x for x, _ in losses["curves"][0]["points"]]
    assert samples == sorted(samples) and samples[-1] == 8320
    grown = next(figure for figure in figures([peer]) if figure["title"] == "Seconds of training spent in gossipdp")
    assert grown["curves"][0]["points"][-1] == (340.0, pytest.approx(10.0))


def test_peer_that_a_flag_has_named__is_called_as_the_other_members_call_it(founder: Path) -> None:
    (plain,) = gather([founder])
    keep(founder, [record(10.0, members=(MemberRecord(plain.id, "peer1", 1, 1, 2.0, 10),))])
    assert [peer.name for peer in gather([founder])] == ["peer1"]


def test_loss_of_a_member_without_a_home__against_its_own_samples_where_they_grow(founder: Path) -> None:
    def told(loss: float | None, samples: int | None) -> tuple[MemberRecord, ...]:
        return (MemberRecord("bbbbbbbb", "b", 1, 1, loss, samples),)

    members = [told(2.9, None), told(None, 100), told(2.8, 200), told(2.8, 200), told(2.6, 500)]
    keep(founder, [record(10.0 * at, members=each) for at, each in enumerate(members)])
    by_title = {figure["title"]: figure["curves"] for figure in figures(gather([founder]))}
    last = by_title["Loss against samples of that peer"][-1]
    assert last == {"name": "b", "points": [(200, 2.8), (500, 2.6)], "colour": 1, "dotted": False}
    assert by_title["Loss against time"][-1]["points"] == [(0.0, 2.9), (20.0, 2.8), (30.0, 2.8), (40.0, 2.6)]


def test_daemon_restarts_while_training_goes_on__its_lost_time_is_counted_once(founder: Path) -> None:
    keep(founder, [record(10.0, stall=5.0), record(20.0, stall=6.0), record(30.0, life=2, stall=6.5)])
    assert gather([founder])[0].totals.stall == 6.5
    keep(founder, [record(10.0, stall=5.0), record(20.0, stall=6.0), record(30.0, stall=0.5)])  # training restarted
    assert gather([founder])[0].totals.stall == 6.5


def test_home_without_a_history_has_figures_of_nothing(founder: Path) -> None:
    (peer,) = gather([founder])
    assert peer.totals.lives == 0 and figures([peer]) == [] and peer.network == "tiny"


def test_warnings_and_errors_of_text_and_json_logs_are_counted_by_code(home: Path) -> None:
    log(
        home, "peer.log",
        "2026-11-27T04:00:00+00:00 WARNING h0: GD-101 10.0.0.2:4710: no peer answers there; do: open the port",
        "2026-11-27T04:10:00+00:00 WARNING h0: GD-101 10.0.0.3:4710: timed out",
        "2026-11-27T04:11:00+00:00 INFO    h0: GD-101 is explained by `gossipdp explain`",
        "not a line of a log", "2026-99-99 WARNING h0: GD-101 never",
        json.dumps({"time": 1.9e9, "level": "warning", "code": "GD-402", "message": "GD-402 NaN refused \x1b[2J"}),
        "{broken",
    )  # fmt: skip
    log(home, "peer.log.1", "2026-11-27T03:00:00+00:00 ERROR   h0: GD-101 the oldest")
    log(home, "supervisor.log", "2026-11-27T05:00:00+00:00 ERROR   h0 supervisor: GD-316 the training command fails")
    found = events(home)
    assert [(event.code, event.count) for event in found] == [("GD-402", 1), ("GD-316", 1), ("GD-101", 3)]
    assert found[2].text == "10.0.0.3:4710: timed out" and found[2].last - found[2].first == 4200.0
    assert "\x1b" not in found[0].text and all(event.title and event.do for event in found)


class Outline(HTMLParser):
    """Tags and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_page_is_whole_and_a_hostile_name_is_text(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert write([home], out, 1.9e9) == out.stat().st_size < LARGEST
    text = out.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.links == [] and "img" not in outline.tags and outline.tags.count("script") == 3
    assert "default-src 'none'" in text and "&lt;/script&gt;" in text
    assert "secret" not in text.replace("<style>", "") and "$" + "title" not in text
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []


def test_peer_has_one_colour_in_all_figures__and_its_evaluation_too(founder: Path) -> None:
    keep(founder, [record(float(at), eval_loss=2.0, received=at) for at in (0, 10)])
    (first,) = gather([founder])
    second = replace(first, name="second", id="bbbbbbbb")
    drawn = {(curve["name"], curve["colour"]) for figure in figures([first, second]) for curve in figure["curves"]}
    assert drawn == {(first.name, 0), (f"{first.name}, evaluation", 0), ("second", 1), ("second, evaluation", 1)}
    assert len(colours()) == len(set(colours())) == int(re.findall("COLOURS = ([0-9]+)", PLOTS.read_text("utf-8"))[0])


def test_loss_of_a_peer_is_the_same_in_both_tables(founder: Path, tmp_path: Path) -> None:
    (plain,) = gather([founder])
    older = (MemberRecord(plain.id, "peer1", 90, 9, 2.75, 720),)  # told with the last round
    keep(founder, [record(10.0, loss=2.125, members=older)])
    write([founder], tmp_path / "report.html", 1.9e9)
    text = (tmp_path / "report.html").read_text()
    assert text.count("<td>2.125</td>") == 2 and "2.75" not in text.partition('type="application/json"')[0]


def test_bytes_for_each_parameter__over_all_peers_and_lives(founder: Path, tmp_path: Path) -> None:
    keep(
        founder,
        [
            record(10.0, exchanged=500, formula=480.0, parameters=1000.0),
            record(20.0, life=2, exchanged=100, formula=100.0, parameters=200.0),
        ],
    )
    totals = gather([founder])[0].totals
    assert bytes_per_parameter([totals, totals]) == (0.5, 0.4833) and bytes_per_parameter([]) == (None, None)
    write([founder], tmp_path / "report.html", 1.9e9)
    assert "received: 0.500 measured, 0.483 by the formula." in (tmp_path / "report.html").read_text()


def test_settings_that_a_flag_of_the_founder_has_set(tmp_path: Path, gossipdp: Run) -> None:
    home = tmp_path / "founder"
    words = ("--network", "tiny", "--advertise", "10.0.0.1:4711", "--set", "exchange.warmup_steps=60")
    assert gossipdp("--home", home, "up", *words).code == 0
    assert gather([home])[0].settings["exchange.warmup_steps"] == 60


def test_largest_report_is_below_its_bound(founder: Path, tmp_path: Path) -> None:
    members = tuple(MemberRecord(f"{number:08}", "n" * 64, 10**9, 10**6, 2.123456) for number in range(32))
    keep(founder, [record(float(at), members=members, eval_loss=2.1, ratio=1.5) for at in range(MOST)])
    (peer,) = gather([founder])
    assert all(len(curve["points"]) <= POINTS for figure in figures([peer]) for curve in figure["curves"])
    assert write([founder], tmp_path / "report.html", 0.0) < LARGEST


def test_not_a_home_and_homes_of_two_runs(home: Path, tmp_path: Path, gossipdp: Run) -> None:
    with pytest.raises(ConfigError, match="GD-314"):
        gather([tmp_path])
    (tmp_path / "other.toml").write_text('[network]\nname = "other"\n')
    assert gossipdp("up", "other.toml", "--home", tmp_path / "other").code == 0
    with pytest.raises(ConfigError, match="GD-315"):
        gather([home, tmp_path / "other"])


def test_command_writes_the_file_and_says_where(home: Path, tmp_path: Path, gossipdp: Run) -> None:
    done = gossipdp("--home", home, "report", "-o", tmp_path / "run.html")
    assert done.code == 0 and "run.html (" in done.out
    refused = gossipdp("report", home, "-o", tmp_path / "none" / "run.html")
    assert refused.code == 8 and "GD-602" in refused.err


def test_report_and_status_page_share_one_setup_of_plots(home: Path, tmp_path: Path) -> None:
    write([home], tmp_path / "report.html", 1.9e9)
    text = (tmp_path / "report.html").read_text()
    for name in MODULES:
        module = (SHARED / name).read_text("utf-8")
        assert module.count("export ") == len(re.findall("^export ", module, re.MULTILINE))
        bodies = [line.removeprefix("export ") for line in module.splitlines() if not line.startswith("import ")]
        assert "\n".join(bodies) in text
    assert (SHARED / "plots.css").read_text("utf-8") in text
    scripts = [*SHARED.iterdir(), *resources.files("peers.report").iterdir()]
    users = [file.name for file in scripts if file.name.endswith(".js") and "new uPlot" in file.read_text("utf-8")]
    assert users == ["plots.js"]


@pytest.mark.needs("chromium")
def test_tables_on_a_phone__short_values_keep_one_line_and_long_ones_need_few(home: Path, tmp_path: Path) -> None:
    name = "ip-10-0-31-207-eu-central-1-2a127488"
    keep(home, [record(10.0, members=(MemberRecord(gather([home])[0].id, name, 1, 1),))])
    log(home, "peer.log", f"2026-11-27T04:00:00+00:00 WARNING h0: GD-101 10.0.0.2:4710: no answer: {'so ' * 40}")
    write([home], tmp_path / "report.html", 1.9e9)
    lines = """
    Object.fromEntries(Array.from(document.querySelectorAll("td"), (cell) => {
      const range = document.createRange();
      range.selectNodeContents(cell);
      return [cell.textContent.slice(0, 36), range.getClientRects().length];
    }))
    """
    with Browser(tmp_path / "browser", width=390) as browser:
        browser.open(f"file://{tmp_path / 'report.html'}")
        until("the tables are there", lambda: browser.run("document.querySelectorAll('table').length") == 4)
        told = browser.run(lines)
        assert told[name] <= 2 and told["GD-101"] == told["2026-11-27 04:00 UTC"] == 1
        assert max(told.values()) <= 8 and browser.run("document.documentElement.scrollWidth") == 390


@pytest.mark.needs("chromium")
def test_browser_draws_the_curves_without_an_error(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    write([home], out, 1.9e9)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=400,900"]
    argv = [found("chromium"), *words, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{out}"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "CONSOLE" not in ran.stderr, ran.stderr
    (peer,) = gather([home])
    assert ran.stdout.count("<canvas") == len(figures([peer]))
    assert f'aria-label="{peer.name}: last 7 B"' in ran.stdout
