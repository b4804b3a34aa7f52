"""Finds optimizers that compute the weights from a point of their own, and so draw corrections back.

MADGRAD and D-Adaptation keep where they started, Lookahead keeps an average. No list of classes knows them all. So a
small copy of the optimizer makes some steps twice with the same gradients, and the second time its weights are changed
near the end. An update that depends on gradients alone keeps the whole change. Schedule-free optimizers average all
their steps, so they take back less the longer they have trained. Nothing here knows the daemon.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from gossipdp.training.tensors.schema import local

__all__ = ["DRAWN_BACK", "STEPS", "drawn_back"]

DRAWN_BACK: Final = 0.2
"""share of a change from which an optimizer is named; weight decay and trust ratios stay below 0.08"""
BEFORE: Final = 100
"""steps before the change"""
STEPS: Final = 10
"""steps after it"""
WIDTH: Final = 4
"""elements of the copy in each dimension of a tensor, at most"""
PARAMETERS: Final = 8
"""parameters of the copy in each group, at most"""
LENGTH: Final = 0.1
"""standard deviation of gradients and of the change"""


def drawn_back(optimizer: torch.optim.Optimizer) -> float | None:
    """The share of a change of the weights that `optimizer` takes back within ten steps.

    The optimizer itself, its parameters and the random numbers of this process stay as they are.

    Returns:
        0 for updates that depend on gradients alone. None if its steps cannot be tried, such as one that needs a
        closure.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    devices = {each.get_device() for each in parameters if each.is_cuda}
    state = random.getstate()
    try:
        with torch.random.fork_rng(sorted(devices)):
            plain, _ = _played(optimizer, 0.0)
            changed, changes = _played(optimizer, LENGTH)
    except Exception:  # another's code, in a setting that it need not support
        return None
    finally:
        random.setstate(state)
    length2 = sum(float((each * each).sum()) for each in changes)
    lost = sum(float(((a + c - b) * c).sum()) for a, b, c in zip(plain, changed, changes, strict=True))
    return lost / length2 if length2 else None


@torch.no_grad()
def _played(optimizer: torch.optim.Optimizer, length: float) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of a copy after all its steps, and their change near the end, of standard deviation `length`."""
    stepped = _small(optimizer, {})
    weights: list[Tensor] = [each for group in stepped.param_groups for each in group["params"]]
    random.seed(0)
    torch.manual_seed(0)
    changes = [length * torch.randn_like(each) for each in weights]
    for step in range(BEFORE + STEPS):
        if step == BEFORE:
            for weight, change in zip(weights, changes, strict=True):
                weight += change
        for weight in weights:
            weight.grad = LENGTH * torch.randn_like(weight)
        type(stepped).step(stepped)
    return [each.double() for each in weights], [each.double() for each in changes]


def _small(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """A copy of `optimizer` with a corner of each tensor, without hooks. memo: as of `copy.deepcopy`."""
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
    for each in _tensors([*attributes.values()]):
        memo.setdefault(id(each), _corner(each))
    for name, value in attributes.items():
        if isinstance(value, torch.optim.Optimizer):
            made.__dict__[name] = memo[id(value)] if id(value) in memo else _small(value, memo)
        else:
            hooks = name.startswith("_optimizer_") and isinstance(value, OrderedDict)
            made.__dict__[name] = OrderedDict() if hooks else copy.deepcopy(value, memo)
    for group in made.param_groups:
        group["params"] = group["params"][:PARAMETERS]
    return made


def _tensors(values: Sequence[object]) -> Iterator[Tensor]:
    """All tensors in `values`, and in dictionaries, lists and tuples there."""
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, dict):
            yield from _tensors([*each.keys(), *each.values()])
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _corner(tensor: Tensor) -> Tensor:
    held = local(tensor.detach())
    part = held[tuple(slice(WIDTH) for _ in held.shape)].clone()
    return nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part
