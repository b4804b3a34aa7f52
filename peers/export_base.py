"""The base of an export: a directory of `save_pretrained`, or of the same layout, as named tensors.

The weights are one safetensors file, or several with an index. A model of several parts has a folder for each, which
modules.json (SentenceTransformer) or model_index.json (Diffusers) names. Weights are read in pieces. Nothing here may
write or unpickle, or import torch or transformers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gossipdp.errors import DataError
from gossipdp.runtime import plain_json
from gossipdp.runtime.files import read_bounded
from gossipdp.runtime.storage.checkpoint import Shape
from gossipdp.runtime.storage.pieces import PIECE

__all__ = ["ADAPTERS", "Base", "Part", "Tensor"]

MAX_BESIDE: Final = 256 << 20
"""bytes of a file beside the weights that is copied; tokenizers have tens of megabytes"""
MAX_JSON: Final = 64 << 20
MAX_HEADER: Final = 100_000_000
"""bytes of a safetensors header; the library has the same limit"""
BESIDE: Final = frozenset({".jinja", ".json", ".model", ".py", ".spm", ".tiktoken", ".txt", ".vocab"})
"""endings of the files of a model other than weights"""
OF_TRAINING: Final = frozenset({"trainer_state.json", "all_results.json", "train_results.json", "eval_results.json"})
MODULES: Final = "modules.json"
"""of SentenceTransformer: the folder of each part, and its name in the model"""
PIPELINE: Final = "model_index.json"
"""of Diffusers: its keys that are folders are the parts"""
ADAPTERS: Final = "adapter_model"
"""stem of PEFT's files of weights"""

_ONE, _INDEX = ".safetensors", ".safetensors.index.json"


class Tensor(NamedTuple):
    """A tensor on disk."""

    dtype: str
    """name in the safetensors format"""
    shape: Shape
    size: int
    """bytes"""
    contents: Callable[[], Iterator[bytes | NDArray[Any]]]
    beside: bool = False
    """whether peers do not exchange it"""


class Part(NamedTuple):
    """A folder of a base that has weights."""

    folder: str
    """relative to the base, with a "/" at the end; "" is the base itself"""
    label: str
    """a word that stands before the part's names in the model; "" if none is known"""
    stem: str
    """of the files of weights, as a rule `model`"""
    tensors: dict[str, Tensor]
    """by their names in the files"""

    def name(self, trained: str) -> str | None:
        """The name here of the tensor that the part calls `trained`. None if the part lacks it."""
        if trained in self.tensors:
            return trained
        if self.stem != ADAPTERS:
            return None
        # PEFT leaves the adapter's name out of `q.lora_A.default.weight`, and saves
        # `head.modules_to_save.default.weight` as `head.weight`.
        words = trained.split(".")
        shorter = (words[:at] + words[at + count :] for count in (1, 2) for at in range(1, len(words)))
        found = {".".join(each) for each in shorter} & self.tensors.keys()
        return found.pop() if len(found) == 1 else None

    def prefix(self, trained: Iterable[str]) -> str | None:
        """What stands before the most names in the model; the shortest of several. None if no name fits."""
        found: Counter[str] = Counter()
        for name in trained:
            words = name.split(".")
            for prefix in ("".join(f"{word}." for word in words[:at]) for at in range(len(words))):
                if f".{self.label}." in f"..{prefix}" and self.name(name.removeprefix(prefix)) is not None:
                    found[prefix] += 1
        return min(found, key=lambda prefix: (-found[prefix], len(prefix)), default=None)


class Base:
    """The tensors and files of a base.

    Args:
        directory: as `save_pretrained` wrote it.

    Raises:
        DataError: GD-609, the directory is not of that kind.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._labels = self._folders()
        """per folder of the base that belongs to the model, and for the base itself: its part's label"""
        self.parts = [part for folder, label in self._labels.items() if (part := self._part(folder, label)) is not None]
        self.tensors = {part.folder + name: tensor for part in self.parts for name, tensor in part.tensors.items()}
        """by folder and name"""
        self._prefixes: list[str | None] = [""] * len(self.parts)
        if not self.parts:
            raise self._unusable("no weights in safetensors")
        self.config: dict[str, Any] = self._json("config.json") if (directory / "config.json").exists() else {}

    def beside(self) -> list[Path]:
        """Files of the model other than weights."""
        return [
            path
            for folder in self._labels
            for path in sorted((self.directory / folder).iterdir())
            if path.suffix in BESIDE and not path.name.endswith(".index.json") and path.name not in OF_TRAINING
            if path.is_file() and path.stat().st_size <= MAX_BESIDE
        ]

    def fit(self, trained: Iterable[str]) -> None:
        """Find out what stands before the base's names in a model whose tensors are `trained`."""
        names = list(trained)
        self._prefixes = [part.prefix(names) for part in self.parts]

    def name(self, trained: str) -> str | None:
        """The base's name for the tensor that the model calls `trained`, see `tensors`. None if the base lacks it."""
        for part, prefix in zip(self.parts, self._prefixes, strict=True):
            if prefix is not None and trained.startswith(prefix):
                name = part.name(trained.removeprefix(prefix))
                if name is not None:
                    return part.folder + name
        return None

    def tied(self, name: str, changed: Iterable[str]) -> bool:
        """Whether `name` is a second copy of the embedding in `changed`. Transformers would untie a stale copy."""
        mine = self.tensors[name]
        if not self._setting("tie_word_embeddings") or len(mine.shape) != 2:
            return False
        return mine.shape[0] == self._setting("vocab_size") and any(
            mine[:3] == self.tensors[other][:3] and _equal(mine, self.tensors[other]) for other in changed
        )

    def _setting(self, key: str) -> Any:
        """A setting in config.json. In a model of several parts it is the text model's."""
        inner = self.config.get("text_config")
        return self.config.get(key, inner.get(key) if isinstance(inner, dict) else None)

    def _folders(self) -> dict[str, str]:
        """The base itself as "", and the folders of its parts with all that these hold: label by folder."""
        listed: dict[str, str] = {"": ""}
        if (self.directory / MODULES).exists():
            for module in self._json(MODULES, list):
                folder, label = (module.get("path"), module.get("name")) if isinstance(module, dict) else (None, None)
                if not isinstance(folder, str) or not isinstance(label, str):
                    raise self._unusable(f"{MODULES} does not name parts")
                listed[folder] = label
        elif (self.directory / PIPELINE).exists():
            listed |= {name: name for name in self._json(PIPELINE)}
        found: dict[str, str] = {}
        for folder, label in listed.items():
            if Path(folder).is_absolute() or ".." in Path(folder).parts:
                raise self._unusable(f"{folder} is no folder of this directory")
            if not folder:
                found[""] = label
                continue
            whole = self.directory / folder  # a repository holds no folder of a part without files
            for each in sorted(path for path in (whole, *whole.rglob("*")) if path.is_dir()):
                found[f"{each.relative_to(self.directory).as_posix()}/"] = label
        return found

    def _part(self, folder: str, label: str) -> Part | None:
        """The weights in `folder`. None if it has none, as a part without parameters."""
        stem, files = self._find(folder)
        tensors: dict[str, Tensor] = {}
        for file in files:
            try:
                tensors |= _tensors(self.directory / folder / file)
            except (OSError, ValueError, SafetensorError) as error:
                raise self._unusable(f"{folder}{file}: {error}") from None
        return Part(folder, label, stem, tensors) if files else None

    def _find(self, folder: str) -> tuple[str, list[str]]:
        try:
            names = sorted(path.name for path in (self.directory / folder).iterdir())
        except OSError as error:
            raise self._unusable(str(error)) from None
        for stem in ("model", ADAPTERS):  # from_pretrained prefers these
            if f"{stem}{_ONE}" in names:
                return stem, [f"{stem}{_ONE}"]
            if f"{stem}{_INDEX}" in names:
                return stem, self._shards(folder, stem)
        if indices := [name for name in names if name.endswith(_INDEX)]:
            stem = indices[0].removesuffix(_INDEX)
            return stem, self._shards(folder, stem)
        weights = [name for name in names if name.endswith(_ONE)]
        if len(weights) > 1:
            raise self._unusable("several models: " + ", ".join(folder + name for name in weights))
        return weights[0].removesuffix(_ONE) if weights else "", weights

    def _shards(self, folder: str, stem: str) -> list[str]:
        weights = self._json(f"{folder}{stem}{_INDEX}").get("weight_map")
        names = list(weights.values()) if isinstance(weights, dict) else []
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise self._unusable(f"{folder}{stem}{_INDEX} does not name files of this directory")
        return sorted(set(names))

    def _json(self, name: str, kind: type[Any] = dict) -> Any:
        try:
            found = plain_json.parse(read_bounded(self.directory / name, MAX_JSON))
        except (OSError, ValueError) as error:
            raise self._unusable(f"{name}: {error}") from None
        if not isinstance(found, kind):
            raise self._unusable(f"{name} is not a JSON {'object' if kind is dict else 'array'}")
        return found

    def _unusable(self, seen: str) -> DataError:
        return DataError(
            "GD-609",
            f"{self.directory} cannot be the base of an export",
            seen=seen,
            do="save the trained model with save_pretrained, and name that directory",
        )


def _tensors(file: Path) -> dict[str, Tensor]:
    """Raises OSError, ValueError or SafetensorError."""
    with open(file, "rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"header past {MAX_HEADER} bytes")
        with safe_open(file, framework="numpy"):  # this checks that header and contents match
            entries = plain_json.parse(raw.read(length))
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
    """Whether the bytes are equal, and not all one number. Two matrices of zeros do not count as the same tensor."""
    width = one.size // max(1, math.prod(one.shape))
    number, varied = b"", False
    for mine, its in zip(one.contents(), other.contents(), strict=True):
        if mine != its:
            return False
        number = number or bytes(mine[:width])
        varied = varied or mine != number * (len(mine) // width)
    return varied
