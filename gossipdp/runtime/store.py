"""What a peer keeps on disk: checkpoints, and small state files. The newest one reported as saved always loads.

A checkpoint is a directory, complete the moment it has its final name:

    checkpoint-00000012/
      state.safetensors    flat vectors by name (anchor, momentum), written in pieces: no second copy in memory
      schema.bin           the model's layout in canonical bytes
      manifest.json        what it is of, and length and BLAKE2b of the other two; written last
      pinned               only in one that must not be dropped, however old: why not

It is written under a temporary name in the same directory, every file is synced, then renamed, then the directory
synced (Pillai et al., OSDI 2014: without each of these steps some file system loses it). Reading trusts nothing: the
manifest's types and limits are checked, then both hashes, and only then does the safetensors library parse. Nothing
here may unpickle, know a peer's protocol state, or decide when to save.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gossipdp.errors import DataError, RemoteProtocolError
from gossipdp.protocol.schema import Dtype, Schema
from gossipdp.runtime.files import (
    TEMPORARY,
    Files,
    Hex,
    Remembered,
    bytes_of,
    load_members,
    load_run,
    read_bounded,
    save_members,
    save_run,
    unwritable,
    write_file,
)

__all__ = [
    "Checkpoint",
    "CheckpointMeta",
    "Files",
    "Manifest",
    "Remembered",
    "Store",
    "Writer",
    "load_members",
    "load_run",
    "save_members",
    "save_run",
]

FORMAT: Final = 1
PIECE: Final = 4 << 20
"""bytes read, hashed or written at a time"""
ANCHOR: Final = "anchor"
"""the array that holds the outer parameters, in schema order"""
MAX_MANIFEST: Final = 64 << 10
MAX_HEADER: Final = 1 << 20
"""bytes of the safetensors header of a checkpoint"""
MAX_SCHEMA: Final = 64 << 20

_STATE, _SCHEMA, _MANIFEST = "state.safetensors", "schema.bin", "manifest.json"
_PINNED: Final = "pinned"
_NAMES: Final = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "uint16": "U16", "uint8": "U8"}
"""numpy's name of a dtype -> the format's"""
_TENSORS: Final = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16"}
"""the schema's name of a dtype -> the format's"""
_SIZES: Final = {"F64": 8, "I64": 8, "F32": 4, "F16": 2, "BF16": 2, "U16": 2, "U8": 1}

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Shape = tuple[int, ...]


class CheckpointMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint is of. Ids and digests are hexadecimal."""

    network: Annotated[str, Meta(max_length=64)]
    run: Hex
    peer: Hex
    incarnation: Count
    round: Count
    clock: Count
    """the network's clock, in steps"""
    steps: Count
    samples: Count
    schema: Hex
    """the schema's digest"""
    extra: dict[str, str | int | float | bool] = {}
    """whatever else the caller wants back"""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bytes: Count
    blake2b: Hex


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[int, Meta(ge=1)]
    saved_at: float
    """Unix time"""
    meta: CheckpointMeta
    files: dict[str, FileRecord]


# -- writing a checkpoint ----------------------------------------------------------------------------------------


class Writer:
    """A checkpoint being written: pieces in the order of `layout`, then `commit`; until then there is none.

    The caller may take its time between pieces, so that a whole-vector write can be a sequence of chunk jobs.
    """

    def __init__(self, store: Store, meta: CheckpointMeta, schema: bytes, layout: Mapping[str, tuple[str, Shape]]):
        self._store, self._meta, self._files = store, meta, store.files
        self._final = store.dir / f"checkpoint-{store.next_number():08d}"
        self._directory = store.dir / f"{TEMPORARY}{self._final.name}"
        self._hash, self._written = hashlib.blake2b(digest_size=32), 0
        self._file: IO[bytes] | None = None
        header, self._left = _header(layout, {})
        self._left += len(header)
        with self._guarded():
            store.prepare()
            self._files.make_directory(self._directory)
            write_file(self._files, self._directory / _SCHEMA, [schema])
            self._schema = FileRecord(bytes=len(schema), blake2b=hashlib.blake2b(schema, digest_size=32).hexdigest())
            self._file = self._files.create(self._directory / _STATE)
            self._put(memoryview(header))

    def write(self, piece: NDArray[Any] | memoryview | bytes) -> None:
        """Append `piece`, contiguous. Raises DataError GD-602; the unfinished checkpoint is then gone."""
        view = bytes_of(piece)
        with self._guarded():
            for start in range(0, len(view), PIECE):
                self._put(view[start : start + PIECE])

    def commit(self) -> Path:
        """Sync, write the manifest, give the checkpoint its name, drop the oldest. Returns its directory.

        Raises:
            DataError: GD-602.
        """
        with self._guarded():
            if self._left or self._file is None:
                raise ValueError(f"{self._left} bytes of the announced layout are missing")
            self._files.sync(self._file)
            self._file.close()
            state = FileRecord(bytes=self._written, blake2b=self._hash.hexdigest())
            manifest = Manifest(
                format=FORMAT, saved_at=time.time(), meta=self._meta, files={_STATE: state, _SCHEMA: self._schema}
            )
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            write_file(self._files, self._directory / _MANIFEST, [text])
            self._files.sync_directory(self._directory)
            self._files.rename(self._directory, self._final)
            self._files.sync_directory(self._store.dir)
        self._store.prune()
        return self._final

    def abandon(self) -> None:
        """Forget the unfinished checkpoint."""
        if self._file is not None:
            self._file.close()
            self._file = None
        with suppress(OSError):
            self._files.remove(self._directory)

    def _put(self, piece: memoryview) -> None:
        if len(piece) > self._left or self._file is None:
            raise ValueError("more bytes than the announced layout")
        self._files.write(self._file, piece)
        self._hash.update(piece)
        self._written += len(piece)
        self._left -= len(piece)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise unwritable(self._final, error) from error
            raise


# -- reading one -------------------------------------------------------------------------------------------------


class Checkpoint:
    """A checkpoint whose manifest and hashes have been verified."""

    def __init__(self, path: Path, manifest: Manifest, schema: bytes) -> None:
        self.path, self.manifest, self.schema = path, manifest, schema

    @property
    def meta(self) -> CheckpointMeta:
        return self.manifest.meta

    def shapes(self) -> dict[str, Shape]:
        """Shape of every array in it."""
        with self._open() as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    def read(self, name: str) -> NDArray[Any]:
        """A new array with the contents of `name`. Raises KeyError."""
        with self._open() as file:
            if name not in file.keys():  # noqa: SIM118
                raise KeyError(name)
            values: NDArray[Any] = file.get_tensor(name)
            return values

    def pieces(self, name: str, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """The elements start to stop of a flat array, at most 4 MiB at a time."""
        with self._open() as file:
            flat = file.get_slice(name)
            for begin in range(start, stop, PIECE // 4):
                yield flat[begin : min(begin + PIECE // 4, stop)]

    def read_into(self, name: str, out: NDArray[Any]) -> None:
        """Fill the flat array `out` with `name`, in pieces. Raises ValueError if shape or dtype differ."""
        shape = self.shapes().get(name)
        if shape != out.shape:
            raise ValueError(f"{name} has shape {shape}, asked for {out.shape}")
        at = 0
        for piece in self.pieces(name, 0, out.shape[0]):
            if piece.dtype != out.dtype:
                raise ValueError(f"{name} has dtype {piece.dtype}, asked for {out.dtype}")
            out[at : at + len(piece)] = piece
            at += len(piece)

    def export(self, out: Path, files: Files | None = None) -> int:
        """Write the anchor as one safetensors file of named tensors, in the schema's dtypes; returns their number.

        Tensors that are not exchanged (integer buffers) are not in it.

        Raises:
            DataError: GD-602; GD-601 if schema and vector do not fit together.
        """
        (size,) = self.shapes()[ANCHOR]
        try:
            schema = Schema.from_bytes(self.schema)
        except RemoteProtocolError as error:
            raise _damaged(self.path, str(error)) from None
        if schema.size != size:
            raise _damaged(self.path, f"the schema is of {schema.size} parameters, the vector has {size}")
        header, _ = _header({e.name: (_TENSORS[e.dtype], e.shape) for e in schema.entries}, {"format": "pt"})

        def contents() -> Iterator[bytes | NDArray[Any]]:
            yield header
            for entry in schema.entries:
                for piece in self.pieces(ANCHOR, entry.offset, entry.stop):
                    yield _cast(piece, entry.dtype)

        files = files or Files()
        temporary = out.with_name(f"{TEMPORARY}{out.name}-{os.getpid()}")
        try:
            write_file(files, temporary, contents())
            files.rename(temporary, out)
            files.sync_directory(out.parent)
        except OSError as error:
            raise unwritable(out, error) from error
        finally:
            temporary.unlink(missing_ok=True)
        return len(schema.entries)

    def _open(self) -> Any:
        return safe_open(self.path / _STATE, framework="numpy")


# -- the directory of checkpoints --------------------------------------------------------------------------------


class Store:
    """The checkpoints of one peer in one directory. One writer at a time; readers need no lock.

    Args:
        dir: made when the first checkpoint is saved.
        keep: how many are kept, besides pinned ones.
        files: the file system.
    """

    def __init__(self, dir: Path, keep: int = 3, *, files: Files | None = None) -> None:
        if keep < 1:
            raise ValueError("keep must be at least 1")
        self.dir, self.keep, self.files = dir, keep, files or Files()

    def begin(self, meta: CheckpointMeta, schema: bytes, layout: Mapping[str, tuple[str, Shape]]) -> Writer:
        """Open a checkpoint of arrays announced as name -> (numpy dtype, shape). Raises DataError GD-602."""
        if len(schema) > MAX_SCHEMA:
            raise ValueError(f"schema of {len(schema)} bytes, limit {MAX_SCHEMA}")
        return Writer(self, meta, schema, {name: (_NAMES[dtype], shape) for name, (dtype, shape) in layout.items()})

    def save(self, arrays: Mapping[str, NDArray[Any]], meta: CheckpointMeta, schema: bytes) -> Path:
        """Save contiguous arrays, which must not change meanwhile. Raises DataError GD-602."""
        writer = self.begin(meta, schema, {name: (array.dtype.name, array.shape) for name, array in arrays.items()})
        for array in arrays.values():
            writer.write(array)
        return writer.commit()

    def list(self) -> list[Path]:
        """Every complete checkpoint's directory, the oldest first; not verified."""
        if not self.dir.is_dir():
            return []
        return sorted(path for path in self.dir.iterdir() if re.fullmatch(r"checkpoint-\d{8,}", path.name))

    def latest(self) -> tuple[Checkpoint | None, Sequence[str]]:
        """The newest checkpoint that verifies, and a notice for every damaged one that was passed over."""
        notices: list[str] = []
        for path in reversed(self.list()):
            try:
                checkpoint = self.verify(path)
            except DataError as error:
                notices.append(str(error))
            else:
                return checkpoint, [f"{notice}\n  used: {path}" for notice in notices]
        return None, [f"{notice}\n  used: none, no older one is left" for notice in notices]

    def newest(self) -> tuple[Path, CheckpointMeta] | None:
        """The newest checkpoint with a manifest that can be read, and what that says; its vectors are not looked at."""
        for path in reversed(self.list()):
            with suppress(OSError, ValueError):
                return path, _manifest(path).meta
        return None

    def pin(self, path: Path, why: str) -> None:
        """Keep the checkpoint at `path` until somebody deletes it, or the file `pinned` in it. Raises DataError GD-602.

        The mark needs no atomic writing: that it is there is enough.
        """
        try:
            with suppress(FileExistsError):
                write_file(self.files, path / _PINNED, [why.encode() + b"\n"])
            self.files.sync_directory(path)
        except OSError as error:
            raise unwritable(path / _PINNED, error) from error

    @staticmethod
    def pinned(path: Path) -> bool:
        return (path / _PINNED).exists()

    @staticmethod
    def verify(path: Path) -> Checkpoint:
        """The checkpoint at `path`, every byte of it checked. Raises DataError GD-601."""
        try:
            manifest = _manifest(path)
            for name, record in manifest.files.items():
                _check_file(path / name, record)
            schema = read_bounded(path / _SCHEMA, MAX_SCHEMA)
            with open(path / _STATE, "rb") as file:
                if int.from_bytes(file.read(8), "little") > MAX_HEADER:
                    raise ValueError(f"{_STATE}: header past {MAX_HEADER} bytes")
            checkpoint = Checkpoint(path, manifest, schema)
            checkpoint.shapes()
        except (OSError, ValueError, SafetensorError) as error:
            raise _damaged(path, str(error)) from None
        return checkpoint

    def next_number(self) -> int:
        existing = self.list()
        return int(existing[-1].name.rpartition("-")[2]) + 1 if existing else 1

    def prepare(self) -> None:
        """Make the directory if need be, and remove what a crash left unfinished."""
        if not self.dir.is_dir():
            self.files.make_directory(self.dir)
            self.files.sync_directory(self.dir.parent)
        for left in self.dir.glob(f"{TEMPORARY}checkpoint-*"):
            self.files.remove(left)

    def prune(self) -> None:
        """Drop all but the newest `keep`, and those pinned. A failure to delete is no failure to save."""
        for old in [path for path in self.list() if not self.pinned(path)][: -self.keep]:
            grave = self.dir / f"{TEMPORARY}{old.name}-old"
            with suppress(OSError):
                self.files.rename(old, grave)  # for good, before the first file goes: half an old one looks damaged
                self.files.sync_directory(self.dir)
                self.files.remove(grave)


# -- bytes -------------------------------------------------------------------------------------------------------


def _header(layout: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str]) -> tuple[bytes, int]:
    """The safetensors header for tensors laid end to end, and the bytes that must follow it.

    The format: length (u64, little endian), JSON {name: {dtype, shape, data_offsets}}, padded by spaces so that
    the data is aligned to 8 bytes.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in layout.items():
        begin, end = end, end + _SIZES[dtype] * int(np.prod(shape, dtype=np.int64))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def _cast(values: NDArray[np.float32], dtype: Dtype) -> NDArray[Any]:
    match dtype:
        case "float32":
            return values
        case "bfloat16":  # round to nearest even; anchors are finite
            bits = values.view(np.uint32)
            return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
                "<u2"
            )
        case "float16":
            limit = np.finfo(np.float16).max
            return np.clip(values, -limit, limit).astype(np.float16)
        case "float64":
            return values.astype(np.float64)


def _manifest(path: Path) -> Manifest:
    """Raises OSError or ValueError."""
    manifest = msgspec.json.decode(read_bounded(path / _MANIFEST, MAX_MANIFEST), type=Manifest)
    if manifest.format != FORMAT:
        raise ValueError(f"format {manifest.format}, this version reads {FORMAT}")
    if set(manifest.files) != {_STATE, _SCHEMA}:
        raise ValueError(f"the manifest names {sorted(manifest.files)}")
    return manifest


def _check_file(path: Path, record: FileRecord) -> None:
    length = path.stat().st_size
    if length != record.bytes:
        raise ValueError(f"{path.name}: {length} bytes, {record.bytes} were written")
    digest, room = hashlib.blake2b(digest_size=32), memoryview(bytearray(min(PIECE, length)))
    with open(path, "rb", buffering=0) as file:
        while room and (count := file.readinto(room)):
            digest.update(room[:count])
    if digest.hexdigest() != record.blake2b:
        raise ValueError(f"{path.name}: the contents do not match their hash")


def _damaged(path: Path, seen: str) -> DataError:
    return DataError(
        "GD-601", f"checkpoint {path} is damaged", seen=seen, do="check this disk; delete the damaged directory"
    )
