"""One optimizer's story: alone, together, saved and restored, and handed on to a joiner.

Peers are simulated hosts with real attachments (`simulations.simulator.attached`). Two hosts train at the learning rate
that is best alone. Half-way the second one's training process ends and is made anew, from a saved state. A third host
joins later. All see the same batches and the same random numbers as alone.
"""

from __future__ import annotations

import contextlib
import copy
import math
import operator
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gossipdp
from gossipdp.errors import DataError, GossipdpError
from gossipdp.training.attachment import Attachment
from simulations.optimizers.catalogue import Kind
from simulations.optimizers.problem import loss_of, model, score
from simulations.simulator.attached import AttachedHost, AttachedNetwork
from simulations.simulator.settings import peer_config

__all__ = [
    "APART",
    "EARLY",
    "EVERY",
    "GRID",
    "JOINS",
    "LEARNT",
    "MARGIN",
    "RESTARTS",
    "STEPS",
    "STEP_TIME",
    "WARMUP",
    "WORDS",
    "WORSE",
    "Row",
    "by_itself",
    "gone_on",
    "play",
    "process_group",
    "verdict",
]

STEPS: Final = 300
"""of each host"""
GRID: Final = (1e-3, 1e-2, 1e-1, 1.0)
"""learning rates that the first host tries alone"""
EVERY, WARMUP, EARLY = 10, STEPS // 8, STEPS // 2
"""steps of a round, of the warm start and of the early rounds"""
RESTARTS: Final = STEPS // 2
JOINS: Final = 2 * STEPS // 3
"""steps after which the second host's training process is made anew, and after which a third host joins"""
STEP_TIME: Final = 1.0
"""virtual seconds of a step. With 0.05 an exchange fills its round, and each correction comes a round late: two GPTs of
0.25 million parameters (AdamW at 0.001, rounds of 10, 400 steps) end at 2.305 then, one alone at 2.276. With 1 s they
end at 2.164."""
LEARNT: Final = 2.0
"""loss alone above which an optimizer has not learnt this problem: at the start it is 2.3"""
MARGIN: Final = (0.1, 0.05)
"""a loss is as good as another if it is above it by at most this share of it, and these nats"""
APART: Final = 0.5
"""hosts that end farther apart than this share of their distance alone learn little from each other"""
BEFORE, AFTER = 7, 5
"""steps before a state is saved, and steps that are compared"""
WORSE: Final = "worse together"
WORDS: Final = ("works", "works with a setting", "learns little from others", WORSE, "refused", "not judged")
"""what `verdict` says"""
THIRD: Final = "a third of the learning rate"
PLAIN: Final = "`[outer] lr = 1` and `momentum = 0`"
"""the settings that are tried, in this order, where the usual one is worse than alone"""


@dataclass(frozen=True)
class Row:
    """What was found. Losses in nats on held-out images; NaN where it did not come to that."""

    key: str
    lr: float | None = None
    alone: float = math.nan
    """mean of both hosts"""
    together: float = math.nan
    """of the first host"""
    restored: float = math.nan
    """of the second host, whose training process was made anew half-way"""
    joiner: float = math.nan
    """of the third host"""
    mean: float = math.nan
    """of the mean of the first two hosts' weights"""
    apart: float = math.nan
    """distance of the first two hosts' weights at the end, as a share of that alone"""
    exchanges: int = 0
    """of the first host"""
    saves: str = ""
    """how the state is saved, and how well the training goes on from it"""
    setting: str = ""
    """what a script must do beside the usual two lines"""
    told: tuple[str, ...] = ()
    """codes of what `attach` said"""
    refused: str = ""
    """code and cause of an error of gossipdp"""
    broken: str = ""
    """why the optimizer does not train alone here"""


def verdict(row: Row) -> str:
    """The word for a row."""
    if row.broken or row.alone > LEARNT:
        return "not judged"
    if row.refused:
        return "refused"
    if not all(_as_good(loss, row.alone) for loss in (row.together, row.restored, row.mean, row.joiner)):
        return WORSE
    if not row.apart <= APART:
        return "learns little from others"
    return "works with a setting" if row.setting else "works"


def _as_good(loss: float, other: float) -> bool:
    share, nats = MARGIN
    return loss <= other * (1.0 + share) + nats


def play(kind: Kind) -> Row:
    """Play the whole story of one optimizer."""
    with process_group(kind), tempfile.TemporaryDirectory(prefix="gossipdp-") as place:
        row = Row(kind.key)
        try:
            lr, first = _best_alone(kind)
            second = _alone(kind, lr, 1)
        except Exception as error:  # another's code, which need not run here
            return replace(row, broken=_short(error))
        row = replace(row, lr=lr, alone=0.5 * (score(first) + score(second)))
        try:
            row, far = _saved(row, kind, Path(place)), _distance(first, second)
            settings = ("", THIRD, PLAIN) if lr else ("", PLAIN)
            runs = (
                _together(_Together(kind, row, Path(place) / str(at), far, each)) for at, each in enumerate(settings)
            )
            usual = next(runs)
            return next((run for run in (usual, *runs) if verdict(run) != WORSE), usual)
        except GossipdpError as error:
            return replace(row, refused=f"{error.code} {error.cause}")


def _best_alone(kind: Kind) -> tuple[float | None, nn.Module]:
    """The lowest learning rate that is as good as the best for the first host alone, and its network then."""
    if not kind.takes_lr:
        return None, _alone(kind, None, 0)
    tried = [(lr, net, score(net)) for lr in GRID for net in [_alone(kind, lr, 0)]]
    best = min((loss for *_, loss in tried if math.isfinite(loss)), default=math.nan)
    return next(((lr, net) for lr, net, loss in tried if _as_good(loss, best)), tried[0][:2])


def _alone(kind: Kind, lr: float | None, host: int) -> nn.Module:
    net = model(0, kind.hidden)
    optimizer = _made(kind, net, lr)
    for step in range(STEPS):
        _step(kind, optimizer, net, host, step)
    _evaluates(optimizer)
    return net


def _made(kind: Kind, net: nn.Module, lr: float | None) -> Any:
    optimizer = kind.make(net, lr)
    if hasattr(optimizer, "train"):  # schedule-free ones have two modes
        optimizer.train()
    return optimizer


def _evaluates(optimizer: Any) -> None:
    if hasattr(optimizer, "eval"):
        optimizer.eval()


def _step(kind: Kind, optimizer: Any, net: nn.Module, host: int, step: int) -> None:
    torch.default_generator.manual_seed(1_000_003 * host + step)  # some draw
    kind.step(optimizer, loss_of(net, host, step))


def _vector(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach().double()


def _distance(one: nn.Module, other: nn.Module) -> float:
    return float((_vector(one) - _vector(other)).norm())


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"


@contextlib.contextmanager
def process_group(kind: Kind) -> Iterator[None]:
    """A process group of one rank, for optimizers that call collectives."""
    if not kind.collective:
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()


# -- saved and restored ---------------------------------------------------------------------------------------------

Load = Callable[[Attachment, Attachment, Any, Any, Path], None]
"""carries the state from one attachment and optimizer to another; the path is for a file"""


def by_names(peer: Attachment, loaded: Attachment, optimizer: Any, resumed: Any, path: Path) -> None:
    peer.save(path)
    loaded.load(path)


def by_itself(peer: Attachment, loaded: Attachment, optimizer: Any, resumed: Any, path: Path) -> None:
    """The optimizer's own `state_dict`, through a file."""
    torch.save(optimizer.state_dict(), path)
    # This process wrote the file, and some libraries keep tensors of their own classes in their state.
    resumed.load_state_dict(torch.load(path, weights_only=False))


def gone_on(kind: Kind, path: Path, load: Load = by_names) -> float:
    """Largest difference between a training and one that goes on from its state, relative to the weights."""
    with _gossip_off():
        net, again = model(0, kind.hidden), model(0, kind.hidden)
        optimizer = _made(kind, net, None)
        peer = _attach(kind, net, optimizer)[0]
        for step in range(BEFORE):
            _step(kind, optimizer, net, 0, step)
        again.load_state_dict(net.state_dict())
        resumed = _made(kind, again, None)
        loaded = _attach(kind, again, resumed)[0]
        load(peer, loaded, optimizer, resumed, path)
        for step in range(BEFORE, BEFORE + AFTER):
            _step(kind, optimizer, net, 0, step)
            _step(kind, resumed, again, 0, step)
        peer.detach()
        loaded.detach()
    one, other = _vector(net), _vector(again)
    return float((one - other).abs().max() / one.abs().max())


@contextlib.contextmanager
def _gossip_off() -> Iterator[None]:
    os.environ["GOSSIPDP_OFF"] = "1"
    try:
        yield
    finally:
        del os.environ["GOSSIPDP_OFF"]


def _saved(row: Row, kind: Kind, place: Path) -> Row:
    """With how the state is saved: by `peer.save`, or where that is refused, by the optimizer's own `state_dict`."""
    try:
        return replace(row, saves=_exactly(gone_on(kind, place / "state")))
    except DataError as error:
        code = error.code
    try:
        found = f"own, {_exactly(gone_on(kind, place / 'state', by_itself))}"
    except Exception as error:  # another's code
        found = f"own fails, {_short(error)}"
    return replace(row, saves=found, setting=f"save with the optimizer's own `state_dict` ({code})")


def _exactly(difference: float) -> str:
    return "exact" if difference <= 1e-6 else f"off by {difference:.0e}"


# -- together -------------------------------------------------------------------------------------------------------


def _attach(kind: Kind, net: nn.Module, optimizer: Any, **options: Any) -> tuple[Attachment, str]:
    """An attachment, and what it took beside the usual line."""
    if kind.by_hand:
        return gossipdp.attach(net, **options), "attach(model), and peer.step() after each update"
    try:
        return gossipdp.attach(net, optimizer, **options), ""
    except GossipdpError as error:
        inner = re.search(r"attach\(model, optimizer\.([\w.]+)\)", error.do)
        if inner is None:
            raise
        return gossipdp.attach(net, operator.attrgetter(inner[1])(optimizer), **options), inner[0]


@dataclass
class _Process:
    """A training process of one host."""

    kind: Kind
    lr: float | None
    number: int
    served: AttachedHost
    net: nn.Module = field(init=False)
    optimizer: Any = field(init=False)
    peer: Attachment = field(init=False)
    setting: str = field(init=False)

    def __post_init__(self) -> None:
        self.net = model(self.number, self.kind.hidden)
        self.optimizer = _made(self.kind, self.net, self.lr)
        with self.served.answering():
            self.peer, self.setting = _attach(self.kind, self.net, self.optimizer, home=self.served.home, timeout=120.0)

    def step(self, number: int) -> None:
        _step(self.kind, self.optimizer, self.net, self.number, number)
        if self.kind.by_hand:
            self.peer.step()

    def detach(self) -> None:
        with self.served.answering():
            self.peer.detach()

    def made_anew(self, row: Row, path: Path) -> _Process:
        """The process that takes this one's place, with its saved state."""
        named = not row.saves.startswith("own")
        if named:
            self.peer.save(path)
        self.detach()
        new = _Process(self.kind, self.lr, self.number, self.served)
        if named:
            new.peer.load(path)
        elif "fails" not in row.saves:
            by_itself(self.peer, new.peer, self.optimizer, new.optimizer, path)
        return new


def _together(run: _Together) -> Row:
    """The row of a run. Its losses stay NaN if gossipdp gave the training up, because it gave NaN again and again."""
    try:
        return run.play()
    except GossipdpError as error:
        if error.code != "GD-403":
            raise
        return replace(run.row, told=(error.code,))


@dataclass
class _Together:
    kind: Kind
    row: Row
    place: Path
    far: float
    """distance of the first two hosts' weights alone"""
    extra: str = ""
    """THIRD, PLAIN, or "" for the usual settings"""

    def play(self) -> Row:
        config = peer_config(every=EVERY, warmup_steps=WARMUP, early_steps=EARLY, moments=True)
        if self.extra == PLAIN:
            config = replace(config, lr=1.0, momentum=0.0)
        self.place.mkdir()
        with AttachedNetwork(self.place, config, seed=0) as network:
            processes = [self._process(network) for _ in range(2)]
            for step in range(STEPS):
                if step == RESTARTS:
                    processes[1] = processes[1].made_anew(self.row, self.place / "together")
                if step == JOINS:
                    processes.append(self._process(network))
                for each in processes:
                    each.step(step)
                network.pass_time(STEP_TIME)
            apart = _distance(processes[0].net, processes[1].net)
            told = {shown.notice.code for each in network.hosts for shown in each.status.notices}
            for each in processes:
                each.detach()
                _evaluates(each.optimizer)
            first, second, third = (each.net for each in processes)
            return replace(
                self.row,
                together=score(first),
                restored=score(second),
                joiner=score(third),
                mean=score(_mean(first, second)),
                apart=apart / self.far if self.far else math.nan,
                exchanges=network.hosts[0].exchanges,
                setting="; ".join(filter(None, [processes[0].setting, self.row.setting, self.extra])),
                told=tuple(sorted(told)),
            )

    def _process(self, network: AttachedNetwork) -> _Process:
        lr = self.row.lr
        rate = lr / 3 if lr and self.extra == THIRD else lr
        return _Process(self.kind, rate, len(network.hosts), network.add())


def _mean(one: nn.Module, other: nn.Module) -> nn.Module:
    net = copy.deepcopy(one)
    nn.utils.vector_to_parameters((0.5 * (_vector(one) + _vector(other))).float(), net.parameters())
    return net
