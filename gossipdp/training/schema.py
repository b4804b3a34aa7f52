"""Which tensors of a torch model are exchanged, and in which order.

Parameters that require gradients, then persistent floating-point buffers; tied tensors once. Frozen parameters and
integer buffers stay at home. Nothing here may change a tensor.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from gossipdp.errors import MismatchError
from gossipdp.protocol.schema import Dtype, Kind, Schema

__all__ = ["exchanged", "unwrap"]

log = logging.getLogger("gossipdp.training")

DTYPES: Final[dict[torch.dtype, Dtype]] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
}


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP, DataParallel or torch.compile: their prefixes are not part of a name."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def exchanged(model: nn.Module) -> tuple[Schema, list[Tensor]]:
    """The schema of `model` and, in its order, the tensors themselves.

    Raises:
        MismatchError: GD-304, the model is sharded (FSDP, DTensor); GD-305, it has tensors that cannot be exchanged.
    """
    model = unwrap(model)
    _refuse_shards(model)
    found: list[tuple[str, Tensor, Kind]] = []
    extents: dict[tuple[torch.device, int], list[tuple[int, int, str]]] = {}
    seen: set[tuple[object, ...]] = set()
    for name, tensor, kind in _candidates(model):
        _check(name, tensor)
        key = _storage_key(tensor)
        if key in seen:
            continue
        seen.add(key)
        if kind == "buffer" and not bool(torch.isfinite(tensor).all()):
            log.info("buffer %s holds Inf or NaN (a mask?) and is not exchanged", name)
            continue
        found.append((name, tensor.detach(), kind))
        storage = (tensor.device, tensor.untyped_storage().data_ptr())
        extents.setdefault(storage, []).append((*_extent(tensor), name))
    _refuse_overlaps(extents)
    if not any(kind == "parameter" for _, _, kind in found):
        raise MismatchError("GD-305", "the model has no parameter that requires gradients", do="attach another model")
    found.sort(key=lambda item: item[2] == "buffer")
    try:
        schema = Schema.of((name, tuple(tensor.shape), DTYPES[tensor.dtype], kind) for name, tensor, kind in found)
    except ValueError as error:
        raise MismatchError("GD-305", "the model cannot be laid out as one vector", seen=str(error)) from None
    return schema, [tensor for _, tensor, _ in found]


def _candidates(model: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (isinstance(parameter, nn.UninitializedParameter) or parameter.numel()):
            yield name, parameter, "parameter"
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            passing = name in module._non_persistent_buffers_set
            if buffer is not None and not passing and buffer.is_floating_point() and buffer.numel():
                yield f"{prefix}.{name}" if prefix else name, buffer, "buffer"


def _refuse_shards(model: nn.Module) -> None:
    # A module that was never imported has no instances: so nothing is imported to find out.
    tensors = sys.modules.get("torch.distributed.tensor")
    wrappers = sys.modules.get("torch.distributed.fsdp")
    sharded = getattr(tensors, "DTensor", ())
    wrapper = getattr(wrappers, "FullyShardedDataParallel", ())
    names = [name for name, parameter in model.named_parameters() if isinstance(parameter, sharded)]
    names += [name or "the model" for name, module in model.named_modules() if isinstance(module, wrapper)]
    if names:
        raise MismatchError(
            "GD-304",
            "FSDP and other sharded models are not supported yet",
            seen=f"{names[0]} is sharded",
            do="train the replica with DistributedDataParallel, or on one GPU",
        )


def _check(name: str, tensor: Tensor) -> None:
    reason = ""
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        reason = "it is not initialized: run the model once before attaching"
    elif tensor.is_meta:
        reason = "it is on the meta device: materialize the model before attaching"
    elif tensor.dtype not in DTYPES:
        reason = f"its dtype is {tensor.dtype}"
    elif tensor.layout is not torch.strided:
        reason = f"its layout is {tensor.layout}"
    elif any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        reason = "it is an expanded view"
    if reason:
        raise MismatchError(
            "GD-305",
            "a tensor of the model cannot be exchanged",
            seen=f"{name}: {reason}",
            do="parameters and buffers must be dense float32, float64, bfloat16 or float16; freeze what is not",
        )


def _storage_key(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same numbers in memory."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _extent(tensor: Tensor) -> tuple[int, int]:
    """First and last byte of the tensor, in memory."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() - 1


def _refuse_overlaps(extents: dict[tuple[torch.device, int], list[tuple[int, int, str]]]) -> None:
    """Tensors that share only a part of their memory would take a correction twice there."""
    for tensors in extents.values():
        tensors.sort()
        for (_, last, name), (first, _, other) in pairwise(tensors):
            if first <= last:
                raise MismatchError(
                    "GD-305",
                    "two tensors of the model share a part of their memory",
                    seen=f"{name} and {other}",
                    do="tie whole tensors, or none",
                )
