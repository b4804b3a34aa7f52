"""What a source of samples says of itself: its length, its shards, its epoch. Works for torch and HF data sets."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from gossipdp.errors import DataError

__all__ = [
    "TokenFile",
    "check_repeats",
    "division",
    "length",
    "loader_place",
    "named_size",
    "shards",
    "skip",
    "with_own_epoch",
]

MANY_SHARDS: Final = 64
"""shards from which on a stream is cut by them"""


def length(data: Sized | int) -> int:
    """The length of a data set, or the length itself.

    Raises:
        DataError: GD-309, it has none.
    """
    try:
        return data if isinstance(data, int) else len(data)
    except TypeError:
        raise DataError(
            "GD-309",
            "a sampler needs a data set with a length",
            seen=type(data).__name__,
            do="use gossipdp.training.data.Stream for an iterable",
        ) from None


def division(source: Any) -> str:
    """How a stream is cut by default: "samples", "shards" or "examples"."""
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return "samples"
    return "shards" if hasattr(source, "shard") and shards(source) >= MANY_SHARDS else "examples"


def shards(source: Any) -> int:
    """Number of the source's own shards.

    Raises:
        DataError: GD-309, it has none.
    """
    found = getattr(source, "num_shards", getattr(source, "n_shards", None))
    if not isinstance(found, int) or not hasattr(source, "shard"):
        raise DataError(
            "GD-309",
            "this source cannot be divided by shards",
            seen=f"{type(source).__name__} without num_shards and shard",
            do='use by="examples"',
        )
    return found


def check_repeats(source: Any) -> None:
    """Check that `source` begins anew with each `iter`.

    Raises:
        DataError: GD-309, it does not.
    """
    if not isinstance(source, Iterable) or isinstance(source, Iterator):
        do = "pass an iterable that starts again with each iter(), not an iterator or generator"
        raise DataError("GD-309", "this cannot be read more than once", seen=type(source).__name__, do=do)


def named_size(source: Any) -> int:
    """Samples of an HF data set, as its metadata says.

    Raises:
        DataError: GD-309, it does not say.
    """
    info, split = getattr(source, "info", None), getattr(source, "split", None)
    splits = getattr(info, "splits", None) or {}
    size = getattr(splits.get(str(split)), "num_examples", None)
    if not size:
        raise DataError(
            "GD-309",
            "the number of samples of this stream is unknown",
            seen=type(source).__name__,
            do="pass an approximate size=, the same on all peers",
        )
    return int(size)


def with_own_epoch(source: Any) -> Any:
    """`source`, or a copy of it with its own epoch.

    HF data sets keep the epoch in memory that all processes of a loader and all ranks share. Several processes that
    set it at once would get an epoch that none of them set, and each would read in another order.
    """
    if hasattr(source, "set_epoch"):
        source = copy.copy(source)
        kept = getattr(source, "__dict__", {})
        kept.update({name: each.clone() for name, each in kept.items() if _is_shared(each)})
    return source


def _is_shared(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.is_shared())


def skip(examples: Iterator[Any], count: int) -> None:
    """Read `count` examples, or all that are left."""
    next(itertools.islice(examples, count, count), None)


def loader_place() -> tuple[int, int]:
    """Number of this loader process, and how many there are.

    From here on torch counts the process as the only one. Sources that divide themselves among the processes of a
    loader, as HF data sets do, would otherwise leave samples out.
    """
    info = torch.utils.data.get_worker_info()
    if info is None:
        return 0, 1
    torch.utils.data._utils.worker._worker_info = None
    return info.id, info.num_workers


class TokenFile(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A file of tokens without a header, as nanoGPT prepares it, in windows side by side.

    Sample n is a pair of int64 tensors of shape (context,): the tokens, and the tokens one place further on. The file
    is mapped, not read.

    Args:
        path: of the file.
        context: tokens of a window.
        dtype: of a token in the file, as numpy names it.

    Raises:
        DataError: GD-309, there is no such file, or it holds no whole window.

    Example:
        stream = Stream(TokenFile("train.bin", 1024))
    """

    def __init__(self, path: str | os.PathLike[str], context: int, *, dtype: str = "uint16") -> None:
        self.path, self.context, self._type = Path(path), context, np.dtype(dtype)
        try:
            size = self.path.stat().st_size
        except OSError as error:
            do = "prepare it first, or correct the path"
            raise DataError("GD-309", "there is no such token file", seen=f"{path}: {error.strerror}", do=do) from None
        tokens, rest = divmod(size, self._type.itemsize)
        if rest or context < 1 or tokens <= context:
            raise DataError(
                "GD-309",
                "this is not a file of tokens, or it is shorter than one window",
                seen=f"{path}: {size} bytes of {self._type.name}, windows of {context}",
                do="pass the dtype with which the tokens were written, or a shorter context if the text is short",
            )
        self._windows = (tokens - 1) // context
        self._tokens: np.memmap[Any, np.dtype[Any]] | None = None

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, window: int) -> tuple[Tensor, Tensor]:
        if not 0 <= window < self._windows:
            raise IndexError(window)
        if self._tokens is None:
            self._tokens = np.memmap(self.path, self._type, "r")
        first = window * self.context
        tokens = torch.from_numpy(self._tokens[first : first + self.context + 1].astype(np.int64))
        return tokens[:-1], tokens[1:]

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapping, whose content would be sent."""
        return {**self.__dict__, "_tokens": None}
