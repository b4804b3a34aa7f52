"""The mutations still fit the code they break: each replaces text that stands once, and leaves valid Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simulations.mutations import MUTATIONS, ROOT, apply


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
