"""Copies of the attached model that a script made before `attach`, such as an EMA or a target network.

`attach` loads the network's model, and such a copy keeps the values from before. Nothing here changes a number in a
tensor.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from gossipdp.training.messages import log
from gossipdp.training.tensors.carried import plain, sample
from gossipdp.training.tensors.frozen import first_rank
from gossipdp.training.tensors.parts import parts_of

__all__ = ["equal_copies", "warn_copies"]


def equal_copies(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Modules outside of `model` that equal it, or one of its parts, each with that part. Looks at a few elements."""
    attached = parts_of(model)
    inside = {id(each) for part in attached for each in part.modules()}
    # The class of a proxy may be made up, so isinstance is not asked.
    others = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and id(each) not in inside]
    return [(other, part) for part in attached for other in others if type(other) is type(part) and _equal(other, part)]


def warn_copies(copies: Sequence[tuple[nn.Module, nn.Module]]) -> None:
    """After the network's model was loaded: warn about `equal_copies` that are no copies any more."""
    left = [type(other).__name__ for other, part in copies if not _equal(other, part)]
    if left and first_rank():
        log.warning(
            "a copy of the model (%s), such as an EMA or a target network, was made before attach and does not have "
            "the network's values: %d in all; do: make copies after attach; leave a reference model, as of DPO or "
            "GRPO, as it is",
            left[0],
            len(left),
        )


@torch.no_grad()
def _equal(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = dict(_parameters(one)), dict(_parameters(other))
    alike = bool(mine) and mine.keys() == theirs.keys()
    return alike and all(
        each.shape == theirs[name].shape
        and each.dtype == theirs[name].dtype
        and torch.equal(sample(each).cpu(), sample(theirs[name]).cpu())
        for name, each in mine.items()
    )


def _parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, each) for name, each in module.named_parameters() if plain(each))
