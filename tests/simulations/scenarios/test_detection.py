"""Lifeguard against plain SWIM at reduced size (campaign T6)."""

import math
from dataclasses import replace
from statistics import median

import pytest

from simulations.scenarios.detection import __main__ as command
from simulations.scenarios.detection.experiment import FEWER, LATE, MEDIAN, OF_FEW, Detection, Pool, percentile, run
from simulations.scenarios.detection.report import pooled_detection_report

SEEDS = range(1, 7)  # two seeds have eight deaths, whose median varies from 9 to 21 s
SMALL = {"peers": 48, "starved": 6, "killed": 4, "seconds": 120.0}


@pytest.fixture(scope="module")
def outcomes():
    return {lifeguard: [run(seed, lifeguard=lifeguard, **SMALL) for seed in SEEDS] for lifeguard in (True, False)}


@pytest.mark.long
@pytest.mark.campaign("T6")
def test_lifeguard_has_a_tenth_of_the_false_failures_of_plain_swim(outcomes):
    ours, plain = (sum(outcome.false_failures for outcome in outcomes[which]) for which in (True, False))
    assert plain >= 10 and 10 * ours <= plain, (ours, plain)
    assert all(outcome.blocked > 0.5 for which in outcomes.values() for outcome in which)


@pytest.mark.long
@pytest.mark.campaign("T6")
def test_both_protocols_find_all_deaths_in_time(outcomes):
    for which in outcomes.values():
        times = [time for outcome in which for time in outcome.times]
        assert len(times) == len(SEEDS) * 4 * (48 - 6 - 4) and min(times) > 2.0
        assert median(times) <= 15.0 and percentile(times, 0.99) <= 60.0 and max(times) < math.inf


@pytest.mark.long
def test_same_seed_comes_out_the_same(outcomes):
    again = run(1, lifeguard=True, **SMALL)
    first = outcomes[True][0]
    assert replace(again, wall=0.0) == replace(first, wall=0.0)
    assert replace(outcomes[True][1], wall=0.0) != replace(first, wall=0.0)


def test_without_starvation_neither_protocol_has_false_failures():
    for lifeguard in (True, False):
        outcome = run(3, 24, lifeguard, "lan", starved=0, killed=2, seconds=30.0)
        assert outcome.false_failures == outcome.starved_failures == 0 and outcome.blocked == 0.0
        assert len(outcome.times) == 2 * 22 and max(outcome.times) < math.inf


@pytest.mark.campaign("T6")
@pytest.mark.long
def test_twenty_seeds_of_128_meet_the_marks_together(record_property):
    ours, plain = (Pool.of([run(seed, lifeguard=lifeguard) for seed in range(20)]) for lifeguard in (True, False))
    record_property("events", ours.events + plain.events)
    record_property("false failures", f"{ours.false_failures} against {plain.false_failures} of plain SWIM")
    record_property("known after", f"{ours.median:.1f} s (99 %: {ours.late:.1f} s)")
    assert FEWER * ours.false_failures <= plain.false_failures
    assert ours.median <= MEDIAN and ours.late <= LATE


def outcome(seed, lifeguard, wrongs, times):
    """A made-up run."""
    return Detection(seed, 128, lifeguard, "wan", wrongs, wrongs, 5, (min(times),), tuple(times), 0.9, 1000, 1.0)


def reported(seeds, ours, plain, time):
    """A report of `seeds` equal runs."""
    return pooled_detection_report(
        {which: [outcome(seed, which, wrongs, [time, 2 * time, 2 * time]) for seed in range(seeds)]
         for which, wrongs in ((True, ours), (False, plain))}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seeds", "ours", "plain", "time", "missed"),
    [
        (4, 0, 100, 7.0, []),
        (4, 2, 100, 7.0, []),
        (4, 3, 100, 7.0, ["false failures"]),
        (4, 0, 100, 8.0, ["median"]),
        (1, 0, 100, 8.0, []),  # 16 s: too late for many seeds, not for one
        (1, 0, 100, OF_FEW / 2 + 0.1, ["median"]),
        (4, 0, 100, LATE / 2 + 0.1, ["median", "99 %"]),
    ],
)
def test_marks_are_for_many_seeds_and_few_seeds_get_a_wider_median(seeds, ours, plain, time, missed):
    report = reported(seeds, ours, plain, time)
    told = [check.name for check in report.findings.checks if not check.passed]
    assert len(told) == len(missed) and all(words in name for words, name in zip(missed, told, strict=True)), told
    assert report.of == f"detection, {'seeds 0 to 3' if seeds == 4 else 'seed 0'}, 128 peers"
    wrongs = report.findings.panels[0]
    assert {name: values[0] for name, (_, values) in wrongs.lines.items()} == {
        "Lifeguard": seeds * ours,
        "plain SWIM": seeds * plain,
    }


def test_missed_mark_is_the_exit_status(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "run", lambda seed, peers, lifeguard, *_, **__: outcome(seed, lifeguard, 9, [3.0]))
    picture = tmp_path / "deep" / "detection.png"
    assert command.main(["--seeds", "2", "--picture", str(picture)]) == 1
    assert "false failures: 18 against 18, 1/1" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_percentile_is_one_of_the_values(share, value):
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_without_killed_members_no_time_is_missed(capsys):
    """None starved and none killed: 0 is a number, not the default."""
    words = ["--seeds", "1", "--peers", "8", "--preset", "local", "--starved", "0", "--killed", "0"]
    assert command.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "false failures: 0 against 0"


@pytest.mark.long
def test_table_has_a_line_a_run_and_a_summary(capsys):
    assert command.main(["--seeds", "1", "--peers", "16", "--preset", "local", "--starved", "2", "--killed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[-1].startswith("false failures: ")
    assert [line.split()[0] for line in lines[1:5]] == ["lifeguard", "plain", "lifeguard", "plain"]
