"""The state file of a training script: what a script that starts again needs and its daemon does not keep.

It is a safetensors file. Tensors are the optimizers' state, named as by `optimizer_tensors`. While gossip is off no
daemon keeps the model, so the file holds it too. Counts and the script's own values are JSON in the metadata. The
first rank reads and writes, and every rank hears how that ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from gossipdp.errors import DataError
from gossipdp.runtime import plain_json
from gossipdp.runtime.files import Files
from gossipdp.training.optimizer_state.followed import Optimizers
from gossipdp.training.optimizer_state.state_dict import SEPARATOR

__all__ = ["Counts", "Resumed", "load_state_file", "save_state_file"]

T = TypeVar("T")
COUNTS: Final = "gossipdp"
EXTRA: Final = "extra"
"""keys of the metadata"""


class Counts(msgspec.Struct, frozen=True):
    """How far the script had come."""

    steps: int
    """its own, in all its lives"""
    samples: int
    clock: int
    """the network's, in steps"""
    run: str = ""
    """the network's run, in hexadecimal digits; files of earlier releases, and of training without gossip, have none"""


class Resumed(NamedTuple):
    """What `load_state_file` gives back to the script."""

    counts: Counts
    extra: dict[str, Any]


class _Found(NamedTuple):
    """A file as read on the first rank."""

    counts: Counts
    extra: dict[str, Any]
    optimizers: bool
    model: bool
    """whether there are tensors of these"""


def save_state_file(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    counts: Counts,
    extra: Mapping[str, Any],
    *,
    whole: bool,
) -> None:
    """Write the file. Collective. After a crash there is the old one or the new one.

    Args:
        extra: what JSON can hold.
        whole: with the model.

    Raises:
        DataError: GD-602, it cannot be written; GD-610, as `optimizer_tensors`.
        TypeError: JSON cannot hold `extra`.
    """
    metadata = {COUNTS: msgspec.json.encode(counts).decode(), EXTRA: json.dumps(dict(extra))}
    tensors = optimizers.tensors() | (_model_tensors(model) if whole else {})
    _on_first_rank(model, lambda: _write(Path(path), tensors, metadata))


def load_state_file(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    *,
    whole: bool,
    missing_ok: bool,
    run: str = "",
) -> Resumed | None:
    """Load the file that `save_state_file` wrote. Collective.

    Args:
        whole: with the model.
        run: refuse the file of another run than this; "" refuses none. The first rank's counts.

    Returns:
        None if there is no file, and `missing_ok`.

    Raises:
        DataError: GD-601, the file is damaged; GD-604, there is none; GD-608, it is of another model, optimizer or
            run, or has no model that is wanted; GD-610, as `optimizer_tensors`.
    """
    tensors: dict[str, Tensor] = {}
    found = _on_first_rank(model, lambda: _read(Path(path), tensors, run, missing_ok=missing_ok))
    if found is None:
        return None
    if whole and not found.model:
        raise DataError(
            "GD-608",
            "the saved state has no model, and gossip is off",
            seen="it was saved in a network, whose daemons keep the model",
            do="unset GOSSIPDP_OFF and start the daemon; to train alone, begin in another folder or with another file",
        )
    if whole:
        _restore_model(model, {name.removeprefix(SEPARATOR): tensors[name] for name in tensors if _of_model(name)})
    if found.optimizers:
        optimizers.restore({name: each for name, each in tensors.items() if not _of_model(name)})
    return Resumed(found.counts, found.extra)


# -- the file ----------------------------------------------------------------------------------------------------


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    files, temporary = Files(), path.with_name(f".unfinished-{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(temporary), metadata)
        with open(temporary, "rb") as file:
            files.sync(file)
        files.rename(temporary, path)
        files.sync_directory(path.parent)
    except (OSError, SafetensorError) as error:
        do = "free disk space, or let this user write there; an earlier file is unchanged"
        raise DataError("GD-602", f"{path} could not be written", seen=str(error), do=do) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _read(path: Path, tensors: dict[str, Tensor], run: str, *, missing_ok: bool) -> _Found | None:
    """Read the file's tensors into `tensors`."""
    try:
        with safe_open(path, "pt") as file:
            metadata, names = file.metadata() or {}, file.keys()
            tensors.update({name: file.get_tensor(name) for name in names})
        counts, extra = plain_json.decode(metadata[COUNTS], Counts), plain_json.parse(metadata[EXTRA])
    except FileNotFoundError:
        if missing_ok:
            return None
        do = "give the path that peer.save was given; to begin without a file: peer.load(path, missing_ok=True)"
        raise DataError("GD-604", "there is no state to load", seen=str(path), do=do) from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        do = "check this disk; delete the file to begin without it: the network has the model"
        seen = "peer.save did not write it" if isinstance(error, KeyError) else str(error)
        raise DataError("GD-601", f"{path} is damaged, or is not a state file", seen=seen, do=do) from None
    if run and counts.run not in ("", run):
        raise DataError(
            "GD-608",
            "the saved state belongs to another network's run",
            seen=f"run {counts.run[:6]}, step {counts.clock}; this network's run is {run[:6]}",
            do="give this network's state a path of its own, or delete the file; if the network was founded again and"
            " continues with that model: peer.load(path, any_run=True)",
        )
    of_model = [_of_model(name) for name in tensors]
    return _Found(counts, extra, not all(of_model), any(of_model))


def _of_model(name: str) -> bool:
    return name.startswith(SEPARATOR)


# -- the model ---------------------------------------------------------------------------------------------------


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model as tensors of a state file, on the first rank. Collective."""
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    # Tied weights share memory, which the format does not have.
    return {
        f"{SEPARATOR}{name}": each.clone(memory_format=torch.contiguous_format)
        for name, each in whole.items()
        if isinstance(each, Tensor)
    }


def _restore_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the model of a state file, given on the first rank. Collective.

    Raises:
        DataError: GD-608, it is another model.
    """
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=_several(), strict=False)
    try:
        found = set_model_state_dict(model, dict(tensors), options=options)
    except (RuntimeError, AssertionError) as error:
        raise _another(str(error)) from None
    missing = [name for name in found.missing_keys if not name.endswith("_extra_state")]
    if missing or found.unexpected_keys:
        raise _another(f"missing {missing[:3]}, unexpected {found.unexpected_keys[:3]}")


def _another(seen: str) -> DataError:
    do = "delete the file to start again, or give this model a path of its own"
    return DataError("GD-608", "the saved state belongs to another model", seen=seen, do=do)


# -- the ranks ---------------------------------------------------------------------------------------------------


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _on_first_rank(model: nn.Module, action: Callable[[], T]) -> T:
    """The result of `action` on the first rank, or its error, on every rank."""
    said: list[Any] = [None, None]
    if not _several() or dist.get_rank() == 0:
        try:
            said[0] = action()
        except DataError as error:
            said[1] = error.code, error.cause, error.seen, error.do
    if _several():
        # NCCL would use the current device, which may be another rank's.
        dist.broadcast_object_list(said, 0, device=next(model.parameters()).device)
    if said[1] is not None:
        code, cause, seen, do = said[1]
        raise DataError(code, cause, seen=seen, do=do)
    done: T = said[0]
    return done
