"""Optimizers whose state is unlike their parameters: shapes that depend on values, lists, tensor subclasses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gossipdp.errors import DataError
from gossipdp.training.optimizer_state.state_dict import optimizer_tensors, restore_optimizer
from tests.training.models import equal, small, train


class Distant(torch.optim.Optimizer):
    """Like Prodigy: for a parameter that begins as zero it keeps a number, for others every second element."""

    def __init__(self, parameters: Any, *, listed: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.05, "listed": listed})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    some = parameter.any()
                    state["p0"] = parameter.flatten()[::2].clone() if some else torch.tensor(0.0)
                    state["s"] = torch.zeros_like(parameter.flatten()[::2])
                    if group["listed"]:
                        state["past"] = [1.0, 2.0]
                state["step"] += 1
                slope = parameter.grad.flatten()[::2]
                state["s"].add_(slope * (state["p0"] - parameter.flatten()[::2]))
                parameter -= group["lr"] * (1.0 + state["s"].abs().mean()) * parameter.grad


class Byte(torch.Tensor):
    """Like torchao's: 8 bits per number and a scale. The tensor's own memory is empty."""

    codes: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> Byte:
        made: Byte = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        made.codes = codes
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        unwrapped = [each.codes.float() if isinstance(each, Byte) else each for each in arguments]
        result = function(*unwrapped, **(keywords or {}))
        same = (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)
        return cls(result.to(torch.uint8)) if function in same else result


class EightBits(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter] = {"exp_avg": Byte(parameter.grad.abs().to(torch.uint8))}
                    parameter -= group["lr"] * parameter.grad


def zeroed(model: nn.Module) -> nn.Module:
    """Biases begin as zero, as those of most models do."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "new process"])
def test_state_whose_shapes_depend_on_values_is_loaded_and_training_goes_on_with_it(
    tmp_path: Path, fresh: bool
) -> None:
    model = zeroed(small())
    optimizer = Distant(model.parameters())
    train(model, optimizer, 3)
    save_file(optimizer_tensors(model, [optimizer]), tmp_path / "state.safetensors")
    kept = load_file(tmp_path / "state.safetensors")
    assert kept["0.weight::p0"].shape == (300,) and kept["0.bias::p0"].shape == ()
    again, other = model, optimizer
    if fresh:
        again = small()
        again.load_state_dict(model.state_dict())  # biases are trained by now, and no zeros any more
        other = Distant(again.parameters())
    expected = zeroed(small())
    reference = Distant(expected.parameters())
    train(expected, reference, 3)
    restore_optimizer(again, [other], kept)
    for each, optimizes in ((again, other), (expected, reference)):
        train(each, optimizes, 3, seed=8)
    assert equal(again, expected)


def test_state_of_another_shape_is_refused_and_both_shapes_are_named() -> None:
    model = zeroed(small())
    optimizer = Distant(model.parameters())
    train(model, optimizer, 1)
    kept = optimizer_tensors(model, [optimizer])
    kept["0.bias::p0"] = torch.zeros(7)
    with pytest.raises(DataError, match="GD-608") as caught:
        restore_optimizer(model, [optimizer], kept)
    assert caught.value.seen == "0.bias::p0 has the shape (7,), not () or (15,)"


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda parameters: Distant(parameters, listed=True), "Distant: 0.weight::past is a list"),
        (EightBits, "EightBits: 0.weight::exp_avg is a Byte"),
    ],
)
def test_state_that_no_file_can_hold_by_name_is_GD_610_and_not_a_crash(make: Any, seen: str) -> None:
    model = small()
    optimizer = make(model.parameters())
    train(model, optimizer, 1)
    with pytest.raises(DataError, match="GD-610") as caught:
        optimizer_tensors(model, [optimizer])
    assert caught.value.seen == seen and "state_dict()" in caught.value.do
