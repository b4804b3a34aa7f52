"""The log of a training process. A script may replace any part of `logging`, and none of that may end its training."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

__all__ = ["log", "write"]


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that raises nothing. What a handler or a factory of the script refuses goes to standard error."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception:
            write(f"{str(msg) % args if args else msg}\n")


log = _Log(logging.getLogger("gossipdp.training"))


def write(text: str) -> None:
    """Write to standard error, unless the script has closed or replaced it by something else."""
    with suppress(Exception):
        sys.stderr.write(text)
