"""Nothing that is made beside the model has the size of one of its tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import payload_bytes
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.state_dict import reset_optimizers
from gossipdp.training.optimizer_state.state_entries import ELEMENTWISE, entries_after_first_step
from gossipdp.training.ranks.comparison import checksums
from gossipdp.training.tensors.master_weights import MasterWeights
from gossipdp.training.tensors.optimizers import held
from tests.codecs.moments_reference import decoded
from tests.training.largest import Largest
from tests.training.optimizer_state.inheritance import inherited

PIECE = 120
ROW = 40

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.rand(50, ROW),
    "transposed": lambda: torch.rand(ROW, 50).t(),
    "channels_last": lambda: torch.rand(50, 5, 4, 2).to(memory_format=torch.channels_last),
}


@pytest.fixture(params=TENSORS)
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    for name in ("tensors.layout", "tensors.streams", "optimizer_state.adam", "ranks.comparison"):
        monkeypatch.setattr(f"gossipdp.training.{name}.STAGED", PIECE)
    monkeypatch.setattr("gossipdp.training.optimizer_state.encoder.CPU_PIECE", BLOCK)
    torch.manual_seed(0)
    module = nn.Module()
    module.weight = nn.Parameter(TENSORS[request.param]().bfloat16())
    assert module.weight.is_contiguous() == (request.param == "plain")
    return module


def test_model_and_moments_are_moved_piece_by_piece(network: nn.Module) -> None:
    weight: Any = network.weight
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    layout = MasterWeights(network, [optimizer])
    moments = AdamMoments.find(layout, network, [optimizer])
    assert moments is not None
    size = layout.schema.size
    layout.add(0, torch.full((size,), 1e-4))  # makes the residual and the watch over master weights
    before, into = layout.tensors[0].detach().float().reshape(-1).clone(), np.zeros(size, np.float32)
    encoded = np.zeros(3 * 4096, np.uint8)
    half = torch.full((size - 19,), 0.5)
    with Largest() as largest:
        layout.read(into)
        layout.load(0, torch.from_numpy(into))
        layout.add(7, half)
        checksums(layout)
    assert 0 < largest.made <= PIECE + 2 * ROW, "a piece and the rows at its ends"
    with Largest() as largest:
        assert moments.encoder(encoded).step(everything=True)
    assert BLOCK <= largest.made <= BLOCK + 2 * ROW
    after = layout.tensors[0].detach().float().reshape(-1)
    assert torch.equal(after[:7], before[:7]) and (after - before)[7:-12].min() > 0.48
    first, second = decoded(encoded[: payload_bytes(size)], size)
    for found, key in ((first, "exp_avg"), (second, "exp_avg_sq")):
        wanted = optimizer.state[weight][key].float().reshape(-1).numpy()
        assert np.allclose(found[: len(wanted)], wanted, rtol=0.1)


def test_moments_are_loaded_and_judged_piece_by_piece(network: nn.Module) -> None:
    weight: Any = network.weight
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    layout = MasterWeights(network, [optimizer])
    moments = AdamMoments.find(layout, network, [optimizer])
    assert moments is not None
    with Largest() as largest:
        assert inherited(moments, 1e-4, 1e-2, 100)
    assert largest.made <= weight.numel(), "the moments themselves"
    weight.grad = torch.full_like(weight, 0.01)
    with Largest() as largest:
        moments.prove(optimizer)
    assert not moments.unproved and largest.made <= PIECE
    assert float(optimizer.state[weight]["exp_avg_sq"].float().mean()) == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_what_torchs_optimizers_keep_is_seen_on_a_few_elements(kind: Any, network: nn.Module) -> None:
    weight: Any = network.weight
    optimizer = kind([weight], lr=1e-3)
    with Largest() as largest:
        tried = entries_after_first_step(next(held(network, [optimizer])))
        reset_optimizers(network, [optimizer])
    assert tried is not None and 0 < largest.made < 20
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = {name: value for name, value in optimizer.state[weight].items() if value is not None}
    assert {name: entry.shape for name, entry in tried[0].items()} == {
        name: tuple(getattr(value, "shape", ())) for name, value in kept.items()
    }
    assert all(entry.dtype == getattr(kept[name], "dtype", entry.dtype) for name, entry in tried[0].items())
