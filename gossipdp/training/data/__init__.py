"""Which samples are mine: every peer and every rank reads another part of the data, and the parts follow who is there.

    sampler = gossipdp.training.data.Sampler(dataset)                    # a map-style data set
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    stream = gossipdp.training.data.Stream(TokenFile("train.bin", 1024))   # or any iterable, or a streamed HF data set
    loader = DataLoader(stream, batch_size=12, num_workers=4)

One pass over either is this host's share of one epoch of the network. The network goes through an epoch together, in
blocks: who is fast reads more of them, what a lost peer had open is read by others, and a peer that comes late begins
where the network is. Without a daemon, or under GOSSIPDP_OFF, a pass is a whole epoch, cut among the ranks as
torch.utils.data.DistributedSampler does. Nothing here may know the network.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.data
from torch import Tensor

from gossipdp.errors import DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.runtime import link as links
from gossipdp.training.adapters import accelerated, taken_apart
from gossipdp.training.data.reader import Plan, Reader
from gossipdp.training.ranks.group import together

__all__ = ["Sampler", "Stream", "TokenFile"]

T = TypeVar("T")
AHEAD: Final = 256
"""samples a loader holds ready, if not told"""
MANY_SHARDS: Final = 64
"""from so many on a stream is cut by its own shards"""


class _Who(NamedTuple):
    """The training group as its readers know it; drawn in the main process, and taken along into loaders' processes."""

    id: bytes
    world: int
    rank: int
    home: Path | None

    @classmethod
    def here(cls, home: str | os.PathLike[str] | None) -> _Who:
        """Collective, if there are several ranks. Raises ConfigError GD-306."""
        drawn = torch.frombuffer(bytearray(os.urandom(16)), dtype=torch.uint8)
        world, rank = 1, 0
        if together():
            world, rank = dist.get_world_size(), dist.get_rank()
            group = dist.new_group(backend="gloo")
            dist.broadcast(drawn, 0, group=group)
            dist.destroy_process_group(group)
        place: Path | None = links.default_home() if home is None else links.expanded(home)
        if os.environ.get("GOSSIPDP_OFF", "").strip().lower() not in ("", "0", "false", "no"):
            place = None
        return cls(bytes(drawn.tolist()), world, rank, place)

    def reader(self, plan: Plan, slot: int, slots: int, ahead: int) -> Reader:
        group = links.Group(self.id, self.world, self.rank, slot, plan.digest, plan.name, plan.blocks)
        return Reader(plan, group, slots, self.home, ahead)


class _Passes:
    """What a sampler and a stream have in common: passes, their numbers, and going on in the middle of one."""

    def __init__(self, plan: Plan, who: _Who, ahead: int | None) -> None:
        self.plan, self._who = plan, who
        self._ahead = AHEAD if ahead is None else ahead
        if self._ahead < 0:
            raise DataError("GD-309", "a loader cannot hold fewer than no samples ready", seen=f"ahead={ahead}")
        self._reader: Reader | None = None
        self._next_epoch = 0
        self._skip = 0
        self._whole = False
        """whoever made this copy has seen that its loader leaves every rank a part"""

    @property
    def epoch(self) -> int:
        """Of the pass under way, or of the last: the network's, if there is one. Of a stream that a loader's processes
        read this is what `set_epoch` said: they alone are told."""
        return self._next_epoch if self._reader is None else self._reader.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next pass is over `epoch`. Where there is a network its epoch holds, and this changes nothing; alone, a
        stream that a loader's processes read comes in the same order again unless this is called."""
        if epoch != self._next_epoch:
            self._next_epoch, self._skip = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands. Where there is a network, the daemon remembers more than this."""
        used = self._skip if self._reader is None else self._reader.used
        return {"data": self.plan.digest.hex(), "epoch": self.epoch, "used": used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there: with a network at what no peer has read, alone after so many samples of that epoch.

        Raises:
            DataError: GD-309, it is of other data.
        """
        if state.get("data") != self.plan.digest.hex():
            raise DataError(
                "GD-309",
                "this state is of other data",
                seen=f"{state.get('data')}, here {self.plan.digest.hex()}",
                do="use the same data set, name, block and seed as before",
            )
        self._next_epoch, self._skip = int(state["epoch"]), int(state["used"])
        self._reader = None if self._reader is None else self._renewed(self._reader)

    def _renewed(self, reader: Reader) -> Reader | None:
        reader.bye()
        return None

    def _begin(self, slot: int, slots: int) -> Reader:
        if self._reader is None:
            self._reader = self._who.reader(self.plan, slot, slots, self._ahead)
        self._reader.whole = self._is_taken_apart()
        self._reader.begin(self._next_epoch)
        return self._reader

    def _is_taken_apart(self) -> bool:
        return self._whole or (self._who.world > 1 and taken_apart(self))

    def _walk(self, reader: Reader, blocks: Iterable[tuple[Lease, Iterable[T]]]) -> Iterator[T]:
        """Of the samples of all ranks, block by block, those of this one."""
        skip, self._skip = (self._skip if reader.alone else 0), 0
        for lease, samples in blocks:
            for sample in reader.share(samples):
                if reader.handed >= skip:
                    yield sample
            reader.handed_out(lease)
        yield from reader.fill()
        self._next_epoch = reader.epoch + 1


class Sampler(_Passes, torch.utils.data.DistributedSampler[int]):  # type: ignore[override]
    """Numbers of samples for a map-style data set, to be given to a DataLoader; batches and collation are its business.

    Under torch.distributed every rank makes one, after `init_process_group`; all take the same number of samples a
    pass. It has a length where there is no daemon, and else none (TypeError), for how much others read is not known
    before: what wants one wants a number of steps instead. Frameworks leave it alone, as they do every
    DistributedSampler (Lightning, Ray), or cut it once more (Accelerate), and then it is whole on every rank.

    Args:
        data: the data set, or its length.
        name: of the data set in messages and metrics.
        block: samples that are given out at a time, to all ranks together; default 256, more for over four million.
        seed: of the shuffle. Peers that read together agree on name, block, seed and length.
        ahead: samples this process may hold ready at a time, at most: batch * (1 + num_workers * prefetch_factor). What
            was handed out counts as used, and is not read again after a crash, once so many others were.
        home: the peer's; default GOSSIPDP_HOME, then ~/.gossipdp/NETWORK.

    Raises:
        DataError: GD-309, such data cannot be read.
        ConfigError: GD-306, torch.distributed is not initialized.
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
        plan = Plan.of(name, "samples", _length(data), block, seed, shuffle)
        super().__init__(plan, _Who.here(home), ahead)
        # As a DistributedSampler has them, for whoever asks one.
        self.num_replicas, self.rank = self._who.world, self._who.rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, False

    def __iter__(self) -> Iterator[int]:
        reader = self._begin(0, 1)
        blocks = ((lease, self.plan.samples(lease).tolist()) for lease in reader.leases())
        return self._walk(reader, blocks)

    def __len__(self) -> int:
        home, world = self._who.home, self._who.world
        if (home is not None and links.data_path(home).exists()) or (world > 1 and accelerated()):
            raise TypeError("a pass over data that others read too has no length; say how many steps to train")
        return math.ceil(self.plan.size / world)


class Stream(_Passes, torch.utils.data.IterableDataset[Any]):
    """Samples for a DataLoader with any number of workers, or for a plain loop. All ranks have as many workers.

    Args:
        source: a map-style data set; or an iterable that begins anew with each `iter`, such as a streamed HF data set.
            Its `set_epoch` is called if it has one, so it may shuffle by the epoch, alike on every host.
        by: how an iterable is cut. "shards": by its own (`num_shards` and `shard`, as HF data sets have), which reads
            nothing in vain; the default from 64 shards on. "examples": by number; every reader goes through it in
            order, and skips what is others'.
        size: samples of an iterable cut by examples, about; default what an HF data set says of itself.
        others: as for `Sampler`; `ahead` is each worker's, batch * (1 + prefetch_factor).

    Raises:
        DataError: GD-309, such data cannot be read; when it is read, Accelerate has the first rank do it for all.
        ConfigError: GD-306, torch.distributed is not initialized.
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
        self._source = _own(source)
        self._by = by or _division(source)
        match self._by:
            case "samples":
                size, most = _length(source), block
            case "shards":
                size, most = _shards(source), 1
            case "examples":
                _check_repeats(source)
                size, most = size or _said_size(source), block
            case _:
                raise DataError("GD-309", "a stream is cut by shards or by examples", seen=f"by={by!r}")
        plan = Plan.of(name, self._by, size, most, seed, shuffle)
        super().__init__(plan, _Who.here(home), ahead)
        self._process = os.getpid()
        self._place: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._process != os.getpid():
            # In a loader's process, to which this was copied.
            self._process, self._reader, self._place = os.getpid(), None, None
            self._source = _own(self._source)
        slot, slots = self._place = self._place or _place_of_loader()
        reader = self._begin(slot, slots)
        if self._by == "samples":
            blocks = ((lease, self.plan.samples(lease).tolist()) for lease in reader.leases())
            return map(self._source.__getitem__, self._walk(reader, blocks))
        return self._walk(reader, self._shards(reader) if self._by == "shards" else self._examples(reader))

    def __getstate__(self) -> dict[str, Any]:
        """A loader's process, to which this is sent, has a connection of its own."""
        return {**self.__dict__, "_reader": None, "_whole": self._is_taken_apart()}

    def _shards(self, reader: Reader) -> Iterator[tuple[Lease, Iterable[Any]]]:
        for lease in reader.leases():
            self._turn_to(lease.epoch)
            [shard] = self.plan.samples(lease).tolist()
            yield lease, self._source.shard(num_shards=self.plan.size, index=shard)

    def _examples(self, reader: Reader) -> Iterator[tuple[Lease, Iterable[Any]]]:
        """In the order of the source, which is begun anew when that leads back."""
        examples: Iterator[Any] = iter(())
        epoch, place = -1, 0
        while True:
            turn = reader.epoch if epoch < 0 else epoch
            lease = reader.next(self.plan.before_turn(place % self.plan.blocks, turn))
            if lease is None:
                return
            wanted = self.plan.turned(lease.block, lease.epoch)
            if lease.epoch != epoch or wanted < place:
                epoch, place = lease.epoch, 0
                self._turn_to(epoch)
                examples = iter(self._source)
            _skip(examples, (wanted - place) * self.plan.block)
            place = wanted + 1
            last = place == self.plan.blocks
            # How many there are was only said about: what is left over belongs to the last block.
            yield lease, itertools.islice(examples, None if last else self.plan.block)

    def _turn_to(self, epoch: int) -> None:
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)


class TokenFile(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Tokens in a file as nanoGPT prepares them, without a header: windows of `context`, side by side, each of which is
    (tokens, the same one further on), both int64. The file is mapped, not read.

    Raises:
        DataError: GD-309, there is no such file, or not a whole window in it.
    """

    def __init__(self, path: str | os.PathLike[str], context: int, *, dtype: str = "uint16") -> None:
        self.path, self.context, self._type = Path(path), context, np.dtype(dtype)
        try:
            size = self.path.stat().st_size
        except OSError as error:
            do = "prepare it first, or correct the path"
            raise DataError("GD-309", "there is no such token file", seen=f"{path}: {error.strerror}", do=do) from None
        tokens, rest = divmod(size, self._type.itemsize)
        if rest or context < 1 or tokens <= context:
            raise DataError(
                "GD-309",
                "this is no file of tokens, or has not one window",
                seen=f"{path}: {size} bytes of {self._type.name}, windows of {context}",
                do="say the dtype the tokens were written with, and a shorter context if the text is short",
            )
        self._windows = (tokens - 1) // context
        self._tokens: np.memmap[Any, np.dtype[Any]] | None = None

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, window: int) -> tuple[Tensor, Tensor]:
        if not 0 <= window < self._windows:
            raise IndexError(window)
        if self._tokens is None:
            self._tokens = np.memmap(self.path, self._type, "r")
        first = window * self.context
        tokens = torch.from_numpy(self._tokens[first : first + self.context + 1].astype(np.int64))
        return tokens[:-1], tokens[1:]

    def __getstate__(self) -> dict[str, Any]:
        """A mapping would be sent as all that is in it."""
        return {**self.__dict__, "_tokens": None}


def _length(data: Sized | int) -> int:
    try:
        return data if isinstance(data, int) else len(data)
    except TypeError:
        raise DataError(
            "GD-309",
            "a sampler needs a data set with a length",
            seen=type(data).__name__,
            do="use gossipdp.training.data.Stream for an iterable",
        ) from None


def _division(source: Any) -> str:
    """How a stream is cut, unless told."""
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return "samples"
    return "shards" if hasattr(source, "shard") and _shards(source) >= MANY_SHARDS else "examples"


def _shards(source: Any) -> int:
    shards = getattr(source, "num_shards", getattr(source, "n_shards", None))
    if not isinstance(shards, int) or not hasattr(source, "shard"):
        raise DataError(
            "GD-309",
            "this source has no shards to be cut by",
            seen=f"{type(source).__name__} without num_shards and shard",
            do='use by="examples"',
        )
    return shards


def _check_repeats(source: Any) -> None:
    if not isinstance(source, Iterable) or isinstance(source, Iterator):
        do = "pass something that begins anew with each iter(), not an iterator or generator"
        raise DataError("GD-309", "this cannot be read more than once", seen=type(source).__name__, do=do)


def _said_size(source: Any) -> int:
    """Of an HF data set, if it knows."""
    info, split = getattr(source, "info", None), getattr(source, "split", None)
    splits = getattr(info, "splits", None) or {}
    size = getattr(splits.get(str(split)), "num_examples", None)
    if not size:
        raise DataError(
            "GD-309",
            "it is not known how many samples this stream has",
            seen=type(source).__name__,
            do="say size=, about; all peers alike",
        )
    return int(size)


def _own(source: Any) -> Any:
    """`source` with an epoch of its own. HF data sets keep theirs where all of a loader's processes see it, and ranks
    that were given the data set; set by several at once it would be one that nobody meant, and each would read in
    another order."""
    if hasattr(source, "set_epoch"):
        source = copy.copy(source)
        kept = getattr(source, "__dict__", {})
        kept.update({name: each.clone() for name, each in kept.items() if _is_shared(each)})
    return source


def _is_shared(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.is_shared())


def _skip(examples: Iterator[Any], count: int) -> None:
    next(itertools.islice(examples, count, count), None)


def _place_of_loader() -> tuple[int, int]:
    """Number of this loader's process, and how many there are. From here on the process counts as the only one: sources
    that divide themselves among the processes of a loader (HF data sets do) would leave out what is not read twice."""
    info = torch.utils.data.get_worker_info()
    if info is None:
        return 0, 1
    torch.utils.data._utils.worker._worker_info = None
    return info.id, info.num_workers
