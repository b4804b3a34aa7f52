"""The mutations still fit the code they break: each replaces text that stands once, and leaves valid Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.mutation_table import MUTATIONS, TESTS, Mutation
from simulations.mutations import (
    NOT_RUN,
    ROOT,
    STAGES,
    TABLE_BEGINS,
    TABLE_ENDS,
    Caught,
    Stage,
    apply,
    campaign,
    order,
    rows_of,
    simulated,
    table,
)
from simulations.reached import read, stands_in


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_fits_its_file(mutation, tmp_path: Path) -> None:
    broken = tmp_path / mutation.path
    broken.parent.mkdir(parents=True)
    broken.write_text((ROOT / mutation.path).read_text())
    before = apply(mutation, tmp_path)
    assert broken.read_text() != before
    ast.parse(broken.read_text())


def test_list_in_the_readme_has_each_mutation__caught_by_a_stage_and_by_tests_that_there_are() -> None:
    text = (ROOT / "simulations" / "README.md").read_text().split(TABLE_BEGINS)[1].split(TABLE_ENDS)[0]
    rows = rows_of(text)
    assert list(rows) == [mutation.name for mutation in MUTATIONS]
    assert {name for name, (_, _, stage, *_) in rows.items() if stage not in {stage.name for stage in STAGES}} == set()
    for name, (_, mistake, _, evidence, _) in rows.items():
        assert mistake == next(mutation.mistake for mutation in MUTATIONS if mutation.name == name)
        if cited := re.match(r"`FAILED (tests/\S+?\.py)::(\w+)", evidence):
            assert f"def {cited[2]}" in (ROOT / cited[1]).read_text(), f"{name} cites {cited[0]}"


def test_results_are_put_into_the_list_as_it_was() -> None:
    first, second = MUTATIONS[:2]
    old = f"| a | b |\n|---|---|\n| {second.name} | once | units | `a \\| b` |\n| gone | no | units | `c` |"
    new = rows_of(table(old, [Caught(first, "units", "d | e", 1.0)], simulated=False))
    assert new[first.name] == [first.name, first.mistake, "units", "`d \\| e`", "?"]
    assert new[second.name] == [second.name, second.mistake, "units", "`a \\| b`", "?"]
    assert list(new) == [mutation.name for mutation in MUTATIONS]
    both = [Caught(first, "", "survived", 1.0), Caught(second, "seeds", "seed 3 FAILED: I2", 1.0)]
    newer = rows_of(table(table(old, [], simulated=False), both, simulated=True))
    assert [newer[each.name][4] for each in (first, second)] == ["-", "`seed 3 FAILED: I2`"]
    unplayed = table(old, [Caught(first, "", NOT_RUN, 0.0)], simulated=True)
    assert rows_of(unplayed)[first.name][4] == NOT_RUN


def test_names_are_unique_and_say_what_was_mistaken() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 30
    assert all(mutation.mistake for mutation in MUTATIONS)


@pytest.mark.parametrize("first", sorted({*TESTS.values(), *(mutation.first for mutation in MUTATIONS)}))
def test_where_a_mistake_is_looked_for_first_is_a_stage_or_part_of_one(first: str) -> None:
    path, _, test = first.partition("::")
    assert first in {stage.name for stage in STAGES} or f"def {test}" in (ROOT / path).read_text()
    anywhere = Mutation("any", "any", "any.py", "", "", first)
    narrow, *rest = order(anywhere, STAGES)
    assert set(STAGES) <= {narrow, *rest} and (narrow.name == first or first in narrow.words)


def test_part_of_a_stage_is_looked_at_first_with_the_stages_own_options_and_then_all_stages() -> None:
    slow = Stage("slow", ("-c", "pass"), 9.0)
    fast = Stage("fast", ("-m", "pytest", "-x", "tests/a", "tests/b", "-k", "not c"), 7.0)
    part = Stage("fast", ("-m", "pytest", "-x", "-k", "not c", "tests/b/test_d.py"), 7.0)
    cases = {
        "tests/b/test_d.py": [part, slow, fast],
        "fast": [fast, slow],
        "slow": [slow, fast],
        "tests/bb/test_d.py": [slow, fast],
        "": [slow, fast],
    }
    for first, stages in cases.items():
        assert order(Mutation("any", "any", "any.py", "", "", first), [slow, fast]) == stages


def test_tree_that_fails_unbroken_is_no_judge() -> None:
    failing = Stage("units", ("-c", "raise SystemExit('FAILED: it was so before')"), 60.0)
    with pytest.raises(SystemExit, match="unbroken tree fails in units: FAILED: it was so before"):
        campaign(MUTATIONS[:1], [failing], jobs=1)


def test_first_stage_that_sees_a_mistake_has_caught_it__one_that_none_sees_survives() -> None:
    looks = f"from pathlib import Path; assert {MUTATIONS[0].old!r} in Path({MUTATIONS[0].path!r}).read_text()"
    stages = [Stage("blind", ("-c", "pass"), 60.0), Stage("seeing", ("-c", looks), 60.0)]
    assert [caught.stage for caught in campaign(MUTATIONS[:1], stages, jobs=1)] == ["seeing"]
    assert [caught.stage for caught in campaign(MUTATIONS[:1], stages[:1], jobs=1)] == [""]


def test_evidence_is_what_the_tests_sum_up_and_not_a_word_of_their_own() -> None:
    told = "    peer.see(State.FAILED)\\nE   AssertionError: no\\nFAILED tests/a.py::test_b - no\\n1 failed"
    looks = f"import sys; from pathlib import Path; print('{told}'); sys.exit({MUTATIONS[0].old!r} not in "
    stage = Stage("units", ("-c", f"{looks}Path({MUTATIONS[0].path!r}).read_text())"), 60.0)
    [caught] = campaign(MUTATIONS[:1], [stage], jobs=1)
    assert caught.evidence == "FAILED tests/a.py::test_b - no"


LISTING = Stage("listing", ("-m", "simulations.mutations", "--list"), 60.0)


def test_run_says_which_functions_it_has_called(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "simulations.reached", str(tmp_path / "called"), *LISTING.words[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert MUTATIONS[0].mistake in done.stdout
    called = read(tmp_path / "called")
    lines = (ROOT / "simulations" / "mutations.py").read_text().splitlines()
    assert ("simulations/mutations.py", lines.index("def main() -> int:") + 1) in called
    assert ("simulations/mutations.py", lines.index("def copy_of_tree(where: Path) -> Path:") + 1) not in called


def test_mistake_may_matter_if_its_function_is_called_or_if_nobody_could_tell(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "X = 1\n\n\ndef one():\n    def inner():\n        return 2\n\n    return inner\n\n\n"
        "@njit\ndef fast():\n    return 3\n\n\n@cache\ndef slow(by=4):\n    return 5\n"
    )
    one, inner, slow = ("a.py", 4), ("a.py", 5), ("a.py", 16)
    cases = {
        "X = 1": [(set(), True)],  # by import
        "return inner": [(set(), False), ({one}, True), ({inner}, False)],
        "return 2": [({one}, False), ({inner}, True)],
        "return 2\n\n    return inner": [({one}, True), ({inner}, True), ({slow}, False)],
        "return 3": [(set(), True)],  # compiled
        "return 5": [({slow}, True), ({one}, False)],
        "by=4": [(set(), True)],  # by import, too
    }
    for old, told in cases.items():
        for called, expected in told:
            assert stands_in(Mutation("any", "any", "a.py", old, ""), tmp_path, called) == expected, (old, called)


def test_mistake_that_no_stage_runs_is_not_played() -> None:
    [caught] = campaign(MUTATIONS[:1], [LISTING], jobs=1, reached=True)
    assert (caught.stage, caught.evidence) == ("", NOT_RUN)


def test_virtual_time_alone_is_so_many_seeds_of_t1_and_t2_each_to_the_first_failure() -> None:
    seeds, exhaustive = simulated(7)
    assert seeds.name == "seeds" and seeds.words[-3:] == ("--count", "7", "--first-failure")
    assert exhaustive in STAGES and exhaustive.words[-1] == "--first-failure"
