"""How a training script ends by an error that an operator can act on: its text alone, and its own exit code.

Only `sys.excepthook` is set, and only what nobody has caught comes here; a launcher such as torchrun answers with a
code of its own; an interpreter with a prompt does not end. Nothing here may catch an error for a script that wants to.
"""

from __future__ import annotations

import sys
from types import TracebackType

from gossipdp.errors import GossipdpError

__all__ = ["tell_uncaught"]


def tell_uncaught() -> None:
    """From now on a GossipdpError that ends this process is told without a traceback; others go where they went."""
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, GossipdpError):
            before(kind, error, trace)
            return
        sys.stderr.write(f"{error}\n")
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return  # a prompt goes on
        raise SystemExit(error.exit_code)  # the interpreter ends with it, finalizers and all

    sys.excepthook = told
