"""Which optimizers there are, how each is made, and how a loop steps it. No peer is known here.

The lists come from the installed libraries. `MAKERS` and `STEPS` have those that need more than parameters, or another
loop than `zero_grad`, `backward`, `step`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from simulations.optimizers.problem import HIDDEN

__all__ = ["LIBRARIES", "Kind", "closure_of", "every", "installed"]

T = TypeVar("T")
Optimizer: TypeAlias = torch.optim.Optimizer
Loss: TypeAlias = Callable[[], Tensor]
"""the loss of one batch, with a graph"""

LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    "torch": ("torch.optim", "torch"),
    "pytorch_optimizer": ("pytorch_optimizer", "pytorch-optimizer"),
    "schedulefree": ("schedulefree", "schedulefree"),
    "prodigyopt": ("prodigyopt", "prodigyopt"),
    "torchao": ("torchao.optim", "torchao"),
}
"""module of the optimizers, and distribution, by library"""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "BSAM": {"num_data": 1437},
    "LBFGS": {"max_iter": 4, "history_size": 5, "line_search_fn": "strong_wolfe"},
    "Ranger21": {"num_iterations": 300},
}
COLLECTIVE: Final = {"DeMo", "DistributedMuon"}
NOT_ONE: Final = {"Optimizer", "_AdamW", "AdamWScheduleFreePaper", "BaseOptimizer"}
"""base classes, and a reference that its library keeps for its own tests"""


@dataclass(frozen=True)
class Kind:
    """One optimizer of one library."""

    library: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.library}.{self.name}"

    @property
    def cls(self) -> Any:
        module = importlib.import_module(LIBRARIES[self.library][0])
        return getattr(module, self.name)

    @property
    def takes_lr(self) -> bool:
        """Whether a learning rate can be given."""
        made_of = MAKERS.get(self.key, _plain)
        return made_of not in (_plain, _in_groups, _of_model) or "lr" in inspect.signature(self.cls).parameters

    def make(self, net: nn.Module, lr: float | None = None) -> Any:
        """The optimizer over `net`'s parameters; its own learning rate without `lr`."""
        rate = {} if lr is None else {"lr": lr}
        return MAKERS.get(self.key, _plain)(self.cls, net, {**OPTIONS.get(self.name, {}), **rate})

    @property
    def by_hand(self) -> bool:
        """Whether it has no `step` that hooks could see, so that the loop says when a step is over."""
        return STEPS.get(self.key) is _fused

    @property
    def hidden(self) -> int:
        """Width of the network's hidden layer. torchao keeps the state of tensors below 4,096 elements in fp32."""
        return 64 if self.library == "torchao" else HIDDEN

    @property
    def collective(self) -> bool:
        """Whether its steps call collectives of torch.distributed."""
        return self.name in COLLECTIVE

    def step(self, optimizer: Any, loss: Loss) -> None:
        """One step of a training loop."""
        STEPS.get(self.key, _usual)(optimizer, loss)


def installed(library: str) -> str:
    """The library's version, or "" if it is not installed."""
    try:
        return importlib.metadata.version(LIBRARIES[library][1])
    except importlib.metadata.PackageNotFoundError:
        return ""


def every() -> Iterator[Kind]:
    """All optimizers of the libraries that are installed. A library that passes on another's class is left out."""
    known = set()
    for library, (name, _) in LIBRARIES.items():
        if not installed(library):
            continue
        module = importlib.import_module(name)
        for each, cls in sorted(vars(module).items()):
            one = inspect.isclass(cls) and (issubclass(cls, Optimizer) or each.startswith("ScheduleFreeWrapper"))
            if one and each == cls.__name__ and each not in NOT_ONE and cls not in known:
                known.add(cls)
                yield Kind(library, each)


# -- how they are made ----------------------------------------------------------------------------------------------

Options: TypeAlias = dict[str, Any]


def _plain(cls: Any, net: nn.Module, options: Options) -> Any:
    return cls(net.parameters(), **options)


def _of_model(cls: Any, net: nn.Module, options: Options) -> Any:
    return cls(net, **options)


def _in_groups(cls: Any, net: nn.Module, options: Options) -> Any:
    """Muon for all matrices but the last, AdamW for that."""
    *first, last = net.parameters()
    return cls([{"params": first, "use_muon": True}, {"params": [last], "use_muon": False}], **options)


def _around(cls: Any, net: nn.Module, options: Options) -> Any:
    """A wrapper of AdamW."""
    return cls(torch.optim.AdamW(net.parameters(), **options))


def _around_sgd(cls: Any, net: nn.Module, options: Options) -> Any:
    return cls(torch.optim.SGD(net.parameters(), **options))


def _of_class(cls: Any, net: nn.Module, options: Options) -> Any:
    """One that makes its base, SGD with momentum, itself."""
    return cls(net.parameters(), torch.optim.SGD, momentum=0.9, **options)


def _wsam(cls: Any, net: nn.Module, options: Options) -> Any:
    return cls(net, net.parameters(), torch.optim.SGD, momentum=0.9, **options)


def _gsam(cls: Any, net: nn.Module, options: Options) -> Any:
    base = torch.optim.SGD(net.parameters(), momentum=0.9, **options)
    scheduler = torch.optim.lr_scheduler.ConstantLR(base, factor=1.0)
    rate = base.param_groups[0]["lr"]
    schedule = importlib.import_module(cls.__module__.partition(".")[0]).ProportionScheduler
    return cls(net.parameters(), base, net, schedule(scheduler, max_lr=rate, max_value=0.05, min_value=0.05))


def _named(functions: Mapping[T, str]) -> dict[str, T]:
    return {f"pytorch_optimizer.{name}": function for function, names in functions.items() for name in names.split()}


MAKERS: Final[Mapping[str, Callable[[Any, nn.Module, Options], Any]]] = {
    **_named(
        {
            _of_model: "AdaLOMO AdamMini LOMO",
            _in_groups: "AdaGO AdaMuon DistributedMuon Muon MuonClip NorMuon",
            _around: "Lookahead Magma OrthoGrad PCGrad SafeFP16Optimizer TRAC",
            _around_sgd: "ScheduleFreeWrapper",
            _of_class: "FriendlySAM LookSAM SAM",
            _wsam: "WSAM",
            _gsam: "GSAM",
        }
    ),
    "schedulefree.ScheduleFreeWrapper": _around_sgd,
    "schedulefree.ScheduleFreeWrapperReference": _around_sgd,
    "torchao.CPUOffloadOptimizer": lambda cls, net, options: cls(net.parameters(), torch.optim.AdamW, **options),
}

# -- how a loop steps them ------------------------------------------------------------------------------------------


def closure_of(optimizer: Any, loss: Loss, **backward: bool) -> Callable[[], Tensor]:
    """A closure that gives new gradients."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = loss()
            value.backward(**backward)
        return value

    return closure


def _usual(optimizer: Any, loss: Loss) -> None:
    closure_of(optimizer, loss)()
    optimizer.step()


def _by_closure(optimizer: Any, loss: Loss) -> None:
    optimizer.step(closure_of(optimizer, loss))


def _gradients_and_closure(optimizer: Any, loss: Loss) -> None:
    closure_of(optimizer, loss)()
    optimizer.step(closure_of(optimizer, loss))


def _second_order(optimizer: Any, loss: Loss) -> None:
    closure_of(optimizer, loss, create_graph=True)()
    optimizer.step()


def _sparse(optimizer: Any, loss: Loss) -> None:
    closure_of(optimizer, loss)()
    for group in optimizer.param_groups:
        for each in group["params"]:
            each.grad = each.grad.to_sparse()
    optimizer.step()


def _outputs_and_loss(optimizer: Any, loss: Loss) -> None:
    closure = closure_of(optimizer, loss)
    optimizer.step(lambda: (None, closure()))


def _of_objectives(optimizer: Any, loss: Loss) -> None:
    optimizer.zero_grad()
    value = loss()
    optimizer.pc_backward([0.5 * value, 0.5 * value])
    optimizer.step()


def _scaled(optimizer: Any, loss: Loss) -> None:
    optimizer.zero_grad()
    optimizer.backward(loss())
    optimizer.step()


def _fused(optimizer: Any, loss: Loss) -> None:
    optimizer.fused_backward(loss(), optimizer.lr)


STEPS: Final[Mapping[str, Callable[[Any, Loss], None]]] = {
    "torch.LBFGS": _by_closure,
    "torch.SparseAdam": _sparse,
    **_named(
        {
            _by_closure: "AliG BSAM WSAM",
            _gradients_and_closure: "FriendlySAM LookSAM SAM",
            _second_order: "AdaHessian SophiaH",
            _outputs_and_loss: "GSAM",
            _of_objectives: "PCGrad",
            _scaled: "SafeFP16Optimizer",
            _fused: "AdaLOMO LOMO",
        }
    ),
    **{f"schedulefree.{name}": _by_closure for name in ("AdamWScheduleFreeClosure", "RAdamScheduleFreeClosure")},
    "schedulefree.SGDScheduleFreeClosure": _by_closure,
}
