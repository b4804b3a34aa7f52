"""Adam's moments in the flat layout of the parameters: read to and written from shared memory, by every rank its part.

What others know of the optimizer is this much: second and first moment (exp_avg_sq, exp_avg) and the number of steps,
which its bias correction needs. Of other optimizers nothing is told. Nothing here may know the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from gossipdp.runtime.link import Moment
from gossipdp.training.layout import Fence, Flat, Layout, Vector, pinned
from gossipdp.training.schema import local, plain_name, unwrap

__all__ = ["AdamMoments"]

KEYS: Final[dict[Moment, str]] = {"second": "exp_avg_sq", "first": "exp_avg"}
FAMILY: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam)


class AdamMoments:
    """Those of `optimizer`, which `find` has found to be of the family."""

    def __init__(self, layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._layout, self._optimizer = layout, optimizer
        named = {plain_name(name): parameter for name, parameter in unwrap(model).named_parameters()}
        groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        self._groups = groups
        self._parameters: dict[int, Tensor] = {
            index: named[entry.name]
            for index, entry in enumerate(layout.schema.entries)
            if entry.kind == "parameter" and named.get(entry.name) in groups
        }
        ends = [entry.offset for entry in layout.schema.entries[1:]] + [layout.schema.size]
        self._gaps = [(entry.stop, end) for entry, end in zip(layout.schema.entries, ends, strict=True)]
        self._arriving: dict[tuple[int, str], Tensor] = {}
        self.steps = 0
        """that the optimizer has made; counted here, for its own count may be on the device"""
        self.recount()

    @classmethod
    def find(cls, layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer) -> AdamMoments | None:
        """None if `optimizer`, or what it wraps, has none of these moments."""
        inner: Any = optimizer
        while not isinstance(inner, FAMILY):
            inner = getattr(inner, "optimizer", None)
            if not isinstance(inner, torch.optim.Optimizer):
                return None
        return cls(layout, model, inner)

    @property
    def empty(self) -> bool:
        """The optimizer has made no step, and nobody has given it a state."""
        return not any(self._optimizer.state.get(parameter) for parameter in self._parameters.values())

    def recount(self) -> None:
        """The state is another now. Waits for the device."""
        states = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters.values()]
        self.steps = max((int(state["step"]) for state in states if "step" in state), default=0)

    @torch.no_grad()
    def read(self, which: Moment, into: Vector, rank: int = 0, ranks: int = 1) -> Fence:
        """into := one of the moments, 0 where there is none; as `Layout.read` of parameters, but for the device's own
        order: the next step comes after the copy."""
        flat = torch.from_numpy(into)
        if rank == 0:
            # What others mix into a model's padding is nothing to it, but would be a moment here.
            for start, stop in self._gaps:
                flat[start:stop].zero_()
        for index, first, start, stop in self._layout.shares(rank, ranks):
            if self._layout.schema.entries[index].kind != "parameter":
                continue
            kept = self._optimizer.state.get(self._parameters[index], {}) if index in self._parameters else {}
            tensor = kept.get(KEYS[which])
            if tensor is None:
                flat[start:stop].zero_()
            else:
                values = local(tensor).reshape(-1)[start - first : stop - first]
                flat[start:stop].copy_(values, non_blocking=pinned(flat, tensor))
        return self._layout.fence()

    @torch.no_grad()
    def load(self, which: Moment, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        """One of the moments := values on [start, start + len(values)); the optimizer has it after `finish`."""
        for piece in self._layout.pieces(start, len(values), shards=shards, rest=rest):
            if piece.number not in self._parameters:
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
        indices = [*self._parameters]
        trained = torch.zeros(len(indices), dtype=torch.int64)
        for place, index in enumerate(indices):
            part = self._arriving.get((index, "exp_avg_sq"))
            trained[place] = part is not None and bool(local(part).any())
        agree(trained)
        for index, flag in zip(indices, trained.tolist(), strict=True):
            if not flag:
                continue
            parameter = self._parameters[index]
            group, state = self._groups[parameter], self._optimizer.state[parameter]
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
            parameter = self._parameters[index].detach()
            self._arriving[index, key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return self._arriving[index, key]


def _step(parameter: Tensor, group: dict[str, Any], steps: int) -> Tensor:
    """As torch keeps it: on the device only for the kernels that want it there."""
    beside = bool(group.get("capturable") or group.get("fused"))
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    dtype = torch.float64 if wide else torch.float32
    return torch.tensor(float(steps), dtype=dtype, device=parameter.device if beside else "cpu")
