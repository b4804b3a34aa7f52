"""The base of an export: a directory that `save_pretrained` wrote, or one of its layout, as named tensors.

Its weights are one safetensors file, or several and their index; they are read in pieces. Nothing here may write, or
unpickle, or import torch or transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gossipdp.errors import DataError
from gossipdp.runtime.files import read_bounded
from gossipdp.runtime.storage.checkpoint import PIECE, Shape

__all__ = ["ADAPTERS", "Base", "Tensor"]

MAX_BESIDE: Final = 256 << 20
"""bytes of a file that is taken along with the weights; tokenizers have tens of megabytes"""
MAX_JSON: Final = 64 << 20
MAX_HEADER: Final = 100_000_000
"""bytes of a safetensors header, the library's own limit"""
BESIDE: Final = frozenset({".jinja", ".json", ".model", ".py", ".spm", ".tiktoken", ".txt", ".vocab"})
"""endings of what belongs to a model, and is no weights"""
OF_TRAINING: Final = frozenset({"trainer_state.json", "all_results.json", "train_results.json", "eval_results.json"})
ADAPTERS: Final = "adapter_model"
"""what PEFT calls its weights"""

_ONE, _INDEX = ".safetensors", ".safetensors.index.json"


class Tensor(NamedTuple):
    """A tensor on a disk."""

    dtype: str
    """as the format names it"""
    shape: Shape
    size: int
    """bytes"""
    contents: Callable[[], Iterator[bytes | NDArray[Any]]]
    beside: bool = False
    """it is not exchanged"""


class Base:
    """Args:

    directory: as `save_pretrained` wrote it.

    Raises:
        DataError: GD-609, it is none.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stem, files = self._find()
        """name of the weights, without ending: "model", as a rule"""
        self.tensors: dict[str, Tensor] = {}
        for file in files:
            try:
                self.tensors |= _tensors(file)
            except (OSError, ValueError, SafetensorError) as error:
                raise self._unusable(f"{file.name}: {error}") from None
        self.config = self._json("config.json") if (directory / "config.json").exists() else {}

    def beside(self) -> list[Path]:
        """What lies beside the weights and belongs to the model."""
        return [
            path
            for path in sorted(self.directory.iterdir())
            if path.suffix in BESIDE and not path.name.endswith(".index.json") and path.name not in OF_TRAINING
            if path.is_file() and path.stat().st_size <= MAX_BESIDE
        ]

    def name(self, trained: str) -> str | None:
        """What the base calls the tensor that is `trained` in the model; None: it has none."""
        if trained in self.tensors:
            return trained
        if self.stem != ADAPTERS:
            return None
        # PEFT saves `q.lora_A.default.weight` without the adapter's name, and `head.modules_to_save.default.weight`
        # as `head.weight`.
        words = trained.split(".")
        shorter = (words[:at] + words[at + count :] for count in (1, 2) for at in range(1, len(words)))
        found = {".".join(each) for each in shorter} & self.tensors.keys()
        return found.pop() if len(found) == 1 else None

    def tied(self, name: str, changed: Iterable[str]) -> bool:
        """Is `name` the embedding once more, which is one of `changed`? Transformers would untie a stale one."""
        mine = self.tensors[name]
        if not self._setting("tie_word_embeddings") or len(mine.shape) != 2:
            return False
        return mine.shape[0] == self._setting("vocab_size") and any(
            mine[:3] == self.tensors[other][:3] and _equal(mine, self.tensors[other]) for other in changed
        )

    def _setting(self, key: str) -> Any:
        """Of config.json; of several models in one, the text model's."""
        inner = self.config.get("text_config")
        return self.config.get(key, inner.get(key) if isinstance(inner, dict) else None)

    def _find(self) -> tuple[str, list[Path]]:
        try:
            names = sorted(path.name for path in self.directory.iterdir())
        except OSError as error:
            raise self._unusable(str(error)) from None
        for stem in ("model", ADAPTERS):  # what from_pretrained takes, whatever else is there
            if f"{stem}{_ONE}" in names:
                return stem, [self.directory / f"{stem}{_ONE}"]
            if f"{stem}{_INDEX}" in names:
                return stem, self._shards(stem)
        if indices := [name for name in names if name.endswith(_INDEX)]:
            stem = indices[0].removesuffix(_INDEX)
            return stem, self._shards(stem)
        weights = [name for name in names if name.endswith(_ONE)]
        if len(weights) != 1:
            raise self._unusable("several models: " + ", ".join(weights) if weights else "no weights in safetensors")
        return weights[0].removesuffix(_ONE), [self.directory / weights[0]]

    def _shards(self, stem: str) -> list[Path]:
        weights = self._json(f"{stem}{_INDEX}").get("weight_map")
        names = list(weights.values()) if isinstance(weights, dict) else []
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise self._unusable(f"{stem}{_INDEX} names no files of this directory")
        return [self.directory / name for name in sorted(set(names))]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(read_bounded(self.directory / name, MAX_JSON))
        except (OSError, ValueError, RecursionError) as error:
            raise self._unusable(f"{name}: {error}") from None
        if not isinstance(found, dict):
            raise self._unusable(f"{name} is no object")
        return found

    def _unusable(self, seen: str) -> DataError:
        return DataError(
            "GD-609",
            f"{self.directory} is no base of an export",
            seen=seen,
            do="save the model that you train with save_pretrained, and name that directory",
        )


def _tensors(file: Path) -> dict[str, Tensor]:
    """Raises OSError, ValueError or SafetensorError."""
    with open(file, "rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"header past {MAX_HEADER} bytes")
        with safe_open(file, framework="numpy"):  # it has checked that header and contents fit together
            entries = json.loads(raw.read(length))
    entries.pop("__metadata__", None)
    found: dict[str, Tensor] = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        read = _reader(file, 8 + length + begin, end - begin)
        found[name] = Tensor(entry["dtype"], tuple(entry["shape"]), end - begin, read)
    return found


def _reader(file: Path, start: int, length: int) -> Callable[[], Iterator[bytes]]:
    def contents() -> Iterator[bytes]:
        with open(file, "rb") as raw:
            raw.seek(start)
            left = length
            while left:
                piece = raw.read(min(left, PIECE))
                if not piece:
                    raise OSError(f"{file.name} ends early")
                left -= len(piece)
                yield piece

    return contents


def _equal(one: Tensor, other: Tensor) -> bool:
    """The same bytes, and not all one number: two matrices of zeros are not one."""
    width = one.size // max(1, math.prod(one.shape))
    number, varied = b"", False
    for mine, its in zip(one.contents(), other.contents(), strict=True):
        if mine != its:
            return False
        number = number or bytes(mine[:width])
        varied = varied or mine != number * (len(mine) // width)
    return varied
