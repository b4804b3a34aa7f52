"""The outcome of a command, for the tests of the commands. Not a test."""

import types
from collections.abc import Callable


class Outcome(types.SimpleNamespace):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
