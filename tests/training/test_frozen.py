"""What a model does not train is told of by digests: the same for the same numbers, another for another base."""

from __future__ import annotations

import pytest
import torch
from ledger_daemon import PumpedDaemon
from torch import Tensor, nn

import gossipdp
from gossipdp.protocol.schema import Schema
from gossipdp.training import frozen
from gossipdp.training.frozen import frozen_digests
from gossipdp.training.replicas import _models_differ
from gossipdp.training.schema import FROZEN_DIFFER, exchanged


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
    monkeypatch.setattr(frozen, "STAGED", 4)
    assert digests(model) == expected, "parts are of another size, too"
    model.base.weight[6, 4] = torch.nextafter(model.base.weight[6, 4], torch.tensor(9.0))
    model.low.bias = nn.Parameter(model.low.bias.float(), requires_grad=False)
    model.scale = nn.Parameter(model.scale.reshape(1), requires_grad=False)
    now = digests(model)
    assert {name for name in now if now[name] != expected[name]} == {"base.weight", "low.bias", "scale"}


class Packed(Tensor):
    """A library's own kind of tensor."""


@pytest.mark.parametrize(
    "odd", [torch.empty(3, device="meta"), torch.zeros(3).as_subclass(Packed), torch.eye(3).to_sparse()]
)
def test_where_one_is_not_plainly_here_none_is_told_of(odd: Tensor) -> None:
    model = Adapted()
    model.odd = nn.Parameter(odd, requires_grad=False)
    assert frozen_digests(model) == ()


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
    assert (error.code, error.do) == ("GD-301", FROZEN_DIFFER)
    assert error.seen == "rank 2 of 3; frozen parameter base.bias is another than on rank 0"
