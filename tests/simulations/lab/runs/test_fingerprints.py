"""Fingerprints: a kept answer depends on the code that gives it, and on no other code."""

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
        ("sparseloco", "simulations.lab.baselines.sparse"),
        ("diloco", "simulations.lab.baselines"),
        ("local-only", "simulations.lab.baselines.costs"),
        ("diloco", "simulations.lab.runs.registry"),
        ("pairwise", "simulations.lab.runs.registry"),
        ("pairwise", "simulations.lab.methods.pairwise"),
        ("pairwise", "simulations.lab.inner"),
        ("pairwise", "simulations.lab.data"),
        ("pairwise", "gossipdp.codecs.modulo"),
    ],
)
def test_answer_depends_on_the_code_that_gives_it(method, module, monkeypatch):
    assert depends(Run(setting=SMALL, method=method), module, monkeypatch)


@pytest.mark.parametrize(
    ("method", "module"),
    [
        ("diloco", "simulations.lab.methods.pairwise"),
        ("diloco", "simulations.lab.baselines.sparse"),
        ("pairwise", "simulations.lab.baselines.decoupled"),
        ("pairwise", "simulations.lab.methods.weighted"),
        ("pairwise", "gossipdp.training.attach"),
        ("pairwise", "gossipdp.runtime.link"),
        ("pairwise", "peers.jobs.digits"),
        ("pairwise", "simulations.lab.runs.runs"),
    ],
)
def test_answer_does_not_depend_on_other_code(method, module, monkeypatch):
    assert not depends(Run(setting=SMALL, method=method), module, monkeypatch)


@pytest.mark.parametrize("module", ["simulations.lab.methods.weighted", "simulations.lab.methods.unequal"])
def test_answer_depends_on_its_condition_and_on_the_problem_of_that(module, monkeypatch):
    data, options = {"of": "digits-mlp", "sizes": [1, 4]}, {"weights": [1, 4]}
    run = Run(setting=SMALL, problem="unequal", data=data, method="pairwise-weighted", options=options)
    assert depends(run, module, monkeypatch) and depends(run, "simulations.lab.problems", monkeypatch)


@pytest.mark.parametrize("library", [runs.torch, runs.np])
def test_answer_depends_on_the_versions_of_libraries(library, monkeypatch):
    before = code_of(Run(setting=SMALL))
    monkeypatch.setattr(library, "__version__", "0.1")
    assert code_of(Run(setting=SMALL)) != before


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of three modules; none imports `far`."""
    monkeypatch.setattr(fingerprints, "ROOT", tmp_path)
    folder = tmp_path / "simulations"
    folder.mkdir()
    (folder / "one.py").write_text('"""Says."""\nfrom simulations.two import f\n\n\ndef g():\n    return f()\n')
    (folder / "two.py").write_text("def f():\n    return 1\n")
    (folder / "far.py").write_text("x = 1\n")

    def fresh(modules=("simulations.one",), **options):
        return SourceSnapshot().fingerprint(modules, **options)

    return folder, fresh


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "one.py",
            '"""Says more."""\nfrom simulations.two import f\n\n\n# why\ndef g():\n    """What."""\n    return f()\n',
        ),
        ("far.py", "x = 2\n"),
    ],
)
def test_comments_and_unimported_modules_leave_the_fingerprint(project, name, text):
    folder, fresh = project
    before = fresh()
    (folder / name).write_text(text)
    assert fresh() == before


def test_moved_module_leaves_the_fingerprint(project):
    folder, fresh = project
    before = fresh()
    (folder / "deeper").mkdir()
    (folder / "two.py").rename(folder / "deeper" / "three.py")
    one = folder / "one.py"
    one.write_text(one.read_text().replace("from simulations.two import", "from simulations.deeper.three import"))
    assert fresh() == before


@pytest.mark.parametrize("name", ["one.py", "two.py"])
def test_changed_code_changes_the_fingerprint(project, name):
    folder, fresh = project
    before = fresh()
    (folder / name).write_text((folder / name).read_text().replace("return", "return 2 +"))
    assert fresh() != before


def test_imports_of_shallow_modules_are_left_out(project):
    folder, fresh = project
    before = fresh(shallow="simulations")
    (folder / "two.py").write_text("x = 3\n")
    assert fresh(shallow="simulations") == before


def test_imports_of_texts_are_left_out_unless_imported_elsewhere(project):
    folder, fresh = project
    alone, besides = fresh((), texts=["simulations.one"]), fresh(["simulations.far"], texts=["simulations.one"])
    both = fresh(["simulations.one"], texts=["simulations.one"])
    (folder / "two.py").write_text("x = 3\n")
    assert fresh((), texts=["simulations.one"]) == alone != fresh((), texts=["simulations.far"])
    assert fresh(["simulations.far"], texts=["simulations.one"]) == besides
    assert fresh(["simulations.one"], texts=["simulations.one"]) != both
    (folder / "one.py").write_text("x = 3\n")
    assert fresh((), texts=["simulations.one"]) != alone


def test_snapshot_keeps_what_it_read_first(project):
    folder, fresh = project
    reading = SourceSnapshot()
    before = reading.fingerprint({"simulations.one"})
    (folder / "two.py").write_text("x = 3\n")
    assert reading.fingerprint({"simulations.one"}) == before != fresh()


def test_seeds_depend_on_the_protocol_and_not_on_the_laboratory(monkeypatch):
    read = []
    monkeypatch.setattr(fingerprints, "_path", lambda name, path=fingerprints._path: read.append(name) or path(name))
    SourceSnapshot().fingerprint({"simulations.simulator.cluster"})
    members = "gossipdp.protocol.membership.membership"
    assert {"gossipdp.protocol.peer", members, "simulations.simulator.nemesis"} <= set(read)
    assert not any(name.startswith("simulations.lab.core") for name in read)
