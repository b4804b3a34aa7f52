"""Which tensors are exchanged, and how they move: tied, frozen, buffers, dtypes, memory formats."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.errors import MismatchError
from gossipdp.training.tensors.arithmetic import widened
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import exchanged
from tests.training.largest import Largest


def flat(layout: Layout) -> np.ndarray:
    into = np.zeros(layout.schema.size, np.float32)
    assert layout.read(into)()
    return into


class Zoo(nn.Module):
    """One of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("rope", torch.ones(3), persistent=False)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))
        self.empty = nn.Parameter(torch.zeros(0, 4))


def test_trainable_parameters_then_persistent_floating_buffers_tied_once() -> None:
    schema, tensors = exchanged(Zoo())
    assert [(entry.name, entry.kind, entry.offset) for entry in schema.entries] == [
        ("scale", "parameter", 0),
        ("embedding.weight", "parameter", 1),
        ("norm.weight", "parameter", 25),
        ("norm.bias", "parameter", 29),
        ("mask", "buffer", 256),
        ("norm.running_mean", "buffer", 260),
        ("norm.running_var", "buffer", 264),
    ]
    assert [tuple(tensor.shape) for tensor in tensors] == [entry.shape for entry in schema.entries]


def test_weights_tied_by_storage_count_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight.data = model[0].weight.data
    assert [(entry.name, entry.also) for entry in exchanged(model)[0].entries] == [("0.weight", ("1.weight",))]


def test_every_name_of_a_tied_tensor_is_told__that_its_modules_or_its_parts_have() -> None:
    model = nn.Module()
    model.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.again = model.body
    model.head = nn.Linear(3, 3)
    model.head.bias = model.body[0].bias
    schema = exchanged(model)[0]
    names = {name for entry in schema.entries for name in (entry.name, *entry.also)}
    assert names == {name for name, each in model.state_dict().items() if each.is_floating_point()}
    assert {entry.name: entry.also for entry in schema.entries}["body.0.bias"] == ("again.0.bias", "head.bias")


def test_wrappers_leave_no_trace_in_names() -> None:
    model = nn.Linear(3, 2)
    expected = exchanged(model)[0]
    assert exchanged(nn.DataParallel(model))[0] == expected
    compiled = nn.Module()
    compiled._orig_mod = model  # as torch.compile wraps it
    assert exchanged(compiled)[0] == expected


def test_a_fused_storage_is_no_overlap() -> None:
    storage = torch.arange(10.0)
    model = nn.Module()
    model.a, model.b = nn.Parameter(storage[:4]), nn.Parameter(storage[4:])
    assert len(exchanged(model)[1]) == 2


def partly_shared() -> nn.Module:
    storage = torch.arange(10.0)
    model = nn.Module()
    model.a, model.b = nn.Parameter(storage[:6]), nn.Parameter(storage[4:])
    return model


def holding(parameter: torch.Tensor) -> nn.Module:
    model = nn.Module()
    model.odd = nn.Parameter(parameter)
    return model


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        (partly_shared, "a and b"),
        (lambda: nn.LazyLinear(3), "not initialized"),
        (lambda: nn.Linear(2, 2, device="meta"), "meta device"),
        (lambda: holding(torch.zeros(3, dtype=torch.complex64)), "odd: its dtype is torch.complex64"),
        (lambda: holding(torch.zeros(1, 3).expand(4, 3)), "expanded"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), ""),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_cannot_be_exchanged_is_gd_305(model: object, seen: str) -> None:
    with pytest.raises(MismatchError, match="GD-305") as caught:
        exchanged(model())  # type: ignore[operator]
    assert seen in caught.value.seen and caught.value.do


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["contiguous", "channels_last", "transposed"])
def test_load_and_read_are_row_major_whatever_the_memory_format(dtype: torch.dtype, form: str) -> None:
    weight = torch.zeros(4, 3, 2, 5, dtype=dtype)
    if form == "channels_last":
        weight = weight.to(memory_format=torch.channels_last)
    elif form == "transposed":
        weight = torch.zeros(5, 2, 3, 4, dtype=dtype).permute(3, 2, 1, 0)
    layout = Layout(holding(weight))
    values = np.random.default_rng(0).integers(-100, 100, 120).astype(np.float32)
    layout.load(0, torch.from_numpy(values))
    assert np.array_equal(flat(layout), values)
    assert torch.equal(layout.tensors[0].detach().float().reshape(-1), torch.from_numpy(values))
    layout.add(50, torch.ones(30))
    values[50:80] += 1
    assert np.array_equal(flat(layout), values)


def test_pieces_may_begin_and_end_anywhere() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    layout = Layout(model)
    random = np.random.default_rng(1)
    expected = flat(layout)
    for _ in range(50):
        start, stop = sorted(random.integers(0, layout.schema.size + 1, 2).tolist())
        piece = random.standard_normal(stop - start).astype(np.float32) ** 2
        layout.add(start, torch.from_numpy(piece))
        expected[start:stop] += piece
    expected[layout.schema.entries[5].stop : layout.schema.trainable] = 0.0
    assert np.array_equal(flat(layout), expected)


def test_loading_what_is_there_changes_no_bit_of_fp64() -> None:
    weight = torch.rand(1000, dtype=torch.float64)
    layout = Layout(holding(weight.clone()))
    layout.load(0, torch.from_numpy(flat(layout)))
    assert torch.equal(layout.tensors[0], weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_corrections_survive_rounding_as_a_residual(dtype: torch.dtype) -> None:
    """Algorithms section 1: x' = round(x + slot), the residual is slot - (x' - x), a snapshot is x + residual."""
    start = torch.linspace(0.5, 2.0, 300).to(dtype)
    layout = Layout(holding(start.clone()))
    plain = start.clone()
    correction = torch.full((300,), 1e-4)
    exact = [Fraction(value) for value in start.tolist()]
    for _ in range(200):
        layout.add(0, correction)
        plain += correction.to(dtype)
        exact = [value + Fraction(correction[0].item()) for value in exact]
    wanted = np.array([float(value) for value in exact])
    ulp = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert np.abs(flat(layout) - wanted).max() < 200 * 2.0**-23, "as an fp32 model rounds 200 times"
    assert np.abs(layout.tensors[0].detach().float().numpy() - wanted).max() <= 2 * ulp
    if dtype == torch.bfloat16:
        assert np.abs(plain.float().numpy() - wanted).max() > 0.01, "without a residual they are lost"


def test_loading_sets_the_residual_to_what_rounding_leaves() -> None:
    layout = Layout(holding(torch.ones(4, dtype=torch.bfloat16)))
    layout.add(0, torch.full((4,), 1e-4))
    values = torch.tensor([1.0, 1.001, -3.3, 0.0])
    layout.load(0, values)
    residual = layout.residual(0)
    assert residual is not None and residual.dtype == torch.int16
    assert np.array_equal(flat(layout), values.numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_residual_of_two_bytes_holds_what_an_fp32_model_would(dtype: torch.dtype) -> None:
    """x + residual is the loaded number to 2^-23 of it; in all but some ties, bit for bit."""
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(200_000, generator=generator) * torch.logspace(-3, 2, 200_000)
    values = torch.cat([values, torch.tensor([0.0, -0.0, 1.0, -2.0, 1.0 + 2.0**-8, 1.0 - 2.0**-10, 3.0 + 2.0**-7])])
    layout = Layout(holding(torch.zeros(len(values), dtype=dtype)))
    layout.load(0, values)
    found = torch.from_numpy(flat(layout))
    normal = values.abs() >= torch.finfo(dtype).smallest_normal
    assert torch.equal(layout.tensors[0].detach(), values.to(dtype)), "rounded to nearest"
    assert ((found - values).abs() <= 2.0**-23 * values.abs())[normal].all()
    assert (found - values).abs()[~normal].max() <= 2.0**-40
    assert (found == values)[normal].float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [1e-4, 3e-3])
def test_corrections_far_below_a_weights_last_place_add_up_as_in_an_fp32_model(
    dtype: torch.dtype, share: float
) -> None:
    """The anchor is fp32 and takes the same corrections: the snapshot must stay with it."""
    generator = torch.Generator().manual_seed(6)
    start = (torch.rand(4000, generator=generator) * 0.9 + 1.05).to(dtype)
    layout, anchor = Layout(holding(start.clone())), start.float()
    last_place = torch.finfo(dtype).eps
    for _ in range(2000):
        correction = torch.full((4000,), share * last_place) * (0.5 + torch.rand(4000, generator=generator))
        layout.add(0, correction)
        anchor += correction
    moved = torch.from_numpy(flat(layout)) - start.float()
    assert ((anchor - torch.from_numpy(flat(layout))).abs() <= 2000 * 2.0**-24).all()
    assert abs(float(moved.mean()) / (2000 * share * last_place) - 1.0) < 0.01, "none is lost"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_that_leaves_an_exponent_leaves_the_residual(dtype: torch.dtype) -> None:
    layout = Layout(holding(torch.full((3,), 1.25, dtype=dtype)))
    layout.add(0, torch.tensor([1e-4, -1e-4, 2e-5]))
    before = flat(layout)
    with torch.no_grad():
        layout.tensors[0].add_(torch.tensor([0.25, 0.5, -0.125]).to(dtype))
    assert np.array_equal(flat(layout), before + np.array([0.25, 0.5, -0.125], np.float32))
    with torch.no_grad():
        layout.tensors[0].neg_().mul_(4.0)
    assert np.abs(flat(layout) + 4.0 * (before + np.array([0.25, 0.5, -0.125], np.float32))).max() < 1e-3


def test_a_model_that_needs_no_residual_has_none() -> None:
    """A lone peer, and a joiner that got the model in bf16."""
    layout = Layout(holding(torch.rand(100).bfloat16()))
    layout.load(0, torch.rand(100).bfloat16().float())
    flat(layout)
    assert layout.residual(0) is None
    layout.load(0, torch.full((100,), 1.001))
    assert layout.residual(0) is not None and np.array_equal(flat(layout), np.full(100, 1.001, np.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_large_tensor_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr("gossipdp.training.tensors.layout.STAGED", 100)
    layout = Layout(holding(torch.rand(1050).to(dtype)))
    layout.add(0, torch.full((1050,), 1e-4))
    residual = layout.residual(0)
    assert residual is not None
    wanted = widened(layout.tensors[0].detach(), residual)
    with Largest() as largest:
        found = flat(layout)
    assert np.array_equal(found, wanted.numpy()) and 0 < largest.made <= 100


def test_a_late_correction_cannot_make_a_variance_negative() -> None:
    model = nn.BatchNorm1d(3)
    layout = Layout(model)
    layout.add(layout.schema.trainable, torch.tensor([-5.0, 0.0, 0.0, -0.25, -3.0, 1.0]))
    assert model.running_mean is not None and model.running_mean.tolist() == [-5.0, 0.0, 0.0]
    assert model.running_var is not None and model.running_var.tolist() == [0.75, 0.0, 2.0]


def test_autograd_sees_the_change() -> None:
    model = nn.Linear(2, 2)
    versions = model.weight._version
    Layout(model).add(0, torch.ones(6))
    assert model.weight._version > versions and model.weight.requires_grad and model.weight.grad is None
