"""Digests of frozen parameters: equal for equal numbers, different for another base."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gossipdp
from gossipdp.errors import ConfigError, UnreachableError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.unix_sockets import KEY
from gossipdp.training.ranks.comparison import _models_differ
from gossipdp.training.tensors import frozen, streams
from gossipdp.training.tensors.frozen import frozen_digests
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import FROZEN_DIFFER, FROZEN_DIFFER_PARTLY, exchanged
from tests.training.ledger_daemon import PumpedDaemon


class Adapted(nn.Module):
    """A base in several dtypes, a buffer that moves, packed numbers, and one layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(5, 7).requires_grad_(False)
        self.low = nn.Linear(7, 3, dtype=torch.bfloat16).requires_grad_(False)
        self.norm = nn.BatchNorm1d(7, affine=False)
        self.packed = nn.Parameter(torch.arange(6, dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(3.0), requires_grad=False)
        self.head = nn.Linear(7, 2)


def digests(model: nn.Module) -> dict[str, bytes]:
    return dict(frozen_digests(model))


def test_frozen_floating_point_parameters_are_told_of_and_nothing_else() -> None:
    assert sorted(digests(Adapted())) == ["base.bias", "base.weight", "low.bias", "low.weight", "scale"]
    assert frozen_digests(nn.Linear(2, 2)) == ()


def test_digests_are_of_shape_dtype_and_values_however_these_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, model = digests(Adapted()), Adapted()
    model.base.weight = nn.Parameter(model.base.weight.detach().t().contiguous().t(), requires_grad=False)
    assert not model.base.weight.is_contiguous()
    monkeypatch.setattr(streams, "STAGED", 4)
    assert digests(model) == expected, "parts are of another size, too"
    model.base.weight[6, 4] = torch.nextafter(model.base.weight[6, 4], torch.tensor(9.0))
    model.low.bias = nn.Parameter(model.low.bias.float(), requires_grad=False)
    model.scale = nn.Parameter(model.scale.reshape(1), requires_grad=False)
    now = digests(model)
    assert {name for name in now if now[name] != expected[name]} == {"base.weight", "low.bias", "scale"}


@pytest.mark.parametrize(
    "strange",
    [
        torch.arange(12.0).reshape(4, 3)[:, 0],
        torch.arange(9.0)[::2],
        torch.zeros(1).expand(3, 4),
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.empty(0, 3),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
    ],
)
def test_strides_are_no_matter(strange: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Module()
    model.plain = nn.Parameter(strange.clone(memory_format=torch.contiguous_format), requires_grad=False)
    (expected,) = digests(model).values()
    model.plain = nn.Parameter(strange, requires_grad=False)
    for staged in (1, 3, 5, 1 << 23):
        monkeypatch.setattr(streams, "STAGED", staged)
        assert list(digests(model).values()) == [expected]


def named(*names: str) -> nn.Module:
    model = nn.Module()
    for name in names:
        model.register_parameter(name, nn.Parameter(torch.ones(1), requires_grad=False))
    return model


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["x" * 1025], "more than 1024 characters"),
        ([f"{number:0>1000}" for number in range(4200)], "4200 names"),
        ([f"{number}" for number in range(16_385)], "16385 names"),
    ],
)
def test_what_a_schema_cannot_hold_is_not_compared_and_raises_nothing(
    names: list[str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), named(*names))
    layout = Layout(model)
    layout.compare_frozen()
    assert layout.schema.frozen == ()
    (said,) = caplog.records
    assert said.levelname == "WARNING" and "not compared" in said.message and why in said.message


def test_as_much_as_is_told_is_read_back() -> None:
    layout = Layout(nn.Sequential(nn.Linear(2, 2), named("x" * 1022, *(f"{number:0>222}" for number in range(16_383)))))
    layout.compare_frozen()
    assert len(layout.schema.frozen) in (0, frozen.MOST)
    layout = Layout(nn.Sequential(nn.Linear(2, 2), named("x" * 1022, *(f"{number:0>217}" for number in range(16_383)))))
    layout.compare_frozen()
    assert len(layout.schema.frozen) == frozen.MOST
    assert Schema.from_bytes(layout.schema.to_bytes()).frozen == layout.schema.frozen


def test_reading_long_is_said_before(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(frozen, "LONG", 100.0)
    frozen_digests(Adapted())
    assert [each.message for each in caplog.records] == [
        "reading 0.0 GB of frozen parameters, to compare them with the network's"
    ]


def test_nothing_is_read_for_an_attach_that_finds_no_daemon_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "_digest", lambda _: pytest.fail("read"))
    model = Adapted()
    head, others = torch.optim.SGD(model.head.parameters(), lr=0.1), torch.optim.SGD(Adapted().parameters(), lr=0.1)
    with pytest.raises(UnreachableError, match="GD-105"):
        gossipdp.attach(model, head, home=tmp_path / "none")
    (tmp_path / KEY).touch()
    with pytest.raises(ConfigError, match="GD-317"):
        gossipdp.attach(model, others, home=tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="GD-306"):
        gossipdp.attach(model, head, home=tmp_path)


class Packed(Tensor):
    """A library's own kind of tensor."""


@pytest.mark.parametrize(
    "odd", [torch.empty(3, device="meta"), torch.zeros(3).as_subclass(Packed), torch.eye(3).to_sparse()]
)
def test_where_one_is_not_plainly_here_none_is_told_of__a_warning_says_so(
    odd: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    model = Adapted()
    model.odd = nn.Parameter(odd, requires_grad=False)
    assert frozen_digests(model) == ()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "not compared with the network's: odd is " in caplog.text


def test_attach_tells_the_daemon_of_them_unless_it_is_not_to(pumped: PumpedDaemon) -> None:
    for compared in (True, False):
        model = Adapted()
        head = torch.optim.SGD(model.head.parameters(), lr=0.1)
        gossipdp.attach(model, head, compare_frozen=compared).detach()
        assert pumped.schema is not None and pumped.schema.entries == exchanged(model)[0].entries
        assert pumped.schema.frozen == (tuple(sorted(frozen_digests(model))) if compared else ())


def test_ranks_on_top_of_different_bases_are_told_which_parameter() -> None:
    schemas = []
    for value in (1.0, 1.0, 2.0):
        model = Adapted()
        model.base.bias.fill_(value)
        schemas.append(Schema(exchanged(model)[0].entries, frozen_digests(model)))
    error = _models_differ(schemas, [2])
    assert (error.code, error.do) == ("GD-301", FROZEN_DIFFER_PARTLY), "the others are equal"
    assert error.seen == "rank 2 of 3; frozen parameter base.bias differs from rank 0"
    assert "torch.manual_seed" in FROZEN_DIFFER and "a seed is missing" in FROZEN_DIFFER_PARTLY
