"""Adam's moments in the flat layout of the parameters: read to and written from shared memory, by every rank its part.

What others know of the optimizer is this much: second and first moment (exp_avg_sq, exp_avg) and the number of steps,
which its bias correction needs. Of other optimizers, and of the parameters they step on, nothing is told. Nothing here
may know the daemon.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gossipdp.runtime.link import Moment
from gossipdp.training.tensors.layout import Fence, Flat, Layout, Vector, pinned
from gossipdp.training.tensors.optimizers import Held, held
from gossipdp.training.tensors.schema import local

__all__ = ["AdamMoments"]

log = logging.getLogger("gossipdp.training")

KEYS: Final[dict[Moment, str]] = {"second": "exp_avg_sq", "first": "exp_avg"}
FAMILY: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam)
"""these alone: one derived from them may keep more, and would miss it"""
LEAST_STEPS: Final = 10
"""moments of fewer are worth nothing; and RAdam's first steps are as long as its first moment says, without bound"""
MOST_APART: Final = 100.0
"""times that sqrt(v) may exceed the first gradients, or they it: more would hold the weights still for thousands of
steps, less would make the first ones too long"""
PROVED_WITHIN: Final = 10
"""steps in which a gradient may say so; a parameter that has none by then is seldom used"""


class AdamMoments:
    """Those of `optimizers`, of which `find` has found some to be of the family."""

    def __init__(self, layout: Layout, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._layout = layout
        self._held: dict[int, Held] = {}
        self._arriving: dict[tuple[int, str], Tensor] = {}
        self._unproved: set[int] = set()
        self._left: dict[int, int] = {}
        """by optimizer (id), steps in which its own may be proved"""
        self.steps = 0
        """that the optimizer has made; counted here, for its own count may be on the device"""
        self.follow(model, optimizers)

    def follow(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Read and write the moments of these optimizers from now on; of those that have none, zeros are read."""
        family = [inner for inner in map(_of_family, optimizers) if inner is not None]
        named = {each.name: each for each in held(model, family)}
        self._held = {
            index: named[entry.name]
            for index, entry in enumerate(self._layout.schema.entries)
            if entry.kind == "parameter" and entry.name in named
        }
        self.recount()

    @classmethod
    def find(cls, layout: Layout, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> AdamMoments | None:
        """None if none of `optimizers`, nor what one wraps, has these moments."""
        return cls(layout, model, optimizers) if any(map(_of_family, optimizers)) else None

    @property
    def empty(self) -> bool:
        """The optimizer has made no step, and nobody has given it a state."""
        return not any(self._kept(index) for index in self._held)

    def recount(self) -> None:
        """The state is another now. Waits for the device."""
        self._unproved.clear()
        self._count()

    def _count(self) -> None:
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
            flat[self._layout.schema.padding].zero_()
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
    def finish(self, steps: int, agree: Callable[[Tensor], object] = lambda flags: None) -> bool:
        """Give the optimizer what was loaded, as if it had made so many steps.

        A parameter whose second moment is 0 everywhere was never trained: it begins as new. So do all, if the steps
        were only a few.

        Args:
            agree: flags := their maximum over all ranks; a rank may hold nothing of a sharded parameter.

        Returns:
            Whether anything of it is used.
        """
        if steps < LEAST_STEPS:
            self.drop()
            return False
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
            self._unproved.add(index)
            state = optimizer.state[parameter]
            first, second = (self._arrived(index, key) for key in ("exp_avg", "exp_avg_sq"))
            state["step"] = _step(parameter, group, steps)
            state["exp_avg"], state["exp_avg_sq"] = first, second
            if group.get("amsgrad"):
                state["max_exp_avg_sq"] = second.clone()
        self._arriving.clear()
        self.steps = steps
        self._left = {id(each.optimizer): PROVED_WITHIN for each in self._held.values()}
        return bool(trained.any())

    def drop(self) -> None:
        """What was loaded is not used."""
        self._arriving.clear()

    @torch.no_grad()
    def prove(self, stepping: torch.optim.Optimizer) -> None:
        """Before its step: are what `finish` gave moments of such gradients? A parameter with others begins as new.

        By their source's word alone v may be anything: far too large it is a learning rate of nought, far too small a
        manifold one. Each parameter is looked at once, at its first gradient, which waits for the device, and by its
        own optimizer, for the gradients of others may not have been unscaled yet. Every rank comes to the same of the
        parameters that it holds whole; of one that is sharded each judges its own part.
        """
        inner = _of_family(stepping)
        mine = [index for index in self._unproved if self._held[index].optimizer is inner]
        if inner is None or not mine:
            return
        self._left[id(inner)] -= 1
        for index in mine:
            _, parameter, optimizer, _ = self._held[index]
            if parameter.grad is None or (state := self._kept(index)).get("exp_avg_sq") is None:
                continue
            gradient, second = local(parameter.grad), local(state["exp_avg_sq"])
            # A scaler leaves its scale to the fused kernels.
            scale = getattr(optimizer, "grad_scale", None)
            factor = 1.0 if scale is None else 1.0 / float(scale)
            size = max(1, gradient.numel())
            usual = factor * float(torch.linalg.vector_norm(gradient.float())) / math.sqrt(size)
            if not usual or not math.isfinite(usual):
                continue  # nothing of it was used, or the step will be skipped
            self._unproved.discard(index)
            root = math.sqrt(max(0.0, float(second.float().sum()) / size))
            if not usual / MOST_APART <= root <= MOST_APART * usual:
                log.warning("the moments given for %s are not of such gradients, and not used", self._held[index].name)
                for tensor in state.values():
                    local(tensor).zero_()
                self._count()
        if not self._left[id(inner)]:
            self._unproved.difference_update(mine)

    @property
    def unproved(self) -> bool:
        """There is something to `prove`."""
        return bool(self._unproved)

    def watch(self) -> list[RemovableHandle]:
        """Count anew whenever a state is loaded into an optimizer; until the handles are removed."""

        optimizers = {id(each.optimizer): each.optimizer for each in self._held.values()}
        return [each.register_load_state_dict_post_hook(lambda _: self.recount()) for each in optimizers.values()]

    def _arrived(self, index: int, key: str) -> Tensor:
        """What is loaded so far of one moment of one parameter; 0 at first."""
        if (index, key) not in self._arriving:
            parameter = self._held[index].parameter.detach()
            self._arriving[index, key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return self._arriving[index, key]


def _of_family(optimizer: Any) -> torch.optim.Optimizer | None:
    while isinstance(optimizer, torch.optim.Optimizer):
        if type(optimizer) in FAMILY:
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def _step(parameter: Tensor, group: dict[str, Any], steps: int) -> Tensor:
    """As torch keeps it: on the device only for the kernels that want it there."""
    beside = bool(group.get("capturable") or group.get("fused"))
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    dtype = torch.float64 if wide else torch.float32
    return torch.tensor(float(steps), dtype=dtype, device=parameter.device if beside else "cpu")
