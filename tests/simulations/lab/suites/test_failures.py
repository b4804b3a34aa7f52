"""The suite `failures`: its events are those that its page tells, and all methods see the same."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from simulations.lab.failures.hosts import Hosts
from simulations.lab.suites.base import Outcome, Results
from simulations.lab.suites.failures import CALM, CHURN, CONDITIONS, DIES, PAUSES, SLOW, SUITE, SYNCER, events_of
from tests.simulations.lab.sample_runs import answered, grid_of

SECONDS = 1200.0


def hosts(condition):
    return Hosts(8, grid_of("failures")[0].task.setting.link, events_of(condition))


def away(condition):
    return [SECONDS - hosts(condition).present_seconds(host, 0.0, SECONDS) for host in range(8)]


def test_events_are_those_of_the_page():
    assert sum(away(CALM)) == sum(away(SLOW)) == 0.0
    assert away(DIES) == [0.0] * 5 + [800.0] + [0.0] * 2
    assert away(PAUSES) == [0.0] * 5 + [240.0] + [0.0] * 2
    slowly, well = (hosts(SLOW).transfer((0, host), 900.0, 1e6, 0) - 900.0 for host in (5, 1))
    assert slowly == pytest.approx(10.0 * well)


def test_under_churn_seven_hosts_are_replaced_once_each_and_all_train_at_the_end():
    events = events_of(CHURN)
    assert len({event.host for event in events}) == len(events) == 7
    apart = [after.begin - before.begin for before, after in pairwise(events)]
    assert sum(apart) / 6 == pytest.approx(150.0, abs=10.0)
    assert all(event.end - event.begin == pytest.approx(60.0) for event in events)
    assert max(event.end for event in events) < SECONDS - 30.0


@pytest.mark.parametrize("scale", ["quick", "normal", "full"])
def test_all_methods_of_a_condition_see_the_same_events(scale):
    grid = SUITE.arms(scale)
    assert len({(arm.group, arm.task.setting.events) for arm in grid}) == len(CONDITIONS)
    assert len({arm.task.setting.seconds for arm in grid}) == 1


def test_the_syncer_has_the_events_of_the_host_but_is_replaced_when_it_dies():
    tasks = {(arm.group, arm.label): arm.task for arm in grid_of("failures")}
    away = {}
    for condition in CONDITIONS:
        alone, both = tasks[condition, "Decoupled DiLoCo"], tasks[condition, SYNCER]
        assert (alone == both) is (condition == CALM) and not alone.options["at_syncer"]
        syncer = [replace(event, host=0) for event in both.options["at_syncer"]]
        away[condition] = SECONDS - Hosts(1, both.setting.link, syncer).present_seconds(0, 0.0, SECONDS)
    assert away == {CALM: 0.0, DIES: 60.0, PAUSES: 240.0, SLOW: 0.0, CHURN: 60.0}


def test_the_two_kinds_of_diloco_are_one_run_where_no_host_is_missing():
    tasks = {(arm.group, arm.label): arm.task for arm in grid_of("failures")}
    for condition in CONDITIONS:
        same = tasks[condition, "DiLoCo, waits"] == tasks[condition, "DiLoCo, quorum"]
        assert same is (condition in (CALM, SLOW))


def test_the_first_table_has_finished_models_and_what_a_condition_costs():
    outcomes = []
    for arm in SUITE.arms("quick"):
        answer = answered(arm, 2.0 + 0.25 * (arm.group == DIES), 0)
        answer.result["facts"] |= {"idle": 0.125, "finished": 4.0 + 0.25 * (arm.group == DIES)}
        outcomes.append(Outcome(arm, [answer]))
    first = SUITE.read(Results(outcomes)).tables[0]
    row = dict(zip(first.columns, first.rows[0], strict=True))
    assert row[CALM] == "4.000, idle 12 %" and row[DIES] == "4.250 (+0.250), idle 12 %"


ROOT = Path(__file__).parents[4]
DECOUPLED = ("Decoupled DiLoCo", "Decoupled DiLoCo, its syncer too")
RIVALS = ("DiLoCo, quorum", *DECOUPLED, "DDP, elastic")
METHODS = {"gossipdp": "pairwise", **{name: name for name in RIVALS}}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
def test_a_page_shows_the_figures_of_the_failures_that_were_played(name: str) -> None:
    page = (ROOT / "simulations/results/failures.md").read_text()
    rows = page.split("| method | nothing goes wrong |")[1].split("\n\n")[0].splitlines()
    played = {row[0]: row[1:] for row in map(cells, rows)}
    shown = (ROOT / name).read_text().split("| 20 % churn |\n")[1].split("\n\n")[0].splitlines()[1:]
    for method, *figures in map(cells, shown):
        for figure, told in zip(figures, played[METHODS[method]], strict=True):
            loss, idle = figure.split(", ")
            assert told.startswith(loss) and told.endswith(f"idle {idle}"), (method, figure, told)
    assert [cells(line)[0] for line in shown] == list(METHODS)
