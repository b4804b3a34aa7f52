"""One checkpoint: the files of its directory, how they are checked, and what can be read from them.

    checkpoint-00000012/
      state.safetensors    flat vectors by name (anchor, momentum), the lookahead of each chunk, and state beside them
                           (reference, state)
      schema.bin           the model's layout in canonical bytes
      manifest.json        what the checkpoint is of, and length and hashes of the other two files (`pieces`)
      pinned               only in a checkpoint that outlives newer ones: the reason

Reading trusts nothing. It checks the manifest's types and limits, then the hashes of the schema and of the header, and
only then lets the safetensors library parse. Nothing here may unpickle, know a peer's protocol state, or write into a
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gossipdp.algorithms.ledger import LARGEST
from gossipdp.codecs.base import PayloadError
from gossipdp.codecs.named import Named, unpack
from gossipdp.errors import DataError, RemoteProtocolError
from gossipdp.protocol.schema import Dtype, Entry, Schema
from gossipdp.runtime import plain_json
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.files import Hex, bytes_of, read_bounded, reading
from gossipdp.runtime.progress import Progress, Say, silent
from gossipdp.runtime.storage.pieces import PIECE, Count, FileRecord, check_file, check_length

__all__ = [
    "BESIDE",
    "FORMAT",
    "LOOKAHEAD",
    "MANIFEST",
    "MAX_SCHEMA",
    "NAMES",
    "PIECE",
    "SCHEMA",
    "SIZES",
    "STATE",
    "TENSORS",
    "Checkpoint",
    "CheckpointMeta",
    "FileRecord",
    "Into",
    "Manifest",
    "Shape",
    "glance",
    "header",
    "nothing",
    "read_manifest",
    "unreadable",
    "verify",
]

FORMAT: Final = 3
"""format 2: buffers are stored relative to a reference; format 3: files are hashed by piece"""
BY_PIECE: Final = 3
"""first format whose files are hashed by piece"""
ANCHOR: Final = "anchor"
"""the array that holds the outer parameters, in schema order"""
MOMENTUM: Final = "momentum"
LOOKAHEAD: Final = "lookahead"
"""the array of `Ledger.lookahead`, a value for each chunk; earlier versions wrote none"""
BESIDE: Final = ("reference", "state")
"""arrays of the state beside the vector (`protocol.carried_state`), if there is any"""
MAX_MANIFEST: Final = 64 << 20
"""bytes; a terabyte of pieces has 18 MB of hashes"""
MAX_HEADER: Final = 1 << 20
"""bytes of the safetensors header of a checkpoint"""
MAX_SCHEMA: Final = 64 << 20

STATE, SCHEMA, MANIFEST = "state.safetensors", "schema.bin", "manifest.json"
NAMES: Final = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "uint16": "U16", "uint8": "U8"}
"""numpy's name of a dtype -> the format's"""
TENSORS: Final = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16"}
"""the schema's name of a dtype -> the format's"""
SIZES: Final = {"F64": 8, "I64": 8, "F32": 4, "F16": 2, "BF16": 2, "U16": 2, "U8": 1}

Shape = tuple[int, ...]


class CheckpointMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint is of. Ids and digests are hexadecimal."""

    network: Annotated[str, Meta(max_length=64)]
    run: Hex
    peer: Hex
    incarnation: Count
    round: Count
    """outer steps in the model, of whichever peer"""
    clock: Count
    """the network's clock, in steps"""
    steps: Count
    samples: Count
    """steps and samples of this peer, in all its lives"""
    schema: Hex
    """the schema's digest"""
    peer_rounds: Count = 0
    """rounds of this peer, in all its lives"""
    extra: dict[str, str | int | float | bool] = {}
    """further values of the caller"""


class _Versioned(msgspec.Struct, frozen=True):
    """The part that a manifest of any version has."""

    format: Annotated[int, Meta(ge=1)]


class _LaterFormat(ValueError):
    """A later version wrote the checkpoint. This one cannot tell whether it is whole."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[int, Meta(ge=1, le=FORMAT)]
    saved_at: float
    """Unix time"""
    meta: CheckpointMeta
    files: dict[str, FileRecord]


class Checkpoint:
    """A checkpoint whose manifest and hashes were verified."""

    def __init__(self, path: Path, manifest: Manifest, schema: bytes) -> None:
        self.path, self.manifest, self.schema = path, manifest, schema
        self._beside: dict[str, dict[str, Named]] = {}

    @property
    def meta(self) -> CheckpointMeta:
        return self.manifest.meta

    def shapes(self) -> dict[str, Shape]:
        """The shape of every array, by name."""
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
        """Elements `start` to `stop` of a flat array, at most 4 MiB at a time."""
        with self._open() as file:
            flat = file.get_slice(name)
            for begin in range(start, stop, PIECE // 4):
                yield flat[begin : min(begin + PIECE // 4, stop)]

    def load(self, out: Mapping[str, NDArray[Any]], say: Say = silent) -> None:
        """Read the whole state once: fill the flat arrays of `out` by name, and check every byte.

        Args:
            say: gets lines about progress.

        Raises:
            DataError: GD-601, it is damaged, or has other arrays. What is in `out` must not be used then.
        """
        record = self.manifest.files[STATE]
        with _told(self.path):
            places = self._places(out)

            def fill(at: int, part: memoryview) -> None:
                values = np.frombuffer(part, np.uint8)
                for start, room in places:
                    low, high = max(start, at), min(start + len(room), at + len(part))
                    if low < high:
                        room[low - start : high - start] = values[low - at : high - at]

            progress = Progress(f"reading {self.path.name}", record.bytes, say)
            check_file(self.path / STATE, record, sink=fill if places else None, done=progress.advance)

    def _places(self, out: Mapping[str, NDArray[Any]]) -> list[tuple[int, NDArray[np.uint8]]]:
        """Where the bytes of each array begin in the file, and the bytes that they fill. Raises ValueError."""
        with reading(self.path / STATE) as file:
            length = int.from_bytes(file.read(8), "little")
            entries = plain_json.parse(file.read(length))
        places = []
        for name, array in out.items():
            entry = entries.get(name, {})
            has, wanted = (entry.get("dtype"), entry.get("shape")), (NAMES[array.dtype.name], list(array.shape))
            if has != wanted:
                raise ValueError(f"{name} is {has}, asked for {wanted}")
            places.append((8 + length + int(entry["data_offsets"][0]), np.frombuffer(bytes_of(array), np.uint8)))
        return places

    def entries(self) -> tuple[Entry, ...]:
        """The tensors that the anchor holds. Tensors that are not exchanged (frozen, integer) are not among them.

        Raises:
            DataError: GD-601, the sizes of schema and vector differ.
        """
        (size,) = self.shapes()[ANCHOR]
        try:
            schema = Schema.from_bytes(self.schema)
        except RemoteProtocolError as error:
            raise _damaged(self.path, str(error)) from None
        if schema.size != size:
            raise _damaged(self.path, f"the schema is of {schema.size} parameters, the vector has {size}")
        return schema.entries

    def values(self, entry: Entry) -> Iterator[NDArray[Any]]:
        """One tensor in its own dtype, in pieces. Raises DataError GD-601."""
        reference = self._named("reference").get(entry.name) if entry.kind == "buffer" else None
        at = 0
        for piece in self.model(entry.offset, entry.stop):
            yield _cast(piece, entry.dtype) if reference is None else _moved(reference, at, piece)
            at += len(piece)

    def model(self, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        """Elements `start` to `stop` of the anchor, without the lookahead of the last outer step, in pieces."""
        for span, lookahead in self._lookaheads:
            part = max(start, span.start), min(stop, span.stop)
            if part[0] >= part[1]:
                continue
            if not lookahead:
                yield from self.pieces(ANCHOR, *part)
                continue
            for anchor, momentum in zip(self.pieces(ANCHOR, *part), self.pieces(MOMENTUM, *part), strict=True):
                yield anchor + np.float32(lookahead) * momentum

    @cached_property
    def _lookaheads(self) -> list[tuple[slice, float]]:
        """alpha mu of the last outer step, by chunk."""
        spans = Schema.from_bytes(self.schema).spans()
        known = self.shapes().get(LOOKAHEAD) == (len(spans),)
        return list(zip(spans, self.read(LOOKAHEAD).tolist() if known else [0.0] * len(spans), strict=True))

    def state(self) -> dict[str, Named]:
        """The tensors that are not exchanged, as the training process sent them last. Raises DataError GD-601."""
        return self._named("state")

    def _named(self, array: str) -> dict[str, Named]:
        if array not in self._beside:
            try:
                self._beside[array] = unpack(self.read(array).data) if array in self.shapes() else {}
            except PayloadError as error:
                raise _damaged(self.path, f"{array}: {error}") from None
        return self._beside[array]

    def _open(self) -> Any:
        with spare():
            return safe_open(self.path / STATE, framework="numpy")


Into: TypeAlias = Callable[[Checkpoint], Mapping[str, NDArray[Any]]]
"""gives the arrays that a checkpoint is to be read into, by name"""


def nothing(_: Checkpoint) -> Mapping[str, NDArray[Any]]:
    """Read into no array."""
    return {}


def verify(path: Path, into: Into = nothing, say: Say = silent) -> Checkpoint:
    """The checkpoint at `path`, with every byte checked.

    Args:
        into: gives arrays to fill meanwhile, see `Checkpoint.load`.
        say: gets lines about progress.

    Raises:
        DataError: GD-601, it is damaged, unreadable, or of a later version.
    """
    with _told(path):
        manifest = read_manifest(path)
        check_file(path / SCHEMA, manifest.files[SCHEMA])
        schema = read_bounded(path / SCHEMA, MAX_SCHEMA)
        with reading(path / STATE) as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER:
                raise ValueError(f"{STATE}: header past {MAX_HEADER} bytes")
        if manifest.format >= BY_PIECE:
            check_file(path / STATE, manifest.files[STATE], upto=MAX_HEADER)
        checkpoint = Checkpoint(path, manifest, schema)
        checkpoint.shapes()
    checkpoint.load(into(checkpoint), say)
    return checkpoint


def glance(path: Path) -> Manifest:
    """The manifest of the checkpoint at `path`, whose files have their lengths. No other file is read.

    Raises:
        DataError: GD-601, as `verify`.
    """
    with _told(path):
        manifest = read_manifest(path)
        for name, record in manifest.files.items():
            check_length(path / name, record)
    return manifest


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn errors of reading the checkpoint at `path` into DataErrors."""
    try:
        yield
    except _LaterFormat as error:
        cause = f"checkpoint {path} was written by a later version of gossipdp"
        raise DataError("GD-601", cause, seen=str(error), do="upgrade gossipdp on this host") from None
    except (FileNotFoundError, ValueError, SafetensorError) as error:
        raise _damaged(path, str(error)) from None
    except OSError as error:
        raise unreadable(f"checkpoint {path}", error) from None


# -- bytes ------------------------------------------------------------------------------------------------------


def header(layout: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str]) -> tuple[bytes, int]:
    """The safetensors header for tensors end to end, and the number of bytes that must follow it.

    The format: length (u64, little endian), then JSON {name: {dtype, shape, data_offsets}}, padded with spaces so that
    the data is aligned to 8 bytes.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in layout.items():
        begin, end = end, end + SIZES[dtype] * int(np.prod(shape, dtype=np.int64))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def _moved(reference: Named, start: int, moved: NDArray[np.float32]) -> NDArray[Any]:
    """A buffer from element `start` on: its reference plus `moved`. Elements that did not move keep the bits."""
    dtype = next(name for name, form in TENSORS.items() if form == reference.dtype)
    plain = np.dtype("<u2" if dtype == "bfloat16" else dtype)
    values: NDArray[Any] = np.frombuffer(reference.data, plain, len(moved), start * plain.itemsize).copy()
    wide: NDArray[Any] = (values.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype == "bfloat16" else values
    there = np.flatnonzero((moved != 0.0) & (np.abs(wide) <= LARGEST))
    if dtype == "float64":
        values[there] = wide[there] + moved[there]
    else:
        sums: NDArray[np.float32] = wide[there].astype(np.float32) + moved[there]
        values[there] = _cast(sums, cast(Dtype, dtype))
    return values


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


def read_manifest(path: Path) -> Manifest:
    """Raises OSError or ValueError."""
    text = read_bounded(path / MANIFEST, MAX_MANIFEST)
    found = plain_json.decode(text, _Versioned).format
    if found > FORMAT:
        raise _LaterFormat(f"format {found}, this version reads {FORMAT}")
    manifest = plain_json.decode(text, Manifest)
    if set(manifest.files) != {STATE, SCHEMA}:
        raise ValueError(f"the manifest names {sorted(manifest.files)}")
    return manifest


def _damaged(path: Path, seen: str) -> DataError:
    return DataError(
        "GD-601", f"checkpoint {path} is damaged", seen=seen, do="check this disk; delete the damaged directory"
    )


def unreadable(what: str, error: OSError) -> DataError:
    do = "check this disk, and that this user may read there"
    return DataError("GD-601", f"{what} cannot be read", seen=str(error), do=do)
