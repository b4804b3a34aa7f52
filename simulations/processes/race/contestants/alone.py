"""One host that trains alone: what the others have to beat."""

from __future__ import annotations

from simulations.processes.race.training import Trainer


def main() -> None:
    trainer, _ = Trainer.of_command_line()
    for _ in trainer.steps():
        pass


if __name__ == "__main__":
    main()
