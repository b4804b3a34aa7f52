"""Robust aggregates have the same bits on every processor, and for chunks in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gossipdp.algorithms.epidemic.robust import RULES, Distances, plan
from tests.algorithms.epidemic.rows import digest, normal

GOLDEN = "32d6b340c4ee9c5d"


def test_bits_are_those_of_any_other_processor():
    assert digest() == GOLDEN


def test_bits_are_the_same_without_the_vector_instructions_of_this_processor():
    from numpy._core import _multiarray_umath as umath

    had = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(had), "OMP_NUM_THREADS": "1"}
    path = [str(Path(__file__).resolve().parents[3]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    program = (
        "from tests.algorithms.epidemic.rows import digest\n"
        "from numpy._core import _multiarray_umath as umath\n"
        "assert not any(umath.__cpu_features__[name] for name in umath.__cpu_dispatch__)\n"
        "print(digest())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN


@pytest.mark.parametrize("name", RULES)
def test_second_pass_gives_the_same_result_for_other_chunks(name):
    rows = normal(13, 10, 5000)
    whole = Distances(10)
    whole.add(rows)
    decided = plan(RULES[name], whole, [1.0, 2.0] * 5)
    pieces = [decided.combine(rows[:, start : start + 777]) for start in range(0, 5000, 777)]
    assert np.array_equal(np.concatenate(pieces), decided.combine(rows))


def test_distances_are_those_of_whole_vectors():
    rows = normal(14, 6, 10_000)
    distances = Distances(6)
    for start in range(0, 10_000, 4097):
        distances.add(rows[:, start : start + 4097])
    wide = rows.astype(np.float64)
    expected = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances.squared, expected, rtol=1e-13)
    assert np.array_equal(distances.squared, distances.squared.T)
