"""Adam's moments in the flat layout of the parameters: read to and written from shared memory, by every rank its part.

What others know of the optimizer is this much: second and first moment (exp_avg_sq, exp_avg) and the number of steps,
which its bias correction needs. Of other optimizers, and of the parameters they step on, nothing is told. Nothing here
may know the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from gossipdp.runtime.link import Moment
from gossipdp.training.layout import Fence, Flat, Layout, Vector, pinned
from gossipdp.training.optimizers import Held, held
from gossipdp.training.schema import local

__all__ = ["AdamMoments"]

KEYS: Final[dict[Moment, str]] = {"second": "exp_avg_sq", "first": "exp_avg"}
FAMILY: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam)


class AdamMoments:
    """Those of `optimizers`, which `find` has found to be of the family."""

    def __init__(self, layout: Layout, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._layout = layout
        named = {each.name: each for each in held(model, optimizers)}
        self._held: dict[int, Held] = {
            index: named[entry.name]
            for index, entry in enumerate(layout.schema.entries)
            if entry.kind == "parameter" and entry.name in named
        }
        ends = [entry.offset for entry in layout.schema.entries[1:]] + [layout.schema.size]
        self._gaps = [(entry.stop, end) for entry, end in zip(layout.schema.entries, ends, strict=True)]
        self._arriving: dict[tuple[int, str], Tensor] = {}
        self.steps = 0
        """that the optimizer has made; counted here, for its own count may be on the device"""
        self.recount()

    @classmethod
    def find(cls, layout: Layout, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> AdamMoments | None:
        """None if none of `optimizers`, nor what one wraps, has these moments."""
        family = [inner for inner in map(_of_family, optimizers) if inner is not None]
        return cls(layout, model, family) if family else None

    @property
    def empty(self) -> bool:
        """The optimizer has made no step, and nobody has given it a state."""
        return not any(self._kept(index) for index in self._held)

    def recount(self) -> None:
        """The state is another now. Waits for the device."""
        states = [self._kept(index) for index in self._held]
        self.steps = max((int(state["step"]) for state in states if "step" in state), default=0)

    def _kept(self, index: int) -> dict[str, Any]:
        each = self._held.get(index)
        kept: dict[str, Any] = {} if each is None else each.optimizer.state.get(each.parameter, {})
        return kept

    @torch.no_grad()
    def read(self, which: Moment, into: Vector, rank: int = 0, ranks: int = 1) -> Fence:
        """into := one of the moments, 0 where there is none; as `Layout.read` does with parameters."""
        flat, streams = torch.from_numpy(into), self._layout.streams
        streams.begin()
        if rank == 0:
            # What others mix into a model's padding is nothing to it, but would be a moment here.
            for start, stop in self._gaps:
                flat[start:stop].zero_()
        for index, first, start, stop in self._layout.shares(rank, ranks):
            if self._layout.schema.entries[index].kind != "parameter":
                continue
            tensor = self._kept(index).get(KEYS[which])
            if tensor is None:
                flat[start:stop].zero_()
            else:
                held = local(tensor)
                with streams.beside(held):
                    values = held.reshape(-1)[start - first : stop - first]
                    flat[start:stop].copy_(values, non_blocking=pinned(flat[start:stop], values))
        return streams.end()

    @torch.no_grad()
    def load(self, which: Moment, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """One of the moments := values on [start, start + len(values)); the optimizer has it after `finish`."""
        for piece in self._layout.pieces(start, len(values), shards=shards, rest=rest):
            if piece.number not in self._held:
                continue
            with Flat(local(self._arrived(piece.number, KEYS[which]))) as flat:
                flat[piece.first : piece.last].copy_(values[piece.start : piece.stop])

    @torch.no_grad()
    def finish(self, steps: int, agree: Callable[[Tensor], object] = lambda flags: None) -> None:
        """Give the optimizer what was loaded, as if it had made so many steps.

        A parameter whose second moment is 0 everywhere was never trained: it begins as new.

        Args:
            agree: flags := their maximum over all ranks; a rank may hold nothing of a sharded parameter.
        """
        indices = [*self._held]
        trained = torch.zeros(len(indices), dtype=torch.int64, device="cpu")
        for place, index in enumerate(indices):
            part = self._arriving.get((index, "exp_avg_sq"))
            trained[place] = part is not None and bool(local(part).any())
        agree(trained)
        for index, flag in zip(indices, trained.tolist(), strict=True):
            if not flag:
                continue
            _, parameter, optimizer, group = self._held[index]
            state = optimizer.state[parameter]
            first, second = (self._arrived(index, key) for key in ("exp_avg", "exp_avg_sq"))
            state["step"] = _step(parameter, group, steps)
            state["exp_avg"], state["exp_avg_sq"] = first, second
            if group.get("amsgrad"):
                state["max_exp_avg_sq"] = second.clone()
        self._arriving.clear()
        self.steps = steps

    def _arrived(self, index: int, key: str) -> Tensor:
        """What is loaded so far of one moment of one parameter; 0 at first."""
        if (index, key) not in self._arriving:
            parameter = self._held[index].parameter.detach()
            self._arriving[index, key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return self._arriving[index, key]


def _of_family(optimizer: Any) -> torch.optim.Optimizer | None:
    while not isinstance(optimizer, FAMILY):
        optimizer = getattr(optimizer, "optimizer", None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return None
    return optimizer


def _step(parameter: Tensor, group: dict[str, Any], steps: int) -> Tensor:
    """As torch keeps it: on the device only for the kernels that want it there."""
    beside = bool(group.get("capturable") or group.get("fused"))
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    dtype = torch.float64 if wide else torch.float32
    return torch.tensor(float(steps), dtype=dtype, device=parameter.device if beside else "cpu")
