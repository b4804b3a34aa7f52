"""The long campaign: parts, resumption, the report of a failing seed, and the summary after the last test."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from simulations.campaigns import networks as campaigns
from simulations.campaigns.networks import Part, State, code, main, play


@pytest.fixture
def seeds_played(monkeypatch):
    """Seeds take no time, and 13 fails. Parts are played in this process."""
    played = []

    def run_seed(seed):
        played.append(seed)
        if seed == 13:
            raise AssertionError("I2: twice\n  replay: python -m simulations.simulator.cluster --seed 13 --trace")
        return SimpleNamespace(escalated=seed, false_accepts=seed == 17, log_hash="ab", events=seed)

    monkeypatch.setattr(campaigns, "run_seed", run_seed)
    monkeypatch.setattr(campaigns, "campaign", lambda parts, processes: map(play, parts))
    return played


@pytest.mark.parametrize(
    ("finished", "parts"),
    [
        ([], [(5, 15), (15, 25), (25, 28)]),
        ([(5, 15)], [(15, 25), (25, 28)]),
        ([(15, 25)], [(5, 15), (25, 28)]),
        ([(0, 7), (9, 26), (26, 40)], [(7, 9)]),
        ([(0, 3), (40, 50)], [(5, 15), (15, 25), (25, 28)]),
        ([(0, 30)], []),
    ],
)
def test_missing_seeds_are_played_in_parts_and_once(finished, parts):
    state = State("code", finished)
    assert [(part.start, part.stop) for part in state.missing(5, 28, 10)] == parts


def test_failing_seed_is_reported_with_its_replay_and_the_others_go_on(seeds_played, capsys):
    assert main(["--first", "10", "--last", "20", "--part", "5"]) == 1
    told = capsys.readouterr().out
    assert seeds_played == [*range(10, 20)]
    assert "seed 13 FAILED: I2: twice\n  replay: python -m simulations.simulator.cluster --seed 13 --trace" in told
    assert told.splitlines()[-1].startswith("10 seeds, 1 failed")
    assert "132 blocks escalated, 1 that should have been were taken as they were" in told


def test_one_seed_in_250_is_played_twice_and_reported_if_the_logs_differ(seeds_played, monkeypatch):
    asked = []
    monkeypatch.setattr(campaigns, "elsewhere", lambda seed, salt: asked.append(seed) or "c")
    monkeypatch.setattr(
        campaigns,
        "run_seed",
        lambda seed: SimpleNamespace(escalated=0, false_accepts=0, log_hash="c" if seed == 26 else "d", events=7),
    )
    assert play(range(24, 78)).failed == {} and asked == [26]
    failed = play(range(274, 278)).failed
    assert [*failed] == [276] and failed[276].startswith("I12: seed 276 was played twice, and came out as ['d', 'c']")
    assert "replay: python -m simulations.simulator.cluster --seed 276 --trace" in failed[276]


def test_stopped_campaign_resumes_and_remembers_failures(seeds_played, tmp_path, capsys):
    path = tmp_path / "t1.json"
    begun = State(code())
    begun.take(Part(10, 15, {13: "I2: twice"}, 2.0))
    begun.save(path)
    assert main(["--first", "10", "--last", "22", "--part", "5", "--state", str(path)]) == 1
    assert seeds_played == [*range(15, 22)]
    after = State.load(path, code())
    assert after.finished == [(10, 15), (15, 20), (20, 22)] and after.failed == {13: "I2: twice"} and after.seeds == 12
    assert "5 seeds were played before, 1 failed" in capsys.readouterr().out


def test_state_of_other_code_is_refused(seeds_played, tmp_path, capsys):
    path = tmp_path / "t1.json"
    path.write_text(json.dumps({"code": "other", "finished": [[10, 15]], "failed": {}, "seconds": 1.0}))
    with pytest.raises(SystemExit):
        main(["--first", "10", "--last", "20", "--state", str(path)])
    assert "was written by other code" in capsys.readouterr().err and seeds_played == []


@pytest.mark.long
def test_real_seeds_in_processes_of_their_own():
    parts = sorted(campaigns.campaign([range(3, 4), range(9, 10)], 2), key=lambda part: part.first)
    assert [(part.first, part.last, part.failed) for part in parts] == [(3, 4, {}), (9, 10, {})]
    assert all(part.seconds > 0 for part in parts)


pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[3]
CONFTEST = ROOT / "tests" / "conftest.py"
TESTS = """
import pytest

@pytest.mark.campaign("T10")
@pytest.mark.parametrize("seconds", [1.5, 0.25])
def test_shown(seconds, record_property):
    record_property("seconds until back", seconds)
    record_property("verdict", "fine")

@pytest.mark.campaign("T2")
@pytest.mark.parametrize("events", [1000, 2000])
def test_added(events, record_property):
    sum(range(1_000_000))
    record_property("events", events)

@pytest.mark.campaign("T2")
def test_that_fails():
    assert False

def test_of_none(record_property):
    record_property("events", 5)
"""


@pytest.fixture
def path(monkeypatch):
    """The modules of tests and simulations are found in another folder, too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize(
    "processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.long)], ids=["one process", "two"]
)
def test_line_a_campaign_with_its_tests_seconds_and_figures(pytester, path, processes):
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-q", "--strict-markers", "-p", "no:cacheprovider", *processes)
    result.assert_outcomes(passed=5, failed=1)
    lines = result.stdout.lines
    second, tenth = (next(line.split() for line in lines if line.startswith(name)) for name in ("T2 ", "T10 "))
    assert second[1:3] == ["3", "tests"] and second[4] == "s" and second[6:10] == ["s", "of", "a", "core"]
    assert float(second[5]) >= 0.0 and " ".join(second[10:12]) == "3,000 events"
    assert " ".join(tenth[10:]) == "seconds until back 0.25 to 1.5; verdict: fine"
    assert [line.split()[0] for line in lines if line.startswith("T")] == ["T2", "T10"]


def test_suite_without_a_campaign_prints_no_summary(pytester, path):
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile("def test_of_none(): pass")
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    assert not any("campaigns" in line for line in result.stdout.lines)
