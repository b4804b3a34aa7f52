"""A model that changes after attach: what is followed, and what a warning names."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, prune

import gossipdp
from gossipdp.training.tensors.layout import Layout
from tests.training.ledger_daemon import PumpedDaemon


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def flat(layout: Layout) -> np.ndarray:
    into = np.zeros(layout.schema.size, np.float32)
    assert layout.read(into)()
    return into


def swap_by_pointer(model: nn.Module) -> None:
    """As some scripts do with averaged weights."""
    for parameter in model.parameters():
        parameter.data = parameter.data + 1.0


def widen(model: nn.Module) -> None:
    model.double()


def narrow(model: nn.Module) -> None:
    model.bfloat16()


@pytest.mark.parametrize("change", [swap_by_pointer, widen, narrow])
def test_tensors_that_are_given_other_memory_are_followed(change: Callable[[nn.Module], None]) -> None:
    model = stack()
    layout = Layout(model)
    change(model)
    found = flat(layout)
    assert np.array_equal(found, flat(Layout(model))), "what is read is the model"
    layout.add(0, torch.full((layout.schema.size,), 0.5))
    assert np.allclose(flat(Layout(model)), flat(layout), rtol=0, atol=0.005), "and what is added changes it"
    for _ in range(100):
        layout.add(0, torch.full((layout.schema.size,), 1e-4))
    first = layout.schema.entries[0]
    assert np.allclose(flat(layout)[: first.stop] - found[: first.stop], 0.51, rtol=0, atol=1e-4), (
        "even what rounding takes"
    )


class Averaged(nn.Module):
    """Assigns its running average anew in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.ema: torch.Tensor
        self.register_buffer("ema", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ema = 0.5 * self.ema + 0.5 * x.mean(0)
        result: torch.Tensor = self.linear(x - self.ema)
        return result


@pytest.mark.parametrize("change", ["load", "add"])
def test_corrections_reach_the_tensor_that_a_forward_pass_has_put_in_a_buffers_place(change: str) -> None:
    model = nn.Sequential(Averaged())
    layout = Layout(model)
    trainable, size = layout.schema.trainable, layout.schema.size
    for number in range(3):
        model(torch.ones(2, 6))
        before = model[0].ema.clone()
        values = torch.full((size - trainable,), 2.0 + number)
        getattr(layout, change)(trainable, values)
        assert torch.equal(model[0].ema, values if change == "load" else before + values)


def test_ranks_make_the_tensor_equal_that_is_the_buffer_now() -> None:
    model = Averaged()
    layout = Layout(model)
    model(torch.ones(2, 6))
    (found,) = layout.buffers()
    assert found.data_ptr() == model.ema.data_ptr()


def test_a_buffer_of_a_module_that_was_put_in_anothers_place_is_followed() -> None:
    model = nn.Sequential(Averaged())
    layout = Layout(model)
    model[0] = Averaged()
    flat(layout)
    layout.add(layout.schema.trainable, torch.ones(6))
    assert torch.equal(model[0].ema, torch.ones(6))


# -- what is not, is said ---------------------------------------------------------------------------------------


@pytest.fixture
def daemon(pumped: PumpedDaemon) -> PumpedDaemon:
    return pumped


def unfreeze(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> str:
    model[0].requires_grad_(True)
    return "0.weight"


def grow(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> str:
    model.append(nn.Linear(4, 4))
    optimizer.add_param_group({"params": list(model[3].parameters())})
    return "3.weight"


def train(model: nn.Module, optimizer: torch.optim.Optimizer, daemon: PumpedDaemon, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
        daemon.pump()


def said(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if "GD-319" in record.getMessage()]


def widen_layer(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> str:
    model[2] = nn.Linear(5, 9)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    return "2.weight"


@pytest.mark.parametrize("change", [unfreeze, grow, widen_layer])
def test_what_is_trained_and_not_exchanged_is_named_once(
    daemon: PumpedDaemon,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[nn.Sequential, torch.optim.Optimizer], str],
) -> None:
    model = stack()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gossipdp.attach(model, optimizer), caplog.at_level(logging.WARNING, "gossipdp.training"):
        train(model, optimizer, daemon, 4)
        assert not said(caplog)
        name = change(model, optimizer)
        train(model, optimizer, daemon, 8)
    (message,) = said(caplog)
    assert f"attached: {name} is not exchanged" in message
    assert ("the attached 2.weight is gone" in message) == (change is widen_layer)


def one_tensor(model: nn.Sequential) -> None:
    model[2].bias = nn.Parameter(torch.zeros(4))


def one_layer(model: nn.Sequential) -> None:
    model[2] = nn.Linear(5, 4)


def every_layer(model: nn.Sequential) -> None:
    for place in range(3):
        model[place] = stack()[place]


@pytest.mark.parametrize("change", [one_tensor, one_layer, every_layer])
def test_parameters_replaced_by_others_of_their_shape__count_as_loaded_and_take_the_places_of_those_before(
    daemon: PumpedDaemon, caplog: pytest.LogCaptureFixture, change: Callable[[nn.Sequential], None]
) -> None:
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gossipdp.attach(model, optimizer) as peer, caplog.at_level(logging.WARNING, "gossipdp.training"):
        train(model, optimizer, daemon, 4)
        change(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, daemon, 20)
        assert peer.steps >= 23, "the new optimizer is followed"
        assert peer._layout is not None
        assert all(one is other for one, other in zip(peer._layout.parameters(), model.parameters(), strict=True))
    assert not said(caplog) and "was replaced after attach" in caplog.text
    assert caplog.text.count("GD-325 the script loaded weights") == 1, "the daemon has decided"


def test_steps_between_snapshots__no_place_of_the_model_is_looked_at(
    pumped: PumpedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gossipdp.attach(model, optimizer, every=10) as peer:
        monkeypatch.setattr(Layout, "replaced", lambda _: looks.append(peer.steps) or "")
        train(model, optimizer, pumped, 9)
        assert not looks
        train(model, optimizer, pumped, 1)
        assert looks == [10], "the snapshot"


def test_gathered_tensors_in_the_places_of_shards_after_an_evaluation__have_replaced_nothing(
    group_of_one: None,
) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    fully_shard(model)
    layout = Layout(model)
    before = [*layout.tensors]
    with torch.no_grad():
        model(torch.ones(2, 6))
    assert type(model[0].weight) is nn.Parameter, "gathered"
    assert layout._follow_changes() == "" and not layout.replaced()
    assert all(one is other for one, other in zip(before, layout.tensors, strict=True))


def test_pruning_and_parametrizations_after_attach__what_is_exchanged_under_another_name_is_not_said_to_be_missing(
    daemon: PumpedDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gossipdp.attach(model, optimizer), caplog.at_level(logging.WARNING, "gossipdp.training"):
        prune.l1_unstructured(model[0], "weight", amount=0.4)
        parametrizations.spectral_norm(model[2])
        train(model, optimizer, daemon, 8)
    assert not caplog.text


def test_what_is_frozen_later_or_tied_is_nothing_to_speak_of(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
    model[1].weight.data = model[0].weight.data
    layout = Layout(model)
    model[2].requires_grad_(False)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        flat(layout)
    assert not said(caplog)
    layout.add(0, torch.ones(layout.schema.size))
    assert np.array_equal(model[2].bias.detach().numpy(), flat(layout)[layout.schema.entries[-1].offset :][:2])


def test_a_tensor_of_another_shape_spoils_the_snapshot_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    model = stack()
    layout = Layout(model)
    model[2].weight.data = torch.zeros(9, 5)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        found = flat(layout)
    (message,) = said(caplog)
    assert "attached: 2.weight is not exchanged" in message
    entry = next(entry for entry in layout.schema.entries if entry.name == "2.weight")
    assert np.isnan(found[entry.offset : entry.stop]).all() and np.isnan(found).sum() == 20, "daemons refuse it"
    before = model[0].weight.detach().clone()
    layout.add(0, torch.ones(layout.schema.size))
    assert not model[2].weight.any() and torch.equal(model[0].weight.detach(), before + 1.0)


# -- buffers of another shape -----------------------------------------------------------------------------------


def quantized() -> nn.Sequential:
    """Its observers are per channel: buffers of one element get another shape in the first forward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    model.train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    found: nn.Sequential = quantization.prepare_qat(model)
    return found


def attached(model: nn.Module) -> Layout:
    layout = Layout(model)
    layout.refer()
    layout.compare_frozen()
    return layout


def test_a_script_resizes_buffers_and_frozen_tensors_after_attach() -> None:
    model = stack()
    model[0].requires_grad_(False)
    model.register_buffer("scale", torch.ones(1))
    layout = attached(model)
    flat(layout)
    layout.carried.copy(now=True)
    for tensor in [*model.buffers(), *model.parameters()]:
        tensor.detach().resize_(100)


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated", "ignore:.*reduce_range will be deprecated")
def test_buffers_that_get_another_shape_after_attach__are_averaged_no_more_and_reach_a_joiner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    giver, joiner = quantized(), quantized()
    layout, other = attached(giver), attached(joiner)
    giver(torch.randn(8, 6))
    assert giver[0].weight_fake_quant.scale.shape == (5,)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        vector = flat(layout)
        flat(layout)
    assert caplog.text.count("0.weight_fake_quant.scale has another shape than at attach") == 1
    assert np.isfinite(vector).all(), "the daemon takes the snapshot"
    before = giver[0].weight_fake_quant.scale.clone()
    layout.add(0, torch.ones(layout.schema.size))
    assert torch.equal(giver[0].weight_fake_quant.scale, before)

    other.adopt(layout.reference.data)
    other.load(0, torch.from_numpy(vector))
    state = layout.carried.copy(now=True)
    assert state is not None
    other.carried.load(b"".join(state))
    joiner.apply(quantization.disable_observer)
    assert torch.equal(joiner[0].weight_fake_quant.scale, before)
    assert torch.equal(joiner[0].weight_fake_quant.zero_point, giver[0].weight_fake_quant.zero_point)
    assert joiner(torch.randn(3, 6)).isfinite().all()
    assert np.isfinite(flat(other)).all()
