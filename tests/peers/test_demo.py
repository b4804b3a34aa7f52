"""The demo's own logic; that it runs is seen by running it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gossipdp.errors import HardwareError
from peers.demo import Demo, Process, options


def a_process(name: str, code: int | None, state: str) -> Process:
    child = SimpleNamespace(poll=lambda: code, returncode=code)
    return Process(name, Path("home"), Path("log"), Path("weights"), child, {"state": state})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "left_behind"),
    [
        ((0, "ready"), (None, "joining"), True),
        ((0, "ready"), (None, "ready"), False),
        ((None, "ready"), (None, "joining"), False),
    ],
)
def test_a_peer_that_waits_for_a_model_nobody_has_any_more_ends_the_demo(first, second, left_behind) -> None:
    demo = Demo(options(["--peers", "2"]))
    demo.processes = [a_process("peer1", *first), a_process("peer2", *second)]
    if left_behind:
        with pytest.raises(HardwareError, match="GD-503"):
            demo.check_nobody_is_left_behind()
    else:
        demo.check_nobody_is_left_behind()
