"""`peer.save` and `peer.load`: a script that starts again goes on. Those of several ranks are in `ranks/test_group`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import gossipdp
from gossipdp.errors import DataError
from gossipdp.runtime import link as links
from gossipdp.training.attachment import Attachment
from gossipdp.training.optimizer_state import state_file
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.ledger_pair import ROOT
from tests.training.models import attach, equal, small, train

AdamW = torch.optim.AdamW


def states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values()]


def same(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(states(one), states(other), strict=True))


def test_a_script_that_starts_again_in_its_network_goes_on(daemon: LedgerDaemon, tmp_path: Path) -> None:
    daemon.clock, path = 1000, tmp_path / "new folder" / "state.safetensors"
    model = small()
    optimizer = AdamW(model.parameters())
    peer = attach(daemon, model, optimizer)
    assert peer.load(path, missing_ok=True) is None and peer.steps == 0
    train(model, optimizer, 5, daemon.pump)
    peer.save(path, extra={"epoch": 3, "best": [1.5, None]})
    assert not any(name[:2] == "::" for name in load_file(path)), "the daemon keeps the model"
    with daemon.running():
        peer.detach()

    again = small(seed=1)
    resumed = AdamW(again.parameters(), lr=0.5)
    peer = attach(daemon, again, resumed)
    assert peer.load(path, missing_ok=True) == {"epoch": 3, "best": [1.5, None]}
    assert equal(model, again) and same(optimizer, resumed) and resumed.param_groups[0]["lr"] == 0.5
    assert (peer.steps, peer.clock) == (5, 1005)
    train(again, resumed, 2, daemon.pump)
    assert (peer.steps, peer.clock) == (7, 1007)


def saved_in_a_run(daemon: LedgerDaemon, path: Path) -> torch.optim.Optimizer:
    model = small()
    optimizer = AdamW(model.parameters())
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 5, daemon.pump)
    peer.save(path)
    with daemon.running():
        peer.detach()
    return optimizer


def test_the_state_of_another_run_is_refused_unless_asked_for(daemon: LedgerDaemon, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    trained = saved_in_a_run(daemon, path)
    daemon.run = b"another run"
    model = small(seed=1)
    optimizer = AdamW(model.parameters())
    peer = attach(daemon, model, optimizer)
    with pytest.raises(DataError, match=b"the run".hex()[:6]) as refused:
        peer.load(path)
    assert refused.value.code == "GD-608" and "founded again" in refused.value.do
    assert not optimizer.state and peer.steps == 0
    assert peer.load(path, any_run=True) == {} and same(optimizer, trained) and peer.steps == 5


def test_a_file_without_a_run_is_loaded(daemon: LedgerDaemon, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    trained = saved_in_a_run(daemon, path)
    counts = {"gossipdp": json.dumps({"steps": 5, "samples": 40, "clock": 5}), "extra": "{}"}
    save_file(load_file(path), path, counts)
    model = small(seed=1)
    optimizer = AdamW(model.parameters())
    assert attach(daemon, model, optimizer).load(path) == {} and same(optimizer, trained)


def off(model: nn.Module, optimizer: torch.optim.Optimizer, monkeypatch: pytest.MonkeyPatch) -> Attachment:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    return gossipdp.attach(model, optimizer, samples_per_step=8)


class Tied(nn.Module):
    """Two names of one weight, and a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last, self.norm = nn.Linear(20, 20), nn.Linear(20, 10), nn.BatchNorm1d(20)
        self.middle = nn.Linear(20, 20)
        self.middle.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.middle(self.first(x))).tanh())


def test_without_gossip_the_file_has_the_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = Tied(0), tmp_path / "state.safetensors"
    optimizer = AdamW(whole.parameters())
    train(whole, optimizer, 3)
    train(whole, optimizer, 4, seed=8)

    model = Tied(0)
    peer = off(model, optimizer := AdamW(model.parameters()), monkeypatch)
    train(model, optimizer, 3)
    peer.save(path)
    peer.detach()
    model = Tied(1)
    peer = off(model, optimizer := AdamW(model.parameters()), monkeypatch)
    assert peer.load(path) == {} and (peer.steps, peer.clock, peer.network_samples) == (3, 3, 24)
    train(model, optimizer, 4, seed=8)
    assert equal(whole, model) and peer.clock == 7, "as if it had never been interrupted"


def test_without_gossip_a_file_of_a_network_is_refused(
    daemon: LedgerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    model = small()
    with attach(daemon, model, AdamW(model.parameters())) as peer:
        peer.save(path)
    with pytest.raises(DataError, match="GD-608") as caught:
        off(model, AdamW(model.parameters()), monkeypatch).load(path)
    assert "no model" in caught.value.cause


def test_without_gossip_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, other = tmp_path / "state.safetensors", small(), nn.Linear(2, 2)
    off(model, AdamW(model.parameters()), monkeypatch).save(path)
    with pytest.raises(DataError, match="GD-608"):
        off(other, AdamW(other.parameters()), monkeypatch).load(path)


def test_an_optimizer_without_state_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = small(), tmp_path / "state.safetensors"
    peer = off(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1), monkeypatch)
    train(model, optimizer, 2)
    peer.save(path)
    again = small(1)
    assert off(again, torch.optim.SGD(again.parameters(), lr=0.1), monkeypatch).load(path) == {}
    assert equal(model, again)


def test_files_that_cannot_be_loaded_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = small(), tmp_path / "state.safetensors"
    peer = off(model, optimizer := AdamW(model.parameters()), monkeypatch)
    train(model, optimizer, 1)
    with pytest.raises(DataError, match="GD-604") as caught:
        peer.load(path)
    assert "missing_ok=True" in caught.value.do
    peer.save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", b"\xff" * 100):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="GD-601"):
            peer.load(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(DataError, match=r"GD-601[\s\S]*peer.save did not write it"):
        peer.load(path)
    assert peer.steps == 1


@pytest.mark.parametrize("key", ["gossipdp", "extra"])
def test_file_whose_values_are_nested_too_deep__is_damaged(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = small(), tmp_path / "state.safetensors"
    peer = off(model, AdamW(model.parameters()), monkeypatch)
    sound = {"gossipdp": '{"steps": 1, "samples": 1, "clock": 1}', "extra": "{}"}
    deep = '{"steps": 1, "samples": 1, "clock": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    save_file({"weight": torch.ones(2)}, path, sound | {key: deep})
    with pytest.raises(DataError, match=r"GD-601[\s\S]*nested too deep"):
        peer.load(path)


def test_a_save_that_fails_leaves_the_file_before_it__training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, path = small(), tmp_path / "state.safetensors"
    peer = off(model, AdamW(model.parameters()), monkeypatch)
    assert peer.save(path, extra={"epoch": 1})

    def full(tensors: object, name: str, metadata: dict[str, str]) -> None:
        Path(name).write_bytes(b"half")
        assert json.loads(metadata["extra"]) == {"epoch": 2}
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(state_file, "save_file", full)
        assert not peer.save(path, extra={"epoch": 2})
    assert "GD-602" in caplog.text and "the next save tries again" in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert peer.load(path) == {"epoch": 1}
    with pytest.raises(TypeError):
        peer.save(path, extra={"when": object()})
    assert not peer.save(tmp_path)
    assert peer.save(path, extra={"epoch": 3}) and peer.load(path) == {"epoch": 3}


def test_a_save_that_fails_is_told_the_daemon__it_ends_nothing(daemon: LedgerDaemon, tmp_path: Path) -> None:
    model = small()
    peer = attach(daemon, model, AdamW(model.parameters()))
    assert not peer.save(tmp_path)
    daemon.pump()
    (told,) = [each for each in daemon.events if isinstance(each, links.Told)]
    assert (told.code, told.exit, told.alone) == ("GD-602", 0, False) and str(tmp_path) in told.text


def test_a_network_that_went_back_to_an_older_model_is_told(
    daemon: LedgerDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.clock, path = 500, tmp_path / "state.safetensors"
    model = small()
    with attach(daemon, model, optimizer := AdamW(model.parameters())) as peer:
        train(model, optimizer, 1, daemon.pump)
        peer.save(path)
    daemon.pump()
    daemon.clock = 100
    again = small()
    peer = attach(daemon, again, AdamW(again.parameters()))
    peer.load(path)
    assert peer.clock == 100 and "step 100, older than the saved state of step 501" in caplog.text


@pytest.mark.processes
@pytest.mark.long
def test_ranks_without_gossip_go_on_together_and_hear_the_same_errors(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GOSSIPDP_")}
    kept |= {"GOSSIPDP_OFF": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    script = str(Path(__file__).with_name("host_of_state.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(tmp_path)], env=kept, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    expected = {"extra": {"epoch": 1}, "steps": 5, "equal": True, "codes": ["GD-604", "GD-601"]}
    for rank in range(2):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text()) == {"ddp": expected, "fsdp": expected}
