"""What the tests of the commands share: the outcome of a command. Not a test."""

from __future__ import annotations

import types
from collections.abc import Callable


class Outcome(types.SimpleNamespace):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
