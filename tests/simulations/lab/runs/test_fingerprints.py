"""A kept answer depends on the code that gives it, and on no other code."""

from __future__ import annotations

import pytest

from simulations.lab.runs import fingerprints, runs
from simulations.lab.runs.fingerprints import SourceSnapshot
from simulations.lab.runs.runs import Run, code_of
from tests.simulations.lab.sample_runs import SMALL


def depends(task, module, monkeypatch):
    """Whether a change of this module's text changes the code of the task."""
    parsed = fingerprints._parsed
    before = code_of(task, SourceSnapshot())
    monkeypatch.setattr(
        fingerprints, "_parsed", lambda name: ("other", parsed(name)[1]) if name == module else parsed(name)
    )
    return code_of(task, SourceSnapshot()) != before


@pytest.mark.parametrize(
    ("method", "module"),
    [
        ("demo", "simulations.lab.compressors.dct"),
        ("demo", "simulations.lab.compressors.topk"),
        ("demo", "simulations.lab.compressors.kernels"),
        ("sparseloco", "simulations.lab.compressors.topk"),
        ("sparseloco", "simulations.lab.compressors"),
        ("choco-local", "simulations.lab.compressors.sign"),
        ("diloco", "simulations.lab.baselines"),
        ("local-only", "simulations.lab.baselines.costs"),
        ("diloco", "simulations.lab.runs.registry"),
        ("pairwise", "simulations.lab.runs.registry"),
        ("pairwise", "simulations.lab.methods.pairwise"),
        ("pairwise", "simulations.lab.inner"),
        ("pairwise", "simulations.lab.data"),
        ("pairwise", "gossipdp.codecs.modulo"),
        ("pairwise-churning", "simulations.lab.methods.conditions"),
    ],
)
def test_answer_depends_on_the_code_that_gives_it(method, module, monkeypatch):
    assert depends(Run(setting=SMALL, method=method), module, monkeypatch)


@pytest.mark.parametrize(
    ("method", "module"),
    [
        ("diloco", "simulations.lab.methods.pairwise"),
        ("diloco", "simulations.lab.baselines.gossip"),
        ("diloco", "simulations.lab.compressors.topk"),
        ("sparseloco", "simulations.lab.compressors.sign"),
        ("pairwise", "simulations.lab.baselines.push_sum"),
        ("pairwise", "simulations.lab.compressors.topk"),
        ("pairwise", "gossipdp.training.attach"),
        ("pairwise", "gossipdp.runtime.link"),
        ("pairwise", "peers.jobs.digits"),
        ("pairwise", "simulations.lab.runs.runs"),
    ],
)
def test_answer_does_not_depend_on_other_code(method, module, monkeypatch):
    assert not depends(Run(setting=SMALL, method=method), module, monkeypatch)


def test_answer_depends_on_the_compressor_that_its_options_name(monkeypatch):
    run = Run(setting=SMALL, method="sparseloco", options={"compressor": "sign"})
    assert depends(run, "simulations.lab.compressors.sign", monkeypatch)


def test_answer_depends_on_the_problem_of_its_condition(monkeypatch):
    run = Run(setting=SMALL, problem="started", data={"of": "digits-mlp", "founders": 1, "steps": 1, "lr": 0.1})
    assert depends(run, "simulations.lab.problems", monkeypatch)


@pytest.mark.parametrize("library", [runs.torch, runs.np])
def test_answer_depends_on_the_versions_of_libraries(library, monkeypatch):
    before = code_of(Run(setting=SMALL))
    monkeypatch.setattr(library, "__version__", "0.1")
    assert code_of(Run(setting=SMALL)) != before
