"""Masks of pruning and unit vectors of spectral norm: each host keeps its own, and a joiner gets the network's."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.utils import parametrizations, prune, spectral_norm

from gossipdp.training.tensors.layout import Layout


def pruned(layer: nn.Linear) -> None:
    prune.l1_unstructured(layer, "weight", amount=0.4)


def pruned_twice(layer: nn.Linear) -> None:
    prune.identity(layer, "weight")
    prune.random_unstructured(layer, "weight", amount=0.4)


def sparse(layer: nn.Linear) -> None:
    sparsifier = WeightNormSparsifier(sparsity_level=0.5, sparse_block_shape=(1, 1), zeros_per_block=1)
    sparsifier.prepare(nn.ModuleDict({"layer": layer}), [{"tensor_fqn": "layer.weight"}])


KINDS: dict[str, tuple[Callable[[nn.Linear], object], list[str]]] = {
    "pruning": (pruned, ["weight_mask"]),
    "pruning in several steps": (pruned_twice, ["weight_mask"]),
    "a sparsifier": (sparse, ["parametrizations.weight.0.mask"]),
    "spectral norm": (parametrizations.spectral_norm, [f"parametrizations.weight.0.{key}" for key in ("_u", "_v")]),
    "spectral norm by a hook": (spectral_norm, ["weight_u", "weight_v"]),
}


def layer_of(seed: int, made: Callable[[nn.Linear], object]) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(6, 5)
    layer.register_buffer("mask", (torch.rand(4) < 0.5).float())
    layer.register_buffer("mean", torch.zeros(3))
    made(layer)
    return layer


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_that_is_fitted_to_one_replica__corrections_leave_it_and_a_joiner_gets_it_exactly(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, names = KINDS[kind]
    giver, joiner = layer_of(0, made), layer_of(1, made)
    layout, other = Layout(giver), Layout(joiner)
    with caplog.at_level(logging.WARNING, "gossipdp.training"):
        layout.refer()
    assert f"{len(names)} masks of pruning" in caplog.text and names[0] in caplog.text
    other.refer()
    for name in names:
        giver.get_buffer(name).flatten()[::2].neg_()
    own = {name: giver.get_buffer(name).clone() for name in names}
    vector = np.ones(layout.schema.size, np.float32)
    assert layout.read(vector)()
    for entry in layout.schema.entries:
        assert not (entry.name in names and vector[entry.offset : entry.stop].any()), "0 for a host that averages it"
    mask, mean = giver.mask.clone(), giver.mean.clone()
    layout.add(0, torch.full((layout.schema.size,), 0.5))
    for name in names:
        assert torch.equal(giver.get_buffer(name), own[name])
    assert torch.equal(giver.mask, mask + 0.5), "a buffer of no known kind is averaged"
    assert torch.equal(giver.mean, mean + 0.5)

    other.adopt(layout.reference.data)
    other.load(0, torch.from_numpy(vector))
    copy = layout.carried.copy(now=True)
    assert copy is not None
    other.carried.load(b"".join(copy))
    for name in names:
        assert torch.equal(joiner.get_buffer(name), own[name])


@pytest.mark.parametrize("kind", KINDS)
def test_schema_of_a_model_with_fitted_buffers__is_that_of_hosts_that_average_them(kind: str) -> None:
    made, names = KINDS[kind]
    assert set(names) <= {entry.name for entry in Layout(layer_of(0, made)).schema.entries}
