"""Local SGD over Gloo: torch's own `PeriodicModelAverager`, parameters averaged every 16 steps.

Torch's documentation refers to "Don't Use Large Mini-Batches, Use Local SGD" (Lin et al. 2018, arXiv 1808.07217), whose
largest number of local steps is 16. Its example averages every 4 steps, after 100 steps of DDP. On these links that
start would outlast the run, so it is left out. With `--round` it averages at other times.
"""

from __future__ import annotations

import argparse

from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from simulations.processes.race.group import join_group

PERIOD = 16
"""steps"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--round", type=int, default=PERIOD, help="steps between two averagings")
    trainer, options = join_group(parser)
    period = options.round
    trainer.restore()
    # The averager's warm-up only keeps it from averaging equal models at the first step.
    averager = PeriodicModelAverager(period=period, warmup_steps=period)
    for _ in trainer.steps():
        averager.average_parameters(trainer.model.parameters())
        if averager.step > period and (averager.step - 1) % period == 0:
            trainer.checkpoint()
            trainer.snapshot()


if __name__ == "__main__":
    main()
