"""The text of the GPU's runs: sources of the installed Python packages, as numbers of a byte-pair vocabulary.

The vocabulary is learnt from the training part alone (Sennrich, Haddow, Birch 2016, arXiv 1508.07909, on bytes).
The numbers are kept in a folder, so later calls read the same text. This module knows no model.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from simulations.lab.data import SHORTEST, held_out

__all__ = ["Tokens", "gather", "installed", "prepare"]

PACKAGES: Final = ("site-packages", "dist-packages")
LONGEST: Final = 500_000
"""bytes of the largest file in use: larger ones are tables that programs wrote"""
END: Final = "<|end|>"
"""number 0, between two files"""
AT_ONCE: Final = 256
"""files that are encoded in one call"""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Numbers of the vocabulary, files one behind the other."""

    train: NDArray[np.uint16]
    validation: NDArray[np.uint16]
    about: dict[str, Any]
    """files, bytes, vocabulary, bytes_a_token, digest"""


def installed() -> list[Path]:
    """The standard library, and every folder of packages that this interpreter imports from."""
    found = [Path(place) for place in sys.path if Path(place).name in PACKAGES]
    return [place for place in dict.fromkeys((Path(sysconfig.get_paths()["stdlib"]), *found)) if place.is_dir()]


def gather(folders: Sequence[Path], most: int) -> list[tuple[str, str]]:
    """Name and content of .py files under `folders`, sorted by name, each content once.

    Args:
        most: bytes. Where there is more, a hash of the name chooses, so no package is preferred.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        for place, inner, files in os.walk(folder):
            inner[:] = sorted(set(inner) - {*PACKAGES, "__pycache__"})
            paths = [Path(place, file) for file in files if file.endswith(".py")]
            found |= {path.relative_to(folder).as_posix(): path for path in paths}
    chosen: dict[str, str] = {}
    known: set[bytes] = set()
    size = 0
    for name in sorted(found, key=lambda name: (_digest(name.encode()), name)):
        content = found[name].read_bytes()
        text = _decoded(content)
        if text is None or _digest(content) in known:
            continue
        if size + len(content) > most:
            break
        size += len(content)
        known.add(_digest(content))
        chosen[name] = text
    return sorted(chosen.items())


def prepare(folder: Path, most: int, vocabulary: int) -> Tokens:
    """The numbers in `folder`, made from the installed packages if they are not there."""
    paths, told = [folder / f"{part}.npy" for part in ("train", "validation")], folder / "text.json"
    if not told.exists():
        files = gather(installed(), most)
        parts = [[text for name, text in files if held_out(name) == held] for held in (False, True)]
        encoder = _learnt(parts[0], vocabulary)
        arrays = [_encoded(encoder, part) for part in parts]
        folder.mkdir(parents=True, exist_ok=True)
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)
        size = sum(len(text.encode()) for part in parts for text in part)
        about = {
            "files": len(files),
            "bytes": size,
            "most": most,
            "vocabulary": encoder.get_vocab_size(),
            "bytes_a_token": size / sum(map(len, arrays)),
            "digest": _digest(b"".join(array.tobytes() for array in arrays)).hex(),
        }
        # Last, because it says that the rest is whole.
        told.write_text(json.dumps(about))
    train, validation = (np.load(path, mmap_mode="r") for path in paths)
    return Tokens(train, validation, json.loads(told.read_text()))


def _learnt(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=letters, show_progress=False
    )
    encoder.train_from_iterator(texts, trainer)
    return encoder


def _encoded(encoder: Tokenizer, texts: Sequence[str]) -> NDArray[np.uint16]:
    def files() -> Iterator[NDArray[np.uint16]]:
        for first in range(0, len(texts), AT_ONCE):
            for found in encoder.encode_batch(list(texts[first : first + AT_ONCE])):
                yield np.array([*found.ids, 0], np.uint16)

    return np.concatenate(list(files()))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _decoded(content: bytes) -> str | None:
    if not SHORTEST <= len(content) <= LONGEST:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
