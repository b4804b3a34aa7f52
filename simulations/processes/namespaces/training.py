"""A training process without torch: a `NumpyTrainer` that steps for ever and keeps a diary. Run as a script.

Every step adds noise and the same small drift everywhere. So the mean of the model tells the network's progress, and a
process that starts from less did not get the network's model. Without a daemon it steps on alone. As soon as there is
one it attaches again and gives up the steps made meanwhile, as `gossipdp.attach` does. The diary is JSON lines:
time.monotonic(), seconds that it has waited for a CPU, process, steps, session, applied slots, mean of the model. A
file of orders may make it go wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import UnreachableError
from simulations.processes.numpy_trainer import NumpyTrainer
from simulations.processes.progress import delay

DIARY_EVERY = 0.05


class Attaching:
    """Attaches to the daemon and takes over its model, while the steps go on."""

    def __init__(self, home: Path, x: NDArray[np.float32]) -> None:
        self.trainer: NumpyTrainer | None = None
        self.refused = ""
        self._thread = threading.Thread(target=self._attach, args=(home, x.copy()), daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def _attach(self, home: Path, x: NDArray[np.float32]) -> None:
        while self.trainer is None and not self.refused:
            try:
                self.trainer = NumpyTrainer(home, x)
            except ConnectionRefusedError as error:
                self.refused = str(error)
            except (TimeoutError, UnreachableError) as error:
                print(error, file=sys.stderr)


def obey(orders: Path | None, x: NDArray[np.float32]) -> None:
    """Go wrong as the file of orders says."""
    order = orders.read_text().strip() if orders is not None and orders.exists() else ""
    if order == "nan":
        x[:] = np.nan
    elif order == "crash":
        raise MemoryError("CUDA out of memory (as ordered)")
    while order == "hang" and orders is not None and orders.exists():
        time.sleep(DIARY_EVERY)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("diary", type=Path)
    parser.add_argument("--size", type=int, default=200_000)
    parser.add_argument("--start", type=float, default=0.0, help="every parameter of this process's own first model")
    parser.add_argument("--drift", type=float, default=3e-4, help="what every step adds everywhere")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds between steps")
    parser.add_argument("--orders", type=Path, help="file with a word: nan (parameters become NaN), crash or hang")
    options = parser.parse_args()

    home = Path(os.environ["GOSSIPDP_HOME"])
    random = np.random.default_rng(os.getpid())
    noise = random.normal(options.drift, 1e-3, 2 * options.size).astype(np.float32)
    x = np.full(options.size, options.start, np.float32)
    trainer: NumpyTrainer | None = None
    attaching = Attaching(home, x)
    attaching.wait()  # there is no model before the first attach
    steps, noted = 0, 0.0
    with options.diary.open("a", buffering=1) as diary:

        def note(event: str, trainer: NumpyTrainer | None) -> None:
            facts = {"steps": steps, "session": 0, "drains": 0} if trainer is None else {
                "steps": steps, "session": trainer.session, "drains": trainer.drains
            }  # fmt: skip
            line = {"event": event, "at": time.monotonic(), "delayed": delay(), "pid": os.getpid()}
            diary.write(json.dumps(line | facts | {"mean": float(x.mean())}) + "\n")

        while True:
            if attaching.over and trainer is None:
                if attaching.refused:
                    print(attaching.refused, file=sys.stderr)
                    return 6
                trainer = attaching.trainer
                assert trainer is not None
                x = trainer.x
                note("attached", trainer)
            at = int(random.integers(options.size))
            x += noise[at : at + options.size]
            steps += 1
            if trainer is None:
                time.sleep(options.pace)
            else:
                trainer.step()
                trainer.wait(options.pace)
                if trainer.lost:
                    note("alone", trainer)
                    trainer.close()
                    trainer, attaching = None, Attaching(home, x)
            if time.monotonic() - noted >= DIARY_EVERY:
                note("step", trainer)
                noted = time.monotonic()
                obey(options.orders, x)


if __name__ == "__main__":
    sys.exit(main())
