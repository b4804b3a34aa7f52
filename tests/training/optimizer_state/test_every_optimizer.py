"""Every optimizer of torch and of pytorch_optimizer goes on from `peer.save` as if uninterrupted, or is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.errors import ConfigError, DataError
from gossipdp.training.attachment import Attachment

pytorch_optimizer = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
Optimizer = torch.optim.Optimizer

BEFORE, AFTER = 7, 5
"""steps before the save, and steps that are compared"""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))


def plain(cls: Any, net: nn.Module) -> Optimizer:
    made: Optimizer = cls(net.parameters(), **OPTIONS.get(cls.__name__, {}))
    return made


def of_model(cls: Any, net: nn.Module) -> Optimizer:
    made: Optimizer = cls(net)
    return made


def in_groups(cls: Any, net: nn.Module) -> Optimizer:
    first, last = net.parameters()
    made: Optimizer = cls([{"params": [first], "use_muon": True}, {"params": [last], "use_muon": False}])
    return made


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "Drifts": {"lr": 0.1},
    "Ranger21": {"num_iterations": 1000},
    "BSAM": {"num_data": 1000},
}
MAKERS: Final[dict[str, Callable[[Any, nn.Module], Optimizer]]] = {
    "AdaGO": in_groups,
    "AdaLOMO": of_model,
    "AdaMuon": in_groups,
    "AdamMini": of_model,
    "DistributedMuon": in_groups,
    "LOMO": of_model,
    "Muon": in_groups,
    "MuonClip": in_groups,
    "NorMuon": in_groups,
}


def every() -> Iterator[Any]:
    for cls in vars(torch.optim).values():
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer:
            yield cls
    yield from map(pytorch_optimizer.load_optimizer, pytorch_optimizer.get_supported_optimizers())


def step(net: nn.Module, optimizer: Optimizer, seed: int) -> None:
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)  # some draw

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss: torch.Tensor = net(data).square().mean()
            loss.backward(create_graph=type(optimizer).__name__ in ("AdaHessian", "SophiaH"))
        if isinstance(optimizer, torch.optim.SparseAdam):
            for each in net.parameters():
                assert each.grad is not None
                each.grad = each.grad.to_sparse()
        return loss

    if type(optimizer).__name__ in ("LBFGS", "AliG", "BSAM"):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def by_file(peer: Attachment, loaded: Attachment, path: Path) -> None:
    peer.save(path)
    loaded.load(path)


def by_shards(peer: Attachment, loaded: Attachment, path: Path) -> None:
    """As `torch.distributed.checkpoint.load`, which reads the names that the new state has."""
    saved, wanted = peer.state_dict(sharded=True), loaded.state_dict(sharded=True)
    loaded.load_state_dict({name: saved[name].clone() for name in wanted})


def gone_on(cls: Any, path: Path, load: Callable[[Attachment, Attachment, Path], None] = by_file) -> float:
    """Largest difference between a training and the one that goes on from its state, relative to the weights."""
    make = (MAKERS if cls.__module__.startswith("pytorch_optimizer") else {}).get(cls.__name__, plain)
    net = model()
    optimizer = make(cls, net)
    peer = gossipdp.attach(net, optimizer)
    for seed in range(BEFORE):
        step(net, optimizer, seed)
    again = model()
    again.load_state_dict(net.state_dict())
    resumed = make(cls, again)
    loaded = gossipdp.attach(again, resumed)
    load(peer, loaded, path)
    for seed in range(BEFORE, BEFORE + AFTER):
        step(net, optimizer, seed)
        step(again, resumed, seed)
    peer.detach()
    loaded.detach()
    one, other = (nn.utils.parameters_to_vector(each.parameters()).detach() for each in (net, again))
    return float((one - other).abs().max() / one.abs().max())


# fmt: off
REFUSED: Final = {
    "AdaShift", "AggMo", "Conda", "DASH", "EmoFact", "EmoLynx", "EmoNavi", "Kron", "LBFGS", "Ranger21", "SOAP", "SPAM",
    "SPlus", "ScalableShampoo", "StableSPAM",
}
# fmt: on
"""optimizers whose state has no names"""
ELSEWHERE: Final = {
    "AdaLOMO": "steps in its own backward pass",
    "BSAM": "does not step on two parameters",
    "DeMo": "needs einops",
    "DistributedMuon": "needs a process group",
    "LOMO": "steps in its own backward pass",
    "Magma": "has not all hooks (GD-317)",
}
"""optimizers that do not step here, and why"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "cls", dict.fromkeys(every()), ids=lambda cls: f"{cls.__module__.partition('.')[0]}-{cls.__name__}"
)
def test_an_optimizer_goes_on_as_if_uninterrupted_or_is_refused(
    cls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    if cls.__name__ in ELSEWHERE:
        with pytest.raises((NotImplementedError, RuntimeError, ImportError, ValueError, ConfigError)):
            gone_on(cls, tmp_path / "state")
    elif cls.__name__ in REFUSED:
        with pytest.raises(DataError, match=f"GD-610[\\s\\S]*{cls.__name__}"):
            gone_on(cls, tmp_path / "state")
    else:
        assert gone_on(cls, tmp_path / "state") <= 1e-6


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
    net = model()
    optimizer = Drifts(net.parameters(), lr=0.1)
    peer = gossipdp.attach(net, optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for seed in range(3):
        step(net, optimizer, seed)
        scheduler.step()
    again = model()
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
    net, again = model(), model()
    groups = [{"params": [each]} for each in net.parameters()]  # whose counts differ
    peer = gossipdp.attach(net, optimizer := Drifts(groups, lr=0.1))
    step(net, optimizer, 0)
    loaded = gossipdp.attach(again, Drifts(again.parameters(), lr=0.1))
    optimizer.param_groups[1]["step"], optimizer.param_groups[1]["sum"] = 7, torch.full((1,), 0.1)
    with pytest.raises(DataError, match=r"GD-608[\s\S]*share step here"):
        by_file(peer, loaded, tmp_path / "state")


def test_a_sharded_state_that_a_new_optimizer_cannot_ask_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    with pytest.raises(DataError, match=r"GD-610[\s\S]*Drifts: its first step does not change rate"):
        gone_on(Drifts, tmp_path, by_shards)
    assert gone_on(pytorch_optimizer.AdaBelief, tmp_path, by_shards) <= 1e-6
