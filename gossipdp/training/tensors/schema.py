"""Which tensors of a torch model are exchanged, and in which order.

Parameters that require gradients come first, then persistent floating-point buffers; tied tensors count once. Frozen
parameters (see `frozen`), integer buffers and excluded tensors are not exchanged (see `carried`). A sharded parameter
counts with its full shape, so the schema does not depend on the number of ranks (`fully_shard`: Zhao et al., "PyTorch
FSDP", arXiv 2304.11277). Nothing here changes a number in a tensor, or compares two schemas:
`Schema.first_difference` in `gossipdp/protocol/schema.py` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from gossipdp.errors import MismatchError
from gossipdp.protocol.schema import MAX_ALSO, MAX_NAME, Dtype, Kind, Schema

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "DTYPES",
    "FROZEN_DIFFER",
    "FROZEN_DIFFER_PARTLY",
    "Extent",
    "candidates",
    "exchanged",
    "extent",
    "local",
    "places",
    "plain_name",
    "resharded",
    "unwrap",
]

DTYPES: Final[dict[torch.dtype, Dtype]] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
}

FROZEN_DIFFER: Final = (
    "load the same base on every host, in one dtype; if it is drawn at random, call torch.manual_seed with one number"
    " on every host before it is made; if it should differ: attach(..., compare_frozen=False)"
)
FROZEN_DIFFER_PARTLY: Final = (
    "if these are drawn at random, as LoRA's A is, a seed is missing: call torch.manual_seed with one number on every"
    " host before they are made; otherwise load them from one file; if they should differ:"
    " attach(..., compare_frozen=False)"
)
"""what to do about other frozen parameters than the network's: about all of them, and about some"""


WRAPPERS: Final = ("_orig_mod", "_checkpoint_wrapped_module", "_forward_module", "_original_module")
"""what torch.compile, activation checkpointing and Lightning Fabric put into a name; Fabric's two are one module"""


def unwrap(model: nn.Module) -> nn.Module:
    """The user's module inside DDP, DataParallel, torch.compile or Fabric, whose prefixes are no part of a name."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
            continue
        inner = getattr(model, "_forward_module", getattr(model, "_orig_mod", None))
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def resharded(model: nn.Module) -> nn.Module:
    """Let `model` hold its shards again, and return it.

    After a forward pass without a backward pass, as in an evaluation, FSDP2's root module keeps what it gathered in
    place of its parameters. No optimizer knows that tensor.
    """
    # A module that was never imported has no instances, so it need not be imported here.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", ())
    for module in model.modules():
        if isinstance(module, kind):
            module.reshard()
    return model


def plain_name(name: str) -> str:
    """`name` without the parts that wrappers put into it."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


class Extent(NamedTuple):
    """Elements [first, last) of a tensor, in row-major order, that this rank holds."""

    first: int
    last: int
    sharded: bool
    """True: the other ranks hold the rest. False: they hold the same"""
    primary: bool = True
    """True if no lower rank holds the same shard"""


def _is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _splits(placement: Any) -> bool:
    """True for torch's plain Shard(0)."""
    return type(placement).__name__ == "Shard" and placement.dim == 0


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of `tensor`, in the same memory. Gathers nothing."""
    part: Tensor = tensor.detach()
    return part.to_local() if _is_sharded(part) else part


def extent(tensor: Tensor) -> Extent:
    """Which part of `tensor` this rank holds; for a DTensor, the rows that `torch.chunk` gives it."""
    if not _is_sharded(tensor):
        return Extent(0, tensor.numel(), sharded=False)
    mesh, primary = tensor.device_mesh, True
    coordinate = mesh.get_coordinate()
    first, last, sharded = 0, tensor.numel(), False
    for dimension, placement in enumerate(tensor.placements):
        place = 0 if coordinate is None else coordinate[dimension]
        if _splits(placement):
            rows, width = tensor.shape[0], tensor.numel() // max(1, tensor.shape[0])
            each = -(-rows // mesh.size(dimension))
            first, last = min(rows, place * each) * width, min(rows, (place + 1) * each) * width
            sharded = True
        else:
            primary = primary and place == 0
    return Extent(first, last, sharded, primary)


def exchanged(model: nn.Module, excluded: frozenset[str] = frozenset()) -> tuple[Schema, list[Tensor]]:
    """The schema of `model` and its tensors, in the schema's order. Sharded ones are DTensors.

    Args:
        model: wrapped or not.
        excluded: names of tensors that are not exchanged.

    Raises:
        MismatchError: GD-304, its sharding cannot be exchanged; GD-305, one of its tensors cannot be exchanged.
    """
    model = resharded(unwrap(model))
    _refuse_shards(model)
    found: list[tuple[str, Tensor, Kind]] = []
    extents: dict[tuple[torch.device, int], list[tuple[int, int, str]]] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name, tensor, kind in candidates(model):
        if name in excluded:
            continue
        _check(name, tensor)
        key = _storage_key(tensor)
        if key in seen:
            continue
        seen[key] = name
        # A detached twin would keep the old memory when FSDP2 or `p.data =` gives the tensor another.
        found.append((name, tensor, kind))
        storage = (tensor.device, local(tensor).untyped_storage().data_ptr())
        extents.setdefault(storage, []).append((*_extent(tensor), name))
    _refuse_overlaps(extents)
    if not any(kind == "parameter" for _, _, kind in found):
        raise MismatchError("GD-305", "the model has no parameter that requires gradients", do="attach another model")
    found.sort(key=lambda item: item[2] == "buffer")
    try:
        tensors = [(name, tuple(tensor.shape), DTYPES[tensor.dtype], kind) for name, tensor, kind in found]
        schema = Schema.of(tensors, also=_tied(model, seen), excluded=excluded)
    except ValueError as error:
        raise MismatchError("GD-305", "the model cannot be laid out as one vector", seen=str(error)) from None
    return schema, [tensor for _, tensor, _ in found]


def _tied(model: nn.Module, seen: Mapping[tuple[object, ...], str]) -> dict[str, tuple[str, ...]]:
    """The other names under which `model` saves each tensor of `seen`, by its name in the schema."""
    also: dict[str, dict[str, None]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        tensors: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
        for key, tensor in tensors.items():
            if tensor is None or tensor.dtype not in DTYPES or isinstance(tensor, nn.UninitializedParameter):
                continue
            if key in module._non_persistent_buffers_set or (key in module._parameters and not tensor.requires_grad):
                continue
            name = plain_name(f"{prefix}.{key}" if prefix else key)
            first = seen.get(_storage_key(tensor), name)
            if name != first and len(name) <= MAX_NAME:
                also.setdefault(first, {})[name] = None
    return {first: tuple(names)[:MAX_ALSO] for first, names in also.items()}


def candidates(model: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    """The tensors of `model`, unwrapped, that could be exchanged now: plain name, tensor, kind."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (isinstance(parameter, nn.UninitializedParameter) or parameter.numel()):
            yield plain_name(name), parameter, "parameter"
    for name, module, key in places(model):
        buffer = module._buffers[key]
        if buffer is not None and buffer.is_floating_point() and buffer.numel():
            yield name, buffer, "buffer"


def places(model: nn.Module, *, every_name: bool = False) -> Iterator[tuple[str, nn.Module, str]]:
    """The persistent buffers of `model`, unwrapped: plain name, module, and key there.

    A forward pass may put another tensor in such a place.

    Args:
        every_name: a module that the model has under several names counts under each, not under the first alone.
    """
    for prefix, module in model.named_modules(remove_duplicate=not every_name):
        for key in module._buffers:
            if key not in module._non_persistent_buffers_set:
                yield plain_name(f"{prefix}.{key}" if prefix else key), module, key


def _refuse_shards(model: nn.Module) -> None:
    for name, module in model.named_modules():
        # Its flat parameters hide the names. fully_shard, which replaces it, keeps them.
        if type(module).__name__ == "FullyShardedDataParallel":
            raise MismatchError(
                "GD-304",
                "FullyShardedDataParallel is not supported",
                seen=f"{name or 'the model'} is wrapped in it",
                do="shard with torch.distributed.fsdp.fully_shard (FSDP2)",
            )
    for name, tensor, _ in candidates(model):
        if not _is_sharded(tensor):
            continue
        split = [placement for placement in tensor.placements if not placement.is_replicate()]
        if len(split) > 1 or not all(_splits(placement) for placement in split):
            raise MismatchError(
                "GD-304",
                "a tensor is sharded in a way that cannot be exchanged",
                seen=f"{name}: {tensor.placements}",
                do="shard along the first dimension, over one dimension of the device mesh, as fully_shard does",
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
            do="parameters and buffers must be dense float32, float64, bfloat16 or float16; freeze or exclude others",
        )


def _storage_key(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that share all their memory."""
    return (tensor.device, local(tensor).data_ptr() or id(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the tensor's first and last byte."""
    tensor = local(tensor)
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr() - 1
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() - 1


def _refuse_overlaps(extents: dict[tuple[torch.device, int], list[tuple[int, int, str]]]) -> None:
    """Refuse tensors that share a part of their memory: a correction would be added twice there."""
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
