"""Adam's moments in the flat layout of the parameters: encoded to shared memory and loaded from it, each rank its part.

The network keeps the second and first moment (exp_avg_sq, exp_avg) and the number of steps, which the bias correction
needs (Kingma and Ba, "Adam", arXiv 1412.6980). Other optimizers and their parameters share nothing. Nothing here knows
the daemon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gossipdp.codecs.blocks import BLOCK
from gossipdp.training.messages import log
from gossipdp.training.optimizer_state.encoder import KEYS, Bytes, MomentsEncoder, Torn, piece_of, spans_of, torn_values
from gossipdp.training.optimizer_state.encoding import Encoded, decode
from gossipdp.training.tensors.arithmetic import Flat
from gossipdp.training.tensors.blocks import Part, parts
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.optimizers import Held, held
from gossipdp.training.tensors.schema import local
from gossipdp.training.tensors.streams import STAGED, dense

__all__ = ["AdamMoments"]

FAMILY: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam)
"""these classes only: a subclass may keep more state, and would miss it"""
LEAST_STEPS: Final = 10
"""fewest steps behind moments that are used; RAdam's first steps follow its first moment without bound"""
MOST_APART: Final = 100.0
"""largest ratio between sqrt(v) and the first gradients, either way. A larger v would hold the weights still for
thousands of steps, a smaller v would make the first steps too long"""
PROVED_WITHIN: Final = 10
"""steps in which a parameter's first gradient is compared; a parameter without one by then is seldom used"""


class AdamMoments:
    """The moments of those optimizers that are of Adam's family. Made by `find`.

    Args:
        layout: the model's exchanged tensors.
        model: the attached model.
        optimizers: all that train it.
    """

    def __init__(self, layout: Layout, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._layout = layout
        self._held: dict[int, Held] = {}
        """parameters with such moments, by index in the schema"""
        self._arriving: dict[tuple[int, str], Tensor] = {}
        """moments that are being loaded, by index and key of the optimizer's state"""
        self._unproved: set[int] = set()
        """indices of parameters whose loaded moments were not yet compared with a gradient"""
        self._left: dict[int, int] = {}
        """steps left for that comparison, by id of the optimizer"""
        self.steps = 0
        """steps of the optimizer; counted here, because its own count may be on the device"""
        self.replaced = 0
        """times that the optimizers, or their state, were replaced"""
        self.follow(model, optimizers)

    def follow(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Use these optimizers from now on. Moments that do not exist are read as zeros."""
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
        """None if none of `optimizers`, or of those that they wrap, is of Adam's family."""
        return cls(layout, model, optimizers) if any(map(_of_family, optimizers)) else None

    @property
    def empty(self) -> bool:
        """True if the optimizer has made no step and no state was loaded into it."""
        return not any(self._kept(index) for index in self._held)

    def recount(self) -> None:
        """The optimizer's state was replaced: read its step count. Waits for the device."""
        self._unproved.clear()
        self.replaced += 1
        self._count()

    def stepped(self, steps: int) -> None:
        """Count `steps` more; negative if some turn out to have been skipped."""
        self.steps += steps

    def _count(self) -> None:
        states = [self._kept(index) for index in self._held]
        self.steps = max((int(state["step"]) for state in states if "step" in state), default=0)

    def _kept(self, index: int) -> dict[str, Any]:
        each = self._held.get(index)
        kept: dict[str, Any] = {} if each is None else each.optimizer.state.get(each.parameter, {})
        return kept

    def moment(self, index: int, key: str) -> Tensor | None:
        """One moment of the tensor with this index in the schema; None if there is none."""
        return self._kept(index).get(key)

    def encoder(self, into: Bytes, rank: int = 0, ranks: int = 1, torn: Torn | None = None) -> MomentsEncoder:
        """Begin to hand both moments over; zeros where there are none.

        Args:
            into: the free shared buffer as bytes.
            rank, ranks: of the ranks that write together.
            torn: as `MomentsEncoder`.
        """
        return MomentsEncoder(self._layout, self, into, spans_of(self._layout, rank, ranks), torn)

    def torn(self, starts: Sequence[int], rank: int, ranks: int) -> Tensor:
        """What this rank writes of blocks that no rank holds whole; see `Torn`."""
        return torn_values(self._layout, self, spans_of(self._layout, rank, ranks), starts)

    @torch.no_grad()
    def load(self, encoded: Bytes) -> None:
        """Take in what this rank holds of both moments. The optimizer gets it from `finish`.

        Args:
            encoded: a shared buffer as bytes, with all chunks at their places.
        """
        source, schema = torch.from_numpy(encoded), self._layout.schema
        for part in parts(schema, 0, schema.trainable, piece_of(self._layout.device)):
            pieces = self._layout.pieces(part.start, part.stop - part.start, shards=True, rest=True)
            mine = [piece for piece in pieces if piece.entry in self._held]
            if not mine:
                continue
            moments = decode(self._fetched(part, source, self._layout.tensors[mine[0].entry].device))
            for piece in mine:
                for key, values in zip(KEYS, moments, strict=True):
                    with Flat(local(self._arrived(piece.entry, key)), piece.first, piece.last) as flat:
                        flat.copy_(values[piece.start : piece.stop])

    def _fetched(self, part: Part, source: Tensor, device: torch.device) -> Encoded:
        """What stands at the places of `part`, filled up to whole blocks, on `device`."""
        blocks = -(-(part.stop - part.start) // BLOCK)
        found = [torch.zeros(size, dtype=torch.uint8, device=device) for size in (blocks * BLOCK, 4 * blocks) * 2]
        for target, place in zip(found, part.places, strict=True):
            self._layout.streams.send(source[place], target[: place.stop - place.start])
        roots, tops, ratios, scales = found
        return Encoded(roots, tops.view(torch.float32), ratios, scales.view(torch.float32))

    @torch.no_grad()
    def finish(self, steps: int, agree: Callable[[Tensor], object] = lambda flags: None) -> bool:
        """Give the optimizer what was loaded, as if it had made `steps` steps.

        A parameter whose second moment is 0 everywhere was never trained: it begins as new. All begin as new if `steps`
        is below `LEAST_STEPS`.

        Args:
            steps: optimizer steps behind the moments.
            agree: flags := their maximum over all ranks. A rank may hold nothing of a sharded parameter.

        Returns:
            True if any moment is used.
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
        """Forget what was loaded."""
        self._arriving.clear()

    @torch.no_grad()
    def prove(self, stepping: torch.optim.Optimizer) -> None:
        """Before a step: compare the moments that `finish` gave with the first gradients.

        A source may send any v. Far too large, it sets the learning rate to almost nothing; far too small, to a
        multiple. A parameter whose moments do not match begins as new. Each parameter is compared once, at its first
        gradient, which waits for the device. Its own optimizer's step does it, because gradients of other optimizers
        may not have been unscaled yet. All ranks come to one result for parameters that they hold whole; of a
        sharded one each judges its own part.
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
            # A gradient scaler leaves the unscaling to fused kernels.
            scale = getattr(optimizer, "grad_scale", None)
            factor = 1.0 if scale is None else 1.0 / float(scale)
            size = max(1, gradient.numel())
            usual = factor * _norm(gradient) / math.sqrt(size)
            if not usual or not math.isfinite(usual):
                continue  # the parameter was not used, or the step will be skipped
            self._unproved.discard(index)
            root = math.sqrt(max(0.0, _sum(second) / size))
            if not usual / MOST_APART <= root <= MOST_APART * usual:
                log.warning(
                    "ignored the moments received for %s: they do not match its first gradients", self._held[index].name
                )
                for tensor in state.values():
                    local(tensor).zero_()
                self._count()
        if not self._left[id(inner)]:
            self._unproved.difference_update(mine)

    @property
    def unproved(self) -> bool:
        """True if some loaded moments were not yet compared (`prove`)."""
        return bool(self._unproved)

    def watch(self) -> list[RemovableHandle]:
        """Call `recount` whenever a state is loaded into an optimizer, until the handles are removed."""
        optimizers = {id(each.optimizer): each.optimizer for each in self._held.values()}
        return [each.register_load_state_dict_post_hook(lambda _: self.recount()) for each in optimizers.values()]

    def _arrived(self, index: int, key: str) -> Tensor:
        """What was taken in of one moment of one parameter; 0 at first."""
        if (index, key) not in self._arriving:
            parameter = self._held[index].parameter.detach()
            self._arriving[index, key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return self._arriving[index, key]


def _of_family(optimizer: Any) -> torch.optim.Optimizer | None:
    """`optimizer`, or what it wraps, if that is of Adam's family."""
    while isinstance(optimizer, torch.optim.Optimizer):
        if type(optimizer) in FAMILY:
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def _norm(tensor: Tensor) -> float:
    """The Euclidean norm, in fp32 and piece by piece. Waits for the device."""
    norms = [torch.linalg.vector_norm(part.float()) for part in dense(tensor).split(STAGED)]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _sum(tensor: Tensor) -> float:
    """The sum of all elements, in fp32 and piece by piece. Waits for the device."""
    return float(torch.stack([part.sum(dtype=torch.float32) for part in dense(tensor).split(STAGED)]).sum())


def _step(parameter: Tensor, group: dict[str, Any], steps: int) -> Tensor:
    """The step count as torch keeps it: on the device for kernels that need it there, else on the CPU."""
    on_device = bool(group.get("capturable") or group.get("fused"))
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    dtype = torch.float64 if wide else torch.float32
    return torch.tensor(float(steps), dtype=dtype, device=parameter.device if on_device else "cpu")
