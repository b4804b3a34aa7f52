"""DDP over Gloo, with gradients in fp16.

DistributedDataParallel with its default buckets. `fp16_compress_hook` of torch's page "DDP Communication Hooks" halves
the bytes; the page's hook for bf16 refuses Gloo. `init_sync` is off, as its documentation allows where all ranks begin
with the same weights: a restart broadcasts no model.
"""

from __future__ import annotations

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from simulations.processes.race.group import join_group


def main() -> None:
    trainer, _ = join_group()
    trainer.restore()
    replica = DistributedDataParallel(trainer.model, init_sync=False)
    replica.register_comm_hook(None, fp16_compress_hook)
    for _ in trainer.steps(replica):
        trainer.checkpoint()


if __name__ == "__main__":
    main()
