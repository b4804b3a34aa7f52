"""The final files of a home."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from gossipdp.config import Config, Finish
from gossipdp.errors import ConfigError, DataError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage.store import Store
from peers import finished
from peers.final import FinalFiles
from tests.peers.export.models import base_of, meta

ABOUT = {
    "run": "07" * 16,
    "clock": 50,
    "peers": [{"id": "ab", "name": "a"}],
    "this_host": {"rounds": 3, "agrees": True},
}
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Home:
    """A home with one checkpoint."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path, self.store = path, Store(path / "checkpoints")
        schema = Schema.of([("layer.weight", (4, 3), "float32", "parameter")])
        self.checkpoint = self.store.save({"anchor": WEIGHTS.ravel()}, meta(schema.digest.hex()), schema.to_bytes())
        config = replace(Config(), finish=Finish(**settings))
        self.files = FinalFiles(path, config, self.store, supervisor=0)

    def write(self) -> Path:
        return self.files.write(self.checkpoint, ABOUT)


def about_here(where: Path) -> Any:
    """What final.json says of this host alone."""
    return json.loads((where / "final.json").read_text())["this_host"]


@pytest.fixture
def home(tmp_path: Path) -> Callable[..., Home]:
    return lambda **settings: Home(tmp_path / "home", **settings)


def test_model_and_its_description_stand_in_the_home_and_the_checkpoint_stays(home: Callable[..., Home]) -> None:
    here = home()
    where = here.write()
    assert where == here.path / "final"
    assert (load_file(where / "model.safetensors")["layer.weight"] == WEIGHTS).all()
    about = json.loads((where / "final.json").read_text())
    assert about == finished.read_about(here.path)
    here_alone = about.pop("this_host")
    assert about.keys() == {"network", "run", "clock", "peers", "settings"} and about["network"] == "gossipdp"
    assert about["settings"]["exchange.algorithm"] == "pairwise"
    assert here_alone["rounds"] == 3 and here_alone["base"] == "" and here_alone["finished_at"] > 1.7e9
    why = here.store.why_pinned(here.checkpoint) or ""
    assert why.startswith("the final model of the run that finished at 2") and str(where) not in why
    assert sorted(path.name for path in here.path.iterdir()) == ["checkpoints", "final"], "no unfinished folder"


def test_model_that_the_peers_do_not_agree_on_is_kept_and_not_called_final(home: Callable[..., Home]) -> None:
    here = home()
    about = {**ABOUT, "this_host": {"rounds": 3, "agrees": False}}
    for _ in range(2):
        where = here.files.write(here.checkpoint, about)
    assert (
        where == here.path / "not-final" and (load_file(where / "model.safetensors")["layer.weight"] == WEIGHTS).all()
    )
    assert sorted(path.name for path in here.path.iterdir()) == ["checkpoints", "not-final", "not-final-1"]
    assert here.store.why_pinned(here.checkpoint) is None
    finished.check_unfinished(here.path)


def test_on_a_base_the_final_folder_is_a_whole_model(home: Callable[..., Home], tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", {"layer.weight": np.zeros((4, 3), np.float32), "frozen": np.ones(2, np.float32)})
    where = home(base=str(base)).write()
    tensors = load_file(where / "model.safetensors")
    assert (tensors["layer.weight"] == WEIGHTS).all() and set(tensors) == {"layer.weight", "frozen"}
    assert (where / "config.json").exists() and about_here(where)["base"] == str(base)


def test_a_base_of_another_model_costs_the_base_alone(
    home: Callable[..., Home], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = home(base=str(base_of(tmp_path / "base", {"other": np.zeros(3, np.float32)}))).write()
    assert (load_file(where / "model.safetensors")["layer.weight"] == WEIGHTS).all()
    assert about_here(where)["base"] == "" and "GD-301" in caplog.text


def test_a_base_that_is_none_is_refused_before_the_run_ends(home: Callable[..., Home], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="GD-609"):
        home().files.use(str(tmp_path))


def test_earlier_final_files_are_kept_under_another_name(home: Callable[..., Home]) -> None:
    here = home()
    (here.write() / "mark").touch()
    here.write()
    assert (here.path / "final-1" / "mark").exists() and not (here.path / "final" / "mark").exists()
    (here.path / "final" / "mark").touch()
    here.write()
    assert (here.path / "final-2" / "mark").exists()


def test_a_killed_writer_leaves_nothing_that_counts(home: Callable[..., Home]) -> None:
    here = home()
    (here.path / ".unfinished-final").mkdir()
    assert finished.read_about(here.path) is None
    finished.check_unfinished(here.path)
    here.write()
    with pytest.raises(ConfigError, match="GD-323") as refused:
        finished.check_unfinished(here.path)
    assert f"mv {here.path / 'final'} {here.path / 'final-1'}" in refused.value.do


def test_a_full_disk_is_told_and_leaves_no_final_folder(
    home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    here = home()
    monkeypatch.setattr("peers.final.export.export_files", full)
    with pytest.raises(DataError, match="GD-602"):
        here.write()
    assert finished.read_about(here.path) is None


def test_only_the_supervisor_that_started_it_is_told_to_end_training(
    home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    here = home()
    assert not here.files.end_training()
    files = FinalFiles(here.path, Config(), here.store, supervisor=os.getppid())
    assert files.end_training() and told == [(os.getppid(), signal.SIGUSR1)]
    assert not FinalFiles(here.path, Config(), here.store, supervisor=1 + os.getppid()).end_training()
