"""A training process for tests: a `NumpyTrainer` that steps for ever and keeps a diary. Run as a script.

Every step adds noise and the same small drift everywhere, so that the mean of the model tells how far the network has
come: whoever starts from less than that did not get the network's model. Without its daemon it goes on alone and
attaches again. The diary is JSON lines: time.monotonic(), process, steps, session, applied slots, mean of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from gossipdp.errors import UnreachableError
from simulations.numpy_trainer import NumpyTrainer

DIARY_EVERY = 0.05


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("diary", type=Path)
    parser.add_argument("--size", type=int, default=200_000)
    parser.add_argument("--start", type=float, default=0.0, help="every parameter of this process's own first model")
    parser.add_argument("--drift", type=float, default=3e-4, help="what every step adds everywhere")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds between steps")
    options = parser.parse_args()

    home = Path(os.environ["GOSSIPDP_HOME"])
    random = np.random.default_rng(os.getpid())
    noise = random.normal(options.drift, 1e-3, 2 * options.size).astype(np.float32)
    x = np.full(options.size, options.start, np.float32)
    steps = 0
    with options.diary.open("a", buffering=1) as diary:

        def note(event: str, trainer: NumpyTrainer) -> None:
            facts = {"steps": steps, "session": trainer.session, "drains": trainer.drains}
            line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), "mean": float(trainer.x.mean())}
            diary.write(json.dumps(line | facts) + "\n")

        while True:
            try:
                trainer = NumpyTrainer(home, x)
            except ConnectionRefusedError as error:
                print(error, file=sys.stderr)
                return 6
            except (TimeoutError, UnreachableError) as error:
                print(error, file=sys.stderr)
                continue
            note("attached", trainer)
            noted = time.monotonic()
            while not trainer.lost:
                at = int(random.integers(options.size))
                trainer.x += noise[at : at + options.size]
                trainer.step()
                trainer.wait(options.pace)
                steps += 1
                if time.monotonic() - noted >= DIARY_EVERY:
                    note("step", trainer)
                    noted = time.monotonic()
            note("alone", trainer)
            x = trainer.x
            trainer.close()


if __name__ == "__main__":
    sys.exit(main())
