"""Ends a training script that does not catch a GossipdpError with the error's text alone and its own exit code.

Only `sys.excepthook` is set, so errors that the script catches are not touched. A launcher such as torchrun has an exit
code of its own. An interactive interpreter does not end.
"""

from __future__ import annotations

import sys
from types import TracebackType

from gossipdp.errors import GossipdpError

__all__ = ["set_exit_codes"]


def set_exit_codes() -> None:
    """From now on an uncaught GossipdpError ends this process without a traceback. Other errors keep their hook."""
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, GossipdpError):
            before(kind, error, trace)
            return
        sys.stderr.write(f"{error}\n")
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return  # the prompt goes on
        raise SystemExit(error.exit_code)  # the interpreter ends with it, finalizers and all

    sys.excepthook = hook
