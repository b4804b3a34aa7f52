"""What a script uses beside torch and gossipdp: reports, a meeting with its twin, steps until the daemon exchanges."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.control import ask

HOST = int(sys.argv[1])


def say(**facts: Any) -> None:
    """Report to the test."""
    print(json.dumps(facts), flush=True)


def meet(place: str) -> None:
    """Wait until the other script is here too."""
    say(meet=place)
    sys.stdin.readline()


def status() -> dict[str, Any]:
    """What this host's daemon says of itself."""
    answer: dict[str, Any] = ask(Path(os.environ["GOSSIPDP_HOME"]), "status")
    return answer


def exchanges() -> int:
    """Finished exchanges of this host's daemon."""
    return int(status()["exchanges"].get("done", 0))


def steps(*, exchanges: int = 0, at_least: int = 0, within: float = 20.0) -> Iterator[int]:
    """Numbers of steps, from 0, until the daemon has made `exchanges` more and `at_least` steps are over.

    Says {"missed": n} and ends when n exchanges are missing after `within` seconds.
    """
    begun, until, step = status()["exchanges"].get("done", 0), time.monotonic() + within, 0
    while True:
        if step % 10 == 0 and step >= at_least:
            missing = begun + exchanges - status()["exchanges"].get("done", 0)
            if missing <= 0:
                return
            if time.monotonic() > until:
                return say(missed=missing)
        yield step
        step += 1
