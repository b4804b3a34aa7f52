"""Fingerprints of code change with the code that runs, and with nothing else."""

import pytest

from simulations.lab.runs import fingerprints
from simulations.lab.runs.fingerprints import SourceSnapshot


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
