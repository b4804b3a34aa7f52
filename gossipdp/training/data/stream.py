"""`Stream`: samples of a map-style data set or an iterable, with any number of loader processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch.utils.data

from gossipdp.errors import DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.training.data.passes import Passes, ReadingGroup
from gossipdp.training.data.plan import Plan
from gossipdp.training.data.reader import Reader
from gossipdp.training.data.sources import (
    check_repeats,
    division,
    length,
    loader_place,
    named_size,
    shards,
    skip,
    with_own_epoch,
)

__all__ = ["Stream"]


class Stream(Passes, torch.utils.data.IterableDataset[Any]):
    """Samples for a DataLoader with any number of workers, or for a plain loop. All ranks have as many workers.

    Args:
        source: a map-style data set, or an iterable that begins anew with each `iter`, such as a streamed HF data set.
            Its `set_epoch` is called if it has one, so it may shuffle by the epoch, in one order on every host.
        by: how an iterable is cut. "shards": by its own (`num_shards` and `shard`, as HF data sets have), which reads
            no sample in vain; the default from 64 shards on. "examples": by number; every reader goes through the
            iterable in order, and skips other readers' examples.
        size: samples of an iterable cut by examples, roughly; default what an HF data set says.
        name, block, seed, shuffle, home: as for `Sampler`.
        ahead: samples that each worker may hold ready, at most: batch * (1 + prefetch_factor).

    Raises:
        DataError: GD-309, the data cannot be read. Raised by a pass if Accelerate lets the first rank read for all.
        ConfigError: GD-306, torch.distributed is not initialized.

    Example:
        loader = DataLoader(Stream(TokenFile("train.bin", 1024)), batch_size=12, num_workers=4)
    """

    def __init__(
        self,
        source: Any,
        *,
        by: str | None = None,
        size: int | None = None,
        name: str = "data",
        block: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        ahead: int | None = None,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        self._source = with_own_epoch(source)
        self._by = by or division(source)
        match self._by:
            case "samples":
                size, most = length(source), block
            case "shards":
                size, most = shards(source), 1
            case "examples":
                check_repeats(source)
                size, most = size or named_size(source), block
            case _:
                raise DataError("GD-309", "a stream is divided by shards or by examples", seen=f"by={by!r}")
        plan = Plan.of(name, self._by, size, most, seed, shuffle)
        super().__init__(plan, ReadingGroup.here(home), ahead)
        self._process = os.getpid()
        self._place: tuple[int, int] | None = None
        """number of this loader process, and how many there are"""

    def __iter__(self) -> Iterator[Any]:
        if self._process != os.getpid():
            # This is a copy in a loader process, forked or spawned.
            self._process, self._reader, self._place = os.getpid(), None, None
            self._source = with_own_epoch(self._source)
        slot, slots = self._place = self._place or loader_place()
        reader = self._begin(slot, slots)
        if self._by == "samples":
            blocks = ((lease, self.plan.samples(lease).tolist()) for lease in reader.leases())
            return map(self._source.__getitem__, self._walk(reader, blocks))
        return self._walk(reader, self._shards(reader) if self._by == "shards" else self._examples(reader))

    def __getstate__(self) -> dict[str, Any]:
        """Without the reader: a loader process makes its own connection."""
        return {**self.__dict__, "_reader": None, "_whole": self._is_taken_apart()}

    def _shards(self, reader: Reader) -> Iterator[tuple[Lease, Iterable[Any]]]:
        for lease in reader.leases():
            self._set_source_epoch(lease.epoch)
            [shard] = self.plan.samples(lease).tolist()
            yield lease, self._source.shard(num_shards=self.plan.size, index=shard)

    def _examples(self, reader: Reader) -> Iterator[tuple[Lease, Iterable[Any]]]:
        """Blocks in the order of the source. The source begins anew when a block lies behind."""
        examples: Iterator[Any] = iter(())
        epoch, place = -1, 0
        while True:
            rotation = reader.epoch if epoch < 0 else epoch
            lease = reader.next(self.plan.block_at(place % self.plan.blocks, rotation))
            if lease is None:
                return
            wanted = self.plan.place_of(lease.block, lease.epoch)
            if lease.epoch != epoch or wanted < place:
                epoch, place = lease.epoch, 0
                self._set_source_epoch(epoch)
                examples = iter(self._source)
            skip(examples, (wanted - place) * self.plan.block)
            place = wanted + 1
            last = place == self.plan.blocks
            # The size is known only roughly: what is left over belongs to the last block.
            yield lease, itertools.islice(examples, None if last else self.plan.block)

    def _set_source_epoch(self, epoch: int) -> None:
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
