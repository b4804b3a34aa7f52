"""Whether the ranks of a group hold one replica: same host and model at the start, same parameters a few times.

Of a tensor that all ranks hold, each rank hands over a part. It must be equal on all of them, bit for bit, as
DistributedDataParallel keeps it; ranks that train apart would hand over a patchwork. Buffers are not compared: each
rank has its own running averages, and the first rank's are handed over. Nothing here knows the daemon.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from gossipdp.errors import ConfigError, MismatchError
from gossipdp.protocol.schema import Schema
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import FROZEN_DIFFER, FROZEN_DIFFER_PARTLY, local
from gossipdp.training.tensors.streams import STAGED, dense

__all__ = ["Comparison", "agree_on_model", "checksums", "replicas_differ"]

_BITS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""integer type by bytes per element"""


def agree_on_model(schema: Schema, group: Any) -> int:
    """Check that all ranks are on this host and hold one model. Collective.

    Returns:
        The process id of the first rank.

    Raises:
        ConfigError: GD-308, the ranks are on several hosts.
        MismatchError: GD-301, the ranks hold different models.
    """
    place = f"{socket.gethostname()} {_boot()}"
    told: list[Any] = [None] * dist.get_world_size(group)
    whole = hashlib.blake2b(schema.to_bytes(), digest_size=16).digest()
    dist.all_gather_object(told, (place, os.getpid(), whole), group=group)
    places = sorted({other for other, *_ in told})
    if len(places) > 1:
        names = ", ".join(name.split()[0] for name in places)
        raise ConfigError(
            "GD-308",
            "the ranks of one group are on several hosts",
            seen=f"{len(told)} ranks on {names}",
            do="start torchrun on each host by itself (--standalone): gossip joins the hosts",
        )
    others = [rank for rank, (*_, digest) in enumerate(told) if digest != told[0][2]]
    if others:
        models: list[Any] = [None] * len(told)
        dist.all_gather_object(models, schema.to_bytes(), group=group)
        raise _models_differ([Schema.from_bytes(each) for each in models], others)
    leader: int = told[0][1]
    return leader


def _models_differ(models: Sequence[Schema], others: Sequence[int]) -> MismatchError:
    """`others` are the ranks whose model is not the first rank's."""
    if models[0].entries == models[others[0]].entries:
        apart = set(models[0].frozen) ^ set(models[others[0]].frozen)
        return MismatchError(
            "GD-301",
            "the ranks of one group hold different models",
            seen=f"{_named(others)} of {len(models)}; frozen parameter {min(apart).name} differs from rank 0",
            do=FROZEN_DIFFER_PARTLY if set(models[0].frozen) & set(models[others[0]].frozen) else FROZEN_DIFFER,
        )
    pairs = zip_longest(models[0].entries, models[others[0]].entries)
    number, (mine, theirs) = next((number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1])
    return MismatchError(
        "GD-301",
        "the ranks of one group hold different models",
        seen=f"{_named(others)} of {len(models)}; tensor {number} is {mine or 'missing'} on rank 0, "
        f"{theirs or 'missing'} on rank {others[0]}",
        do="give each rank the whole model: the ranks of a host train one replica; pipeline stages do not work",
    )


def _boot() -> str:
    """Distinguishes two hosts of the same name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _shared(layout: Layout) -> list[int]:
    """The parameters that every rank holds whole."""
    entries = enumerate(layout.schema.entries)
    return [index for index, entry in entries if entry.kind == "parameter" and not layout.extents[index].sharded]


def checksums(layout: Layout) -> Tensor:
    """The sum of the bits of each parameter that every rank holds whole; int64, on the layout's device.

    A sum of integers is the same on all kinds of devices. Nothing waits for the device.
    """
    sums = []
    for index in _shared(layout):
        elements = dense(local(layout.tensors[index]))
        bits = elements.view(_BITS[elements.element_size()])
        sums += [sum(piece.sum(dtype=torch.int64) for piece in bits.split(STAGED))]
    return torch.stack([each.to(layout.device) for each in sums]) if sums else torch.zeros(0, device="cpu")


class Comparison:
    """All ranks' checksums on their way from the device. Nothing waits for them.

    Args:
        layout: the model's exchanged tensors.
        rows: shape (ranks, parameters).
    """

    def __init__(self, layout: Layout, rows: Tensor) -> None:
        self._layout, self._rows = layout, rows
        self._event: torch.cuda.Event | None = None
        self._answer: str | None = None
        if rows.is_cuda:
            self._rows = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
            self._rows.copy_(rows, non_blocking=True)
            self._event = torch.cuda.current_stream(rows.device).record_event()

    @property
    def difference(self) -> str | None:
        """Which ranks and parameters differ from the first rank's. "" if none does, None if that is not known yet."""
        if self._answer is None and (self._event is None or self._event.query()):
            apart = self._rows != self._rows[0]
            ranks, columns = (torch.nonzero(apart.any(side)).flatten().tolist() for side in (1, 0))
            names = [self._layout.schema.entries[index].name for index in _shared(self._layout)]
            self._answer = (
                f"{_named(ranks)} of {len(self._rows)}; {len(columns)} of {len(names)} parameters differ from "
                f"rank 0, the first is {names[columns[0]]}"
                if ranks
                else ""
            )
        return self._answer

    @property
    def equal(self) -> bool:
        """True if all ranks are known to hold the same parameters."""
        return self.difference == ""


def replicas_differ(seen: str) -> MismatchError:
    """The error for ranks that train apart; `seen` as `Comparison.difference` says."""
    return MismatchError(
        "GD-320",
        "the ranks of this group do not hold the same parameters",
        seen=seen,
        do="wrap the model in DistributedDataParallel, or shard it with fully_shard, before attach: the ranks of a "
        "host train one replica. For local SGD start one process per host",
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
