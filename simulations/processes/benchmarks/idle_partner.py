"""A partner for benchmarks: a training process that makes steps and computes nothing.

Members exchange with members that train only. What such a partner averages moves its model all the same.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import nn

import gossipdp

__all__ = ["idle_partner", "make_steps"]


@contextlib.contextmanager
def idle_partner(module: str, arguments: Sequence[str]) -> Iterator[None]:
    """Run `python -m module arguments`, which calls `make_steps`, from when it has attached until the block ends."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        if not child.stdout.readline():
            raise SystemExit("the partner's training process did not attach")
        try:
            yield
        finally:
            child.stdin.close()


def make_steps(model: nn.Module, home: Path, pace: float) -> None:
    """Attach `model` and count a step every `pace` seconds, until the standard input ends."""
    with gossipdp.attach(model, home=home) as peer:
        print("attached", flush=True)
        while not select.select([sys.stdin], [], [], pace)[0]:
            peer.step()
