"""Models that are compiled, wrapped or trained in part: what is exchanged, and under which names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import gossipdp
from gossipdp.runtime import link as links
from gossipdp.training.tensors.schema import exchanged
from tests.training.gpt2_models import checkpoint_of, gpt2, logits
from tests.training.ledger_daemon import PumpedDaemon


@pytest.fixture
def daemon(pumped: PumpedDaemon) -> PumpedDaemon:
    return pumped


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def names(of: nn.Module) -> list[str]:
    return [entry.name for entry in exchanged(of)[0].entries]


def handed_over(daemon: PumpedDaemon) -> int:
    daemon.pump()
    return sum(event.steps for event in daemon.events if isinstance(event, links.Submitted))


def compiled(of: nn.Module) -> Any:
    return torch.compile(of, backend="eager")


# -- compiled ---------------------------------------------------------------------------------------------------


def _before(network: Any, optimizer: Any) -> tuple[Any, Any, Any]:
    run = compiled(network)
    return gossipdp.attach(run, optimizer), run, optimizer.step


def _after(network: Any, optimizer: Any) -> tuple[Any, Any, Any]:
    return gossipdp.attach(network, optimizer), compiled(network), optimizer.step


def _in_place(network: Any, optimizer: Any) -> tuple[Any, Any, Any]:
    network.compile(backend="eager")
    return gossipdp.attach(network, optimizer), network, optimizer.step


def _a_part(network: Any, optimizer: Any) -> tuple[Any, Any, Any]:
    network[0] = compiled(network[0])
    return gossipdp.attach(network, optimizer), network, optimizer.step


def _the_step(network: Any, optimizer: Any) -> tuple[Any, Any, Any]:
    peer = gossipdp.attach(network, optimizer)
    return peer, network, torch.compile(optimizer.step, backend="eager")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # what torch itself uses
@pytest.mark.parametrize("begin", [_before, _after, _in_place, _a_part, _the_step])
def test_what_is_compiled_trains_as_what_is_not(
    daemon: PumpedDaemon, begin: Callable[..., tuple[Any, Any, Any]]
) -> None:
    inputs, found = torch.linspace(-1, 1, 12).view(3, 4), []
    for prepare in (lambda network, optimizer: (None, network, optimizer.step), begin):
        network = model()
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
        peer, run, step = prepare(network, optimizer)
        for _ in range(5):
            run(inputs).square().sum().backward()
            step()
            optimizer.zero_grad()
        found.append([parameter.detach().clone() for parameter in network.parameters()])
    assert peer.steps == 5
    peer.load_state_dict(peer.state_dict())
    peer.detach()
    assert handed_over(daemon) == 5
    assert daemon.schema == exchanged(model())[0], "names know nothing of it: compiled and eager peers exchange"
    # A compiled AdamW counts its steps in a tensor, and rounds otherwise.
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*found, strict=True))


def test_parts_that_are_recomputed_have_the_names_they_would_have() -> None:
    network = model()
    network[0] = checkpoint_wrapper(network[0])
    assert "_checkpoint_wrapped_module" in dict(network.named_parameters()).__repr__()
    assert names(network) == names(model())


# -- wrapped ----------------------------------------------------------------------------------------------------


def test_data_parallel_is_trained_as_its_module(daemon: PumpedDaemon) -> None:
    network = model()
    wrapped = nn.DataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with gossipdp.attach(wrapped, optimizer) as peer:
        for _ in range(4):
            wrapped(torch.ones(6, 4)).sum().backward()
            optimizer.step()
    assert peer.steps == 4 and handed_over(daemon) == 4
    assert names(wrapped) == names(network) == [entry.name for entry in daemon.schema.entries]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore")  # those of the framework are its own affair
@pytest.mark.parametrize("prepare", [lambda of: of, compiled], ids=["eager", "compiled"])
def test_what_fabric_has_set_up_is_trained_as_the_plain_module(
    daemon: PumpedDaemon, prepare: Callable[[nn.Module], nn.Module]
) -> None:
    fabric = pytest.importorskip("lightning.fabric", reason="lightning is not installed").Fabric(accelerator="cpu")
    network = model()
    wrapped, optimizer = fabric.setup(prepare(network), torch.optim.AdamW(network.parameters(), lr=0.1))
    with gossipdp.attach(wrapped, optimizer) as peer:
        for _ in range(4):
            fabric.backward(wrapped(torch.ones(6, 4)).sum())
            optimizer.step()
            optimizer.zero_grad()
        assert any("exp_avg" in name for name in peer.state_dict())
    assert peer.steps == 4 and handed_over(daemon) == 4
    assert daemon.schema == exchanged(model())[0], "a plain peer fits, and no tensor has a second name"
    assert names(nn.ModuleDict({"part": wrapped})) == names(nn.ModuleDict({"part": model()}))


# -- trained in part --------------------------------------------------------------------------------------------


class LowRank(nn.Module):
    """LoRA (Hu et al., arXiv 2106.09685): a frozen layer plus a trained product of two thin matrices."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) + self.up(self.down(x))
        return found


def test_of_a_frozen_model_with_adapters_only_these_are_exchanged(daemon: PumpedDaemon) -> None:
    network = model()
    network[0], network[2] = LowRank(network[0]), LowRank(network[2])  # type: ignore[arg-type]
    frozen = {name: each.clone() for name, each in network.named_parameters() if not each.requires_grad}
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    peer = gossipdp.attach(network, optimizer)
    assert names(network) == ["0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight"]
    assert daemon.region.size == sum(each.numel() for each in trained) == 4 * 2 + 2 * 8 + 8 * 2 + 2
    for step in range(4):
        network(torch.ones(3, 4)).sum().backward()
        if step == 2:
            with daemon.lock:
                daemon.mix(np.full(daemon.region.size, 0.5, np.float32))
                daemon.seal()
        optimizer.step()
        optimizer.zero_grad()
    peer.detach()
    assert handed_over(daemon) == 4
    assert all(torch.equal(each, frozen[name]) for name, each in network.named_parameters() if name in frozen)
    assert len(peer.state_dict()) == 4 * 3, "nothing is kept of what is frozen"


@pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair
@pytest.mark.parametrize("factors", [("lora_A", "lora_B"), ("lora_B",)], ids=["A and B", "B alone"])
def test_adapters_of_peft_are_exchanged_and_exported(
    daemon: PumpedDaemon, tmp_path: Path, factors: tuple[str, ...]
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from peers import export

    gpt2().save_pretrained(tmp_path / "model")
    network = peft.get_peft_model(gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], modules_to_save=["wpe"]))
    for name, parameter in network.named_parameters():
        if "lora_" in name and not any(factor in name for factor in factors):
            parameter.requires_grad_(False)
    network.save_pretrained(tmp_path / "base")
    optimizer = torch.optim.AdamW([each for each in network.parameters() if each.requires_grad], lr=0.1)
    tokens = torch.arange(32)[None] % 61
    with gossipdp.attach(network, optimizer):
        for _ in range(4):
            network(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    assert len(names(network)) == 2 * len(factors) + 1 and all("default" in name for name in names(network))
    export.export_model(checkpoint_of(daemon, tmp_path), tmp_path / "out", tmp_path / "base")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(peft.PeftModel.from_pretrained(whole, tmp_path / "out")), logits(network))
