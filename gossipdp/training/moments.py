"""The inner optimizer's state as plain named tensors, of any way to train, and back.

Names and shapes are those of the whole model, so that what a sharded group saved a group of another size, or a single
process, can load. Nothing here may know the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossipdp.errors import DataError
from gossipdp.training.schema import plain_name, unwrap

__all__ = ["optimizer_tensors", "restore_optimizer"]

SEPARATOR: Final = "::"
"""between a parameter's name and the name of what is kept of it; no module's name holds it"""


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """ "blocks.0.weight::exp_avg" -> tensor on the CPU, whole. Collective; on all ranks but the first it is empty."""
    torch_state = _torch_state()
    options = torch_state.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = torch_state.get_optimizer_state_dict(unwrap(model), optimizer, options=options)
    return {
        f"{name}{SEPARATOR}{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, kept in state.get("state", {}).items()
        for key, value in kept.items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave. Collective; what ranks but the first pass is not looked at.

    Learning rates and other settings stay as they are.

    Raises:
        DataError: GD-608, the tensors are of another model or optimizer.
    """
    model = unwrap(model)
    several = dist.is_initialized() and dist.get_world_size() > 1
    first = not several or dist.get_rank() == 0
    torch_state = _torch_state()
    # With it torch makes the state there is not yet, for tensors to be copied into.
    wanted = torch_state.get_optimizer_state_dict(model, optimizer)
    found: dict[str, dict[str, Any]] = {}
    problem = ""
    if first:
        for key, value in tensors.items():
            name, separator, kind = key.rpartition(SEPARATOR)
            if separator:
                found.setdefault(name, {})[kind] = value
        problem = _difference(model, wanted["state"], found)
    if several:
        said: list[Any] = [problem]
        dist.broadcast_object_list(said, 0)
        problem = said[0]
    if problem:
        raise DataError(
            "GD-608",
            "the optimizer's state is of another model or optimizer",
            seen=problem,
            do="load what this model's own training saved, or start with fresh moments",
        )
    options = torch_state.StateDictOptions(full_state_dict=True, broadcast_from_rank0=several)
    state = {"state": found, "param_groups": wanted["param_groups"]}
    torch_state.set_optimizer_state_dict(model, optimizer, state if first else {}, options=options)


def _difference(model: nn.Module, wanted: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> str:
    trained = {plain_name(name): each.shape for name, each in model.named_parameters() if each.requires_grad}
    if missing := sorted(trained.keys() - found.keys()):
        return f"nothing is kept of {missing[0]}"
    if strange := sorted(found.keys() - trained.keys()):
        return f"{strange[0]} is no parameter of this model"
    for name, kept in found.items():
        kinds = wanted.get(name, kept).keys()
        if kinds != kept.keys():
            return f"{name} has {', '.join(sorted(kept))}, not {', '.join(sorted(kinds))}"
        for kind, value in kept.items():
            if value.dim() and value.shape != trained[name]:
                return f"{name}{SEPARATOR}{kind} has the shape {tuple(value.shape)}, not {tuple(trained[name])}"
    return ""


def _torch_state() -> Any:
    # Half as long to import as torch itself, and most trainings never need it.
    from torch.distributed.checkpoint import state_dict

    return state_dict
