"""gossipdp as the README starts it: `gossipdp up` and `join`, default settings, and one line in the script."""

from __future__ import annotations

import gossipdp
from simulations.processes.race.training import Trainer


def main() -> None:
    trainer, _ = Trainer.of_command_line()
    gossipdp.attach(trainer.model, trainer.optimizer, samples_per_step=trainer.rules.batch)
    for _ in trainer.steps():
        pass


if __name__ == "__main__":
    main()
