"""Every optimizer that is installed goes on from `peer.save` as if uninterrupted, or is refused.

Torchao's compile their steps, which takes minutes. Their rows are in `simulations/results/optimizers.md`.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.errors import DataError
from gossipdp.training.attachment import Attachment

pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from simulations.optimizers.catalogue import Kind, closure_of, every
from simulations.optimizers.problem import loss_of, model
from simulations.optimizers.trial import by_itself, gone_on, process_group

# fmt: off
REFUSED: Final = {
    "AdaShift", "AggMo", "Conda", "DASH", "EmoFact", "EmoLynx", "EmoNavi", "FriendlySAM", "GSAM", "Kron", "LBFGS",
    "LookSAM", "Ranger21", "SOAP", "SPAM", "SPlus", "ScalableShampoo", "ScheduleFreeWrapper",
    "ScheduleFreeWrapperReference", "StableSPAM", "TRAC", "WSAM",
}
# fmt: on
"""optimizers whose state has no names, or is kept by another object"""
PARTLY: Final = {
    "AdaLOMO": "steps in its own backward pass, so the model is attached alone",
    "Lookahead": "keeps more than the optimizer inside, which is attached",
    "Magma": "keeps more than the optimizer inside, which is attached",
    "SafeFP16Optimizer": "keeps more than the optimizer inside, which is attached",
}
"""optimizers whose own `state_dict` must be saved too, and why"""
ROUNDS: Final = {"LoRARite": "keeps transposed tensors, and its sums then round otherwise"}
ELSEWHERE: Final = {"BSAM": "does not step on two parameters"}
"""optimizers that do not step here, and why"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in every() if kind.library != "torchao"], ids=lambda kind: kind.key)
def test_an_optimizer_goes_on_as_if_uninterrupted_or_is_refused(kind: Kind, tmp_path: Path) -> None:
    if kind.name == "DeMo":
        pytest.importorskip("einops", reason="DeMo needs einops, which is not installed")
    with process_group(kind):
        if kind.name in ELSEWHERE:
            with pytest.raises(RuntimeError):
                gone_on(kind, tmp_path / "state")
        elif kind.name in REFUSED:
            with pytest.raises(DataError, match="GD-610"):
                gone_on(kind, tmp_path / "state")
        elif kind.name in PARTLY:
            assert gone_on(kind, tmp_path / "state") > 1e-4
            assert gone_on(kind, tmp_path / "state", by_itself) == 0.0
        else:
            assert gone_on(kind, tmp_path / "state") <= (1e-4 if kind.name in ROUNDS else 1e-6)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    closure_of(optimizer, loss_of(net, 0, seed))()
    optimizer.step()


def by_file(peer: Attachment, loaded: Attachment, path: Path) -> None:
    peer.save(path)
    loaded.load(path)


def by_shards(peer: Attachment, loaded: Attachment, *_: object) -> None:
    """As `torch.distributed.checkpoint.load`, which reads the names that the new state has."""
    saved, wanted = peer.state_dict(sharded=True), loaded.state_dict(sharded=True)
    loaded.load_state_dict({name: saved[name].clone() for name in wanted})


class Drifts(torch.optim.SGD):
    """Its step changes entries of the group: a count, a tensor in place, and from the third step on the rate."""

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        group["step"] = group.get("step", 0) + 1
        group.setdefault("sum", torch.zeros(1)).add_(0.1)
        if group["step"] > 2:
            group["rate"] = group.get("rate", 1.0) * 0.5
        for each in group["params"]:
            each.grad.mul_(group.get("rate", 1.0)).add_(group["sum"])
        return super().step(closure)


def test_what_a_step_changes_is_kept_and_what_a_scheduler_changes_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    net = model(0)
    optimizer = Drifts(net.parameters(), lr=0.1)
    peer = gossipdp.attach(net, optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for seed in range(3):
        step(net, optimizer, seed)
        scheduler.step()
    again = model(0)
    resumed = Drifts(again.parameters(), lr=0.3)
    loaded = gossipdp.attach(again, resumed)
    by_file(peer, loaded, tmp_path / "state")
    group, kept = resumed.param_groups[0], optimizer.param_groups[0]
    assert group["lr"] == 0.3
    assert (group["step"], group["rate"]) == (kept["step"], kept["rate"]) == (3, 0.5)
    assert torch.equal(group["sum"], kept["sum"]) and "initial_lr" not in group
    loaded.save(tmp_path / "next")  # before a step: what was loaded is state, too
    other = Drifts(again.parameters(), lr=0.3)
    gossipdp.attach(again, other).load(tmp_path / "next")
    assert other.param_groups[0]["rate"] == 0.5


def test_groups_that_were_parted_otherwise_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    net, again = model(0), model(0)
    groups = [{"params": [each]} for each in net.parameters()]  # whose counts differ
    peer = gossipdp.attach(net, optimizer := Drifts(groups, lr=0.1))
    step(net, optimizer, 0)
    loaded = gossipdp.attach(again, Drifts(again.parameters(), lr=0.1))
    optimizer.param_groups[1]["step"], optimizer.param_groups[1]["sum"] = 7, torch.full((1,), 0.1)
    with pytest.raises(DataError, match=r"GD-608[\s\S]*share step here"):
        by_file(peer, loaded, tmp_path / "state")


class Drifting(Kind):
    @property
    def cls(self) -> Any:
        return Drifts


def test_a_sharded_state_that_a_new_optimizer_cannot_ask_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"GD-610[\s\S]*Drifts: its first step does not change rate"):
        gone_on(Drifting("torch", "Drifts"), tmp_path, by_shards)
    assert gone_on(Kind("pytorch_optimizer", "AdaBelief"), tmp_path, by_shards) <= 1e-6


def test_state_that_another_object_keeps_for_the_optimizer_is_refused_when_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a schedule-free wrapper of SGD. Plain SGD makes no state, so `peer.load` would refuse the file."""
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    net = model(0)
    peer = gossipdp.attach(net, optimizer := torch.optim.SGD(net.parameters(), lr=0.1))
    step(net, optimizer, 0)
    assert peer.save(tmp_path / "state")
    for each in net.parameters():
        optimizer.state[each]["z"] = each.detach().clone()
    with pytest.raises(DataError, match=r"GD-610[\s\S]*SGD: its first step keeps no state of 2.weight, but there is z"):
        peer.save(tmp_path / "state")
