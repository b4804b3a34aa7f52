"""Writes a directory for `from_pretrained` from a checkpoint and a base.

A checkpoint holds trained tensors and buffers, and state that peers do not exchange. The base, a directory of
`save_pretrained` for the same model, has the rest: frozen tensors, config.json, the tokenizer. The export has the names
of the base, and the values and types of the checkpoint. Weights are copied in pieces, so a model may be larger than
memory. Nothing here may unpickle, or import torch or transformers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from gossipdp.errors import MismatchError
from gossipdp.runtime.files import TEMPORARY, Files, bytes_of, replace_file, unwritable, write_file
from gossipdp.runtime.progress import Progress, Say, silent
from gossipdp.runtime.storage.checkpoint import SIZES, TENSORS, Checkpoint
from peers.export_base import Base, Part, Tensor

__all__ = ["SHARD", "Exported", "export_file", "export_files", "export_model", "trained"]

SHARD: Final = 5 * 10**9
"""bytes of a file of weights, unless a single tensor is larger"""
STEM: Final = "model"
"""of the files of weights of a model without a base"""
INDEX: Final = ".safetensors.index.json"
FLOATING: Final = {form: dtype for dtype, form in TENSORS.items()}


class Exported(NamedTuple):
    """Counts of what was written."""

    trained: int
    """tensors from the checkpoint"""
    kept: int
    """tensors from the base"""
    files: int
    """files of weights"""
    dropped: Sequence[str]
    """tied tensors, of which the base has a second copy"""


# -- the checkpoint ---------------------------------------------------------------------------------------------


def trained(checkpoint: Checkpoint, prefixes: Sequence[str] = ()) -> dict[str, Tensor]:
    """The tensors of `checkpoint` by name. A tied tensor stands under each of its names, one after another.

    A buffer that is in the vector and in the state, such as a mask, is the state's: the vector holds its reference.
    The state has each tensor under every name.

    Args:
        prefixes: removed from the names that begin with them, in turn.

    Raises:
        MismatchError: GD-301, a prefix matches no name, or makes two names equal.
        DataError: GD-601.
    """
    tensors: dict[str, Tensor] = {}
    entries = checkpoint.entries()
    for entry in entries:
        form = TENSORS[entry.dtype]
        tensor = Tensor(form, entry.shape, entry.numel * SIZES[form], partial(checkpoint.values, entry))
        tensors.update(dict.fromkeys((entry.name, *entry.also), tensor))
    also = {entry.name: entry.also for entry in entries}
    others = {other for entry in entries for other in entry.also}
    for name, kept in checkpoint.state().items():
        if kept.dtype != "C128" and name not in others:  # safetensors has no such type
            data, beside = bytes(kept.data), name not in tensors
            tensor = Tensor(kept.dtype, kept.shape, len(data), partial(iter, [data]), beside=beside)
            tensors.update(dict.fromkeys((name, *also.get(name, ())), tensor))
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in tensors):
            raise MismatchError(
                "GD-301",
                f"no tensor of the checkpoint has the prefix {prefix!r}",
                seen=f"its first tensor is {next(iter(tensors), 'none')}",
                do="give a prefix exactly as it is there, with its last dot, or none",
            )
        short: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if short.setdefault(name.removeprefix(prefix) or name, tensor) is not tensor:
                raise MismatchError(
                    "GD-301",
                    f"without the prefix {prefix!r} two tensors have the same name",
                    seen=name.removeprefix(prefix),
                    do="remove the prefix in the code that makes the model",
                )
        tensors = short
    return tensors


def export_file(tensors: Mapping[str, Tensor], out: Path, *, say: Say = silent) -> None:
    """Write `tensors` to one safetensors file. Its directory is made if it does not exist. Raises DataError GD-602."""
    _replace(tensors, out, _progress(tensors, out, say))


def export_files(tensors: Mapping[str, Tensor], out: Path, *, shard: int = SHARD, say: Say = silent) -> int:
    """Write `tensors` to the directory `out`: to one file, or to shards with an index, as Transformers does.

    Args:
        out: made if it does not exist. Files of an earlier export are replaced.
        shard: bytes of a file, at most.
        say: gets lines about progress.

    Returns:
        The number of files of weights.

    Raises:
        DataError: GD-602.
    """
    files, progress = _shards(tensors, STEM, shard), _progress(tensors, out, say)
    for name, group in files.items():
        _replace(group, out / name, progress)
    whole, index = out / f"{STEM}.safetensors", out / f"{STEM}{INDEX}"
    if len(files) > 1:
        replace_file(Files(), index, [_json(_index(files)).encode()])
    try:
        (whole if len(files) > 1 else index).unlink(missing_ok=True)  # of an earlier export, of another size
    except OSError as error:
        raise unwritable(out, error) from error
    return len(files)


def _replace(tensors: Mapping[str, Tensor], out: Path, progress: Progress) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from error
    replace_file(Files(), out, _file(tensors, progress))


def _progress(tensors: Mapping[str, Tensor], out: Path, say: Say) -> Progress:
    return Progress(f"writing {out.name}", sum(tensor.size for tensor in tensors.values()), say)


# -- a directory ------------------------------------------------------------------------------------------------


def export_model(
    checkpoint: Checkpoint,
    out: Path,
    base: Path,
    *,
    prefixes: Sequence[str] = (),
    shard: int = SHARD,
    say: Say = silent,
) -> Exported:
    """Write the directory `out`.

    Args:
        out: does not exist, or is empty.
        base: a directory of `save_pretrained`.
        prefixes: see `trained`.
        shard: bytes of a file of weights, at most.
        say: gets lines about progress.

    Raises:
        MismatchError: GD-301, the base is of another model, or a prefix does not match.
        DataError: GD-601, GD-602, GD-609.
    """
    source, tensors = Base(base), trained(checkpoint, prefixes)
    source.fit(name for name, tensor in tensors.items() if not tensor.beside)
    written = dict(source.tensors)
    changed = set()
    for name, tensor, others in _groups(tensors):
        base_has = written.get(source.name(name) or "")
        if tensor.beside and (base_has is None or base_has[:2] != tensor[:2]):
            continue  # state that is not exchanged may belong to another part of the program
        # `save_pretrained` keeps any one name of a tied tensor.
        there = [each for each in (name, *others) if source.name(each) is not None]
        for each in there or [name]:
            kept = source.name(each)
            if kept is None or kept in changed or written[kept].shape != tensor.shape:
                raise _differs(source, each, tensor, kept)
            written[kept] = tensor
            changed.add(kept)
    dropped = [name for name in sorted(source.tensors.keys() - changed) if source.tied(name, changed)]
    for name in dropped:
        del written[name]
    folders = {part.folder: _shards(_inside(part, written), part.stem, shard) for part in source.parts}
    _write_directory(out, folders, source, _progress(written, out, say))
    return Exported(len(changed), len(written) - len(changed), sum(map(len, folders.values())), dropped)


def _inside(part: Part, written: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is written of `part`, by the names in its files."""
    return {name: written[part.folder + name] for name in part.tensors if part.folder + name in written}


def _groups(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor, list[str]]]:
    """Each tensor once: its first name, the tensor, its other names."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return [(first, tensors[first], others) for first, *others in names.values()]


def _differs(base: Base, name: str, tensor: Tensor, kept: str | None) -> MismatchError:
    do = "save the trained model with save_pretrained, and name that directory"
    if kept is None:
        # Transformers 5 saves some models, mainly mixtures of experts, under other names than their modules have.
        do += "; with save_original_format=False if names still differ"
        seen = f"{name} is not in {base.directory}"
        words = name.split(".")
        if later := next((at for at in range(1, len(words)) if ".".join(words[at:]) in base.tensors), 0):
            prefix = ".".join(words[:later]) + "."
            seen, do = f"{seen}, but {name.removeprefix(prefix)} is", f"--strip-prefix {prefix}"
        elif longer := next((each for each in base.tensors if each.endswith((f".{name}", f"/{name}"))), ""):
            seen += f", but {longer} is"
    elif base.tensors[kept].shape != tensor.shape:
        seen = f"{name} has the shape {tensor.shape}, but {base.tensors[kept].shape} in {base.directory}"
    else:
        seen = f"{name} and another tensor are both {kept} in {base.directory}"
    return MismatchError("GD-301", "the base is of another model", seen=seen, do=do)


def _shards(tensors: Mapping[str, Tensor], stem: str, most: int) -> dict[str, dict[str, Tensor]]:
    """Distribute tensors over files, in order, as Transformers does."""
    groups: list[dict[str, Tensor]] = [{}]
    room = most
    for name, tensor in tensors.items():
        if tensor.size > room and groups[-1]:
            groups.append({})
            room = most
        groups[-1][name] = tensor
        room -= tensor.size
    if len(groups) == 1:
        return {f"{stem}.safetensors": groups[0]}
    return {f"{stem}-{at:05d}-of-{len(groups):05d}.safetensors": group for at, group in enumerate(groups, 1)}


def _index(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Which file has which tensor."""
    size = sum(tensor.size for group in files.values() for tensor in group.values())
    places = {tensor: name for name, group in files.items() for tensor in group}
    return {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}


def _write_directory(
    out: Path, folders: Mapping[str, Mapping[str, Mapping[str, Tensor]]], base: Base, progress: Progress
) -> None:
    """Write the whole directory, or nothing.

    Args:
        folders: files of weights, by folder and name.
    """
    made, system = out.with_name(f"{TEMPORARY}{out.name}-{os.getpid()}"), Files()
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise FileExistsError(f"{out} already exists, and is left as it is")
        if made.exists():  # left by a killed process with this pid
            system.remove(made)
        system.make_directory(made)
        for path in base.beside():
            to = made / path.relative_to(base.directory)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
        whole = folders.get("", {})
        if dtype := _one_dtype(tensor for group in whole.values() for tensor in group.values()):
            _set_dtype(made / "config.json", base.config, dtype)
        for part in base.parts:
            files, folder = folders[part.folder], made / part.folder
            folder.mkdir(parents=True, exist_ok=True)
            for name, group in files.items():
                write_file(system, folder / name, _file(group, progress))
            if len(files) > 1:
                (folder / f"{part.stem}{INDEX}").write_text(_json(_index(files)))
            system.sync_directory(folder)
        system.sync_directory(made)
        system.rename(made, out)
        system.sync_directory(out.parent)
    except OSError as error:
        raise unwritable(out, error) from error
    finally:
        with suppress(OSError):
            system.remove(made)


def _file(tensors: Mapping[str, Tensor], progress: Progress) -> Iterator[bytes | NDArray[Any]]:
    # The widest numbers first, as the library writes them. Each tensor then starts at a multiple of its width.
    names = sorted(tensors, key=lambda name: -SIZES.get(tensors[name].dtype, 1))
    yield _header({name: tensors[name] for name in names})
    for name in names:
        for piece in tensors[name].contents():
            yield piece
            progress.advance(bytes_of(piece).nbytes)


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.size
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _one_dtype(tensors: Iterable[Tensor]) -> str:
    """The type of the floating-point tensors if all have the same, else ""."""
    found = {FLOATING[tensor.dtype] for tensor in tensors if tensor.dtype in FLOATING}
    return found.pop() if len(found) == 1 else ""


def _set_dtype(path: Path, config: Mapping[str, Any], dtype: str) -> None:
    """Write the trained type to config.json: Transformers loads in that type, and would round to another one."""
    key = next((key for key in ("dtype", "torch_dtype") if isinstance(config.get(key), str)), "")
    if key and config[key] != dtype:
        path.write_text(_json({**config, key: dtype}))


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
