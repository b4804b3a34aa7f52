"""`TokenFile`: windows of a file of tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from gossipdp.errors import DataError

__all__ = ["TokenFile"]


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
                "this is no file of tokens, or has not one window",
                seen=f"{path}: {size} bytes of {self._type.name}, windows of {context}",
                do="say the dtype the tokens were written with, and a shorter context if the text is short",
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
