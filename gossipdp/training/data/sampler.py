"""`Sampler`: indices for a map-style data set."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sized

import torch.utils.data

from gossipdp.runtime import link as links
from gossipdp.training.adapters import accelerated
from gossipdp.training.data.passes import Passes, ReadingGroup
from gossipdp.training.data.plan import Plan
from gossipdp.training.data.sources import length

__all__ = ["Sampler"]


class Sampler(Passes, torch.utils.data.DistributedSampler[int]):  # type: ignore[override]
    """Indices into a map-style data set, for a DataLoader, which makes the batches.

    Under torch.distributed every rank makes one, after `init_process_group`. All ranks take the same number of samples
    per pass. It has a length only without a daemon (else `len` raises TypeError), because it is not known how much
    other peers read; train for a number of steps instead. Lightning and Ray leave it alone, as every
    DistributedSampler. Accelerate divides it once more, and then it gives all ranks the same samples.

    Args:
        data: the data set, or its length.
        name: of the data set in messages and metrics, 1 to 48 bytes.
        block: samples that are leased at a time, to all ranks together; default 256, more from four million samples on.
        seed: of the shuffle. Peers that read together use the same name, block, seed and length.
        shuffle: a new order in every epoch; False: the data set's order.
        ahead: samples that this process may hold ready, at most: batch * (1 + num_workers * prefetch_factor). A sample
            counts as used once this many later ones were handed out, and is not read again after a crash.
        home: the peer's home; default GOSSIPDP_HOME, then ~/.gossipdp/NETWORK.

    Raises:
        DataError: GD-309, the data cannot be read.
        ConfigError: GD-306, torch.distributed is not initialized.

    Example:
        loader = DataLoader(dataset, batch_size=32, sampler=Sampler(dataset))
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        name: str = "data",
        block: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        ahead: int | None = None,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        plan = Plan.of(name, "samples", length(data), block, seed, shuffle)
        super().__init__(plan, ReadingGroup.here(home), ahead)
        # Frameworks read these attributes of a DistributedSampler.
        self.num_replicas, self.rank = self._group.world, self._group.rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, False

    def __iter__(self) -> Iterator[int]:
        reader = self._begin(0, 1)
        blocks = ((lease, self.plan.samples(lease).tolist()) for lease in reader.leases())
        return self._walk(reader, blocks)

    def __len__(self) -> int:
        """Samples of a pass.

        Raises:
            TypeError: there is a daemon, or Accelerate divides the samples once more.
        """
        home, world = self._group.home, self._group.world
        if (home is not None and links.data_path(home).exists()) or (world > 1 and accelerated()):
            raise TypeError("a pass over data that other peers also read has no length; give a number of steps")
        return math.ceil(self.plan.size / world)
