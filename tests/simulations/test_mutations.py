"""The mutations still fit the code they break: each replaces text that stands once, and leaves valid Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simulations.mutations import MUTATIONS, ROOT, Stage, apply, campaign


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


def test_tree_that_fails_unbroken_is_no_judge() -> None:
    failing = Stage("units", ("-c", "raise SystemExit('FAILED: it was so before')"), 60.0)
    with pytest.raises(SystemExit, match="unbroken tree fails in units: FAILED: it was so before"):
        campaign(MUTATIONS[:1], [failing], jobs=1)


def test_first_stage_that_sees_a_mistake_has_caught_it__one_that_none_sees_survives() -> None:
    looks = f"from pathlib import Path; assert {MUTATIONS[0].old!r} in Path({MUTATIONS[0].path!r}).read_text()"
    stages = [Stage("blind", ("-c", "pass"), 60.0), Stage("seeing", ("-c", looks), 60.0)]
    assert [caught.stage for caught in campaign(MUTATIONS[:1], stages, jobs=1)] == ["seeing"]
    assert [caught.stage for caught in campaign(MUTATIONS[:1], stages[:1], jobs=1)] == [""]
