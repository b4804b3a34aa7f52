"""Buffers relative to the founder's: any constant keeps every bit, and averages are averaged."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossipdp.codecs import named
from gossipdp.protocol.carried_state import reference_digest
from gossipdp.training.tensors.layout import Layout

BF16 = torch.bfloat16


class Constants(nn.Module):
    """Typical persistent buffers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("masked_bias", torch.tensor(-1e9))
        self.register_buffer("causal", torch.triu(torch.full((4, 4), -torch.inf), 1))
        self.register_buffer("lowest", torch.full((2, 2), torch.finfo(torch.float32).min))
        self.register_buffer("padding", torch.tensor([torch.nan, 0.0, -0.0, 1.5]))
        self.register_buffer("positions", torch.rand(5, 3) * 1e-3)
        self.register_buffer("schedule", torch.linspace(1e-12, 0.02, 7, dtype=torch.float64))
        self.register_buffer("huge", torch.tensor([1e300, -1e-300], dtype=torch.float64))
        self.register_buffer("rounded", torch.tensor([0.1, -3e38, torch.inf], dtype=BF16))
        self.register_buffer("pixels", torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("mean", torch.zeros(4))

    def constants(self) -> list[Tensor]:
        return [each for name, each in self.named_buffers() if name != "mean"]


def bits(tensors: list[Tensor]) -> list[bytes]:
    return [each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for each in tensors]


def attached(model: nn.Module) -> Layout:
    layout = Layout(model)
    layout.refer()
    return layout


def read(layout: Layout) -> np.ndarray:
    into = np.zeros(layout.schema.size, np.float32)
    assert layout.read(into)()
    return into


def buffers_of(vector: np.ndarray, layout: Layout) -> np.ndarray:
    return vector[layout.schema.trainable :]


def test_constants_of_any_value_in_the_vector_are_zero() -> None:
    layout = attached(Constants())
    assert not buffers_of(read(layout), layout).any()
    assert layout.announced.reference == layout.reference.digest and len(layout.reference.digest) == 16


def test_founder_after_a_thousand_corrections_of_zero_and_a_load_keeps_every_bit_of_its_constants() -> None:
    model = Constants()
    before, layout = bits(model.constants()), attached(model)
    correction = torch.zeros(layout.schema.size)
    correction[:3] = 0.5
    mean = next(entry for entry in layout.schema.entries if entry.name == "mean")
    correction[mean.offset : mean.stop] = 0.25
    for _ in range(1000):
        layout.add(0, correction)
    layout.load(0, torch.from_numpy(read(layout)))
    assert bits(model.constants()) == before
    assert model.mean.tolist() == [250.0] * 4 and not buffers_of(read(layout), layout)[:-4].any()


def test_joiner_with_other_constants_takes_the_founders_to_the_last_bit() -> None:
    founder, joiner = Constants(0), Constants(1)
    joiner.masked_bias.fill_(-torch.inf)
    joiner.padding.copy_(torch.tensor([0.0, torch.nan, 0.0, -1.5]))
    first, second = attached(founder), attached(joiner)
    founder.mean.copy_(torch.tensor([1.0, -2.0, 1e-7, 3e5]))
    assert first.reference.digest != second.reference.digest
    second.adopt(bytes(first.reference.data))
    second.load(0, torch.from_numpy(read(first)))
    assert bits(list(joiner.buffers())) == bits(list(founder.buffers()))
    assert second.reference.digest == first.reference.digest
    assert np.array_equal(read(second), read(first))


def test_a_running_average_far_from_its_reference_is_averaged_as_numbers() -> None:
    one, two = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    first, second = attached(one), attached(two)
    one.running_var.fill_(1e-3)
    two.running_var.fill_(3e-3)
    half = (read(second) - read(first)) / np.float32(2.0)
    first.add(0, torch.from_numpy(half))
    second.add(0, torch.from_numpy(-half))
    for norm in (one, two):
        assert torch.allclose(norm.running_var, torch.tensor(2e-3), rtol=1e-4)


def test_bfloat16_buffer_that_moves_keeps_what_rounding_takes_from_small_corrections() -> None:
    model = nn.Module()
    model.weight, moving = nn.Parameter(torch.ones(1)), torch.ones(2, dtype=BF16)
    model.register_buffer("moving", moving)
    layout = attached(model)
    correction = torch.zeros(layout.schema.size)
    correction[layout.schema.trainable] = 1e-4
    for _ in range(100):
        layout.add(0, correction)
    assert buffers_of(read(layout), layout) == pytest.approx([0.01, 0.0], abs=100 * 2.0**-24)
    assert moving[1] == 1.0 and float(moving[0]) == pytest.approx(1.01, abs=0.004)


def test_an_element_whose_reference_is_not_finite_is_told_as_nothing() -> None:
    model = Constants()
    layout = attached(model)
    model.masked_bias.fill_(5.0)
    model.causal[0, 1] = 7.0
    vector = read(layout)
    found = {entry.name: vector[entry.offset : entry.stop] for entry in layout.schema.entries}
    assert np.isfinite(vector).all()
    assert not found["causal"].any() and found["masked_bias"] == [np.float32(1e9)]


def test_a_buffer_that_becomes_nan_takes_its_last_finite_values(caplog: pytest.LogCaptureFixture) -> None:
    model = Constants()
    layout = attached(model)
    model.mean.copy_(torch.arange(4.0))
    read(layout)
    model.mean[0], model.mean[1], model.mean[2] = torch.inf, torch.nan, 9.0
    vector = read(layout)
    assert np.isfinite(vector).all() and model.mean.tolist() == [0.0, 1.0, 9.0, 3.0]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["mean"]


def test_a_buffer_that_becomes_nan_after_a_load_takes_the_loaded_values() -> None:
    model = Constants()
    layout = attached(model)
    vector = read(layout)
    entry = next(each for each in layout.schema.entries if each.name == "mean")
    vector[entry.offset : entry.stop] = 2.0
    layout.load(0, torch.from_numpy(vector))
    model.mean.fill_(torch.nan)
    read(layout)
    assert model.mean.tolist() == [2.0] * 4


def test_a_parameter_that_becomes_nan_is_told_as_nan() -> None:
    model = Constants()
    layout = attached(model)
    model.weight.data[0] = torch.nan
    assert np.isnan(read(layout)).sum() == 1


def test_same_reference_and_vector_loaded_again_change_no_bit_of_a_living_model() -> None:
    model = Constants()
    layout = attached(model)
    model.schedule.mul_(1.0 + 1e-12)
    model.mean.copy_(torch.rand(4))
    before = bits(list(model.buffers()))
    layout.adopt(bytes(layout.reference.data))
    layout.load(0, torch.from_numpy(read(layout)))
    assert bits(list(model.buffers())) == before


def test_a_network_without_a_reference_is_told_values() -> None:
    model = nn.BatchNorm1d(2)
    layout = attached(model)
    layout.adopt(b"")
    assert layout.announced.reference == b"" == reference_digest(b"")
    assert buffers_of(read(layout), layout).tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("damage", ["header", "shape", "short"])
def test_a_reference_that_cannot_be_read_is_no_crash(damage: str) -> None:
    model = Constants()
    layout = attached(copy.deepcopy(model))
    data = bytes(layout.reference.data)
    damaged = {
        "header": b"\xff" * 20,
        "shape": named.header([("mean", "F32", (9,))]) + bytes(36),
        "short": data[:-1],
    }[damage]
    layout.adopt(damaged)
    assert np.isfinite(read(layout)).all()
