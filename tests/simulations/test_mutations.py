"""The mutations still fit the code they break: each replaces text that stands once, and leaves valid Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simulations.mutation_table import MUTATIONS, TESTS, Mutation
from simulations.mutations import ROOT, STAGES, Stage, apply, campaign, order


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_fits_its_file(mutation, tmp_path: Path) -> None:
    broken = tmp_path / mutation.path
    broken.parent.mkdir(parents=True)
    broken.write_text((ROOT / mutation.path).read_text())
    before = apply(mutation, tmp_path)
    assert broken.read_text() != before
    ast.parse(broken.read_text())


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
