"""What a script uses beside torch and gossipdp: reports, a meeting with its twin, steps until the daemon exchanges."""

import json
import os
import select
import sys
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


def steps(*, exchanges: int = 0, at_least: int = 0) -> Iterator[int]:
    """Numbers of steps, from 0, until the daemon has made `exchanges` more and `at_least` steps are over."""
    begun, step = status()["exchanges"].get("done", 0), 0
    while step < at_least or step % 10 or status()["exchanges"].get("done", 0) < begun + exchanges:
        end_with_the_test()
        yield step
        step += 1


def end_with_the_test() -> None:
    """End this process if the test has given it up."""
    if select.select([sys.stdin], [], [], 0)[0]:
        sys.exit("the test has ended")
