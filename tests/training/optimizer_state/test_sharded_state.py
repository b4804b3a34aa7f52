"""peer.state_dict(sharded=True): saved by torch.distributed.checkpoint, loaded in groups of other sizes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import gossipdp
from tests.training.optimizer_state.shards import CHECKPOINT, model_and_optimizer, train

ROOT = Path(__file__).parents[3]


def run(folder: Path, ranks: int, verb: str) -> dict[str, torch.Tensor]:
    """Let `ranks` processes save or load. Returns the whole state that they had then."""
    script = str(Path(__file__).with_name("host_of_shards.py"))
    environment = {**os.environ, "GOSSIPDP_OFF": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, script, str(rank), str(ranks), str(folder), verb], env=environment)
        for rank in range(ranks)
    ]
    assert [process.wait() for process in processes] == [0] * ranks
    return load_file(folder / f"{verb}.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
def test_async_save_of_two_ranks_is_loaded_by_three(tmp_path: Path) -> None:
    saved = run(tmp_path, 2, "save")
    assert same(run(tmp_path, 3, "load"), saved)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_async_save_of_two_ranks_is_loaded_by_them_and_by_a_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = run(tmp_path, 2, "save")
    assert saved["0.weight::exp_avg"].shape == (7, 5) and saved["0.weight::step"] == 3
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    model, optimizer = model_and_optimizer(lambda _: None)
    peer = gossipdp.attach(model, optimizer)
    state = peer.state_dict(sharded=True)
    dcp.load(state, checkpoint_id=tmp_path / CHECKPOINT)
    peer.load_state_dict(state)
    assert same(peer.state_dict(), saved)
    peer.detach()


class Numbers(torch.optim.SGD):
    """Keeps a Python number."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
        return super().step(closure)


def test_names_are_the_same_before_and_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    model, _ = model_and_optimizer(lambda _: None)
    optimizer = Numbers(model.parameters(), lr=0.1, momentum=0.9)
    peer = gossipdp.attach(model, optimizer)
    before = {name: (value.shape, value.dtype) for name, value in peer.state_dict(sharded=True).items()}
    assert not optimizer.state and peer.steps == 0
    train(model, optimizer, 2)
    state = peer.state_dict(sharded=True)
    assert {name: (value.shape, value.dtype) for name, value in state.items()} == before
    assert state["2.bias::count"] == 2 and state["2.bias::momentum_buffer"].any()
    optimizer.state.clear()
    peer.load_state_dict(state)
    assert optimizer.state[model[2].bias]["count"] == 2
    peer.detach()
