"""What is played on the GPU: two sizes of the model, and six ways to train it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from peers.plan.timeline import FREE, Link
from simulations.lab.baselines import LocalOnly
from simulations.lab.baselines.synchronous import DiLoCo
from simulations.lab.core import Method, Setting
from simulations.lab.failures.hosts import FailureSetting
from simulations.lab.failures.quorum import QuorumDiLoCo
from simulations.lab.gpu.lab import DeviceDdp, DeviceHostLab, DeviceLab, DevicePairwise
from simulations.lab.gpu.model import TokenGpt
from simulations.lab.gpu.text import Tokens
from simulations.lab.methods.pairwise import PairwiseOptions

__all__ = ["ARMS", "PASSES", "PEERS", "SIZES", "Arm", "Size", "problem_of", "rounds_of"]

PEERS: Final = 8
PASSES: Final = 2
"""most passes over the text"""
LATE: Final = Link(latency=1.0 / 6.0)
"""an exchange of six messages lands a second after its begin: one step"""


@dataclass(frozen=True, kw_only=True)
class Size:
    title: str
    text: int
    """most bytes of text"""
    model: dict[str, Any]
    """options of `TokenGpt`"""
    lr: float
    warmup: int
    """steps of the warm start, a multiple of `every`"""
    every: int
    """H"""
    rounds: int
    """most rounds after the warm start"""
    points: int
    """measurements of a run, besides the first"""
    begin: float
    """seconds that a warm start may take, which cannot be saved half-way"""


SIZES: Final = {
    "large": Size(
        title="30 million parameters, on a GPU",
        text=100_000_000,
        model={
            "vocabulary": 8192, "context": 512, "width": 512, "heads": 8, "blocks": 8, "batch": 8, "held_out": 512,
            "half": True,
        },
        lr=1e-3,
        warmup=200,
        every=50,
        rounds=30,
        points=8,
        begin=240.0,
    ),
    "small": Size(
        title="0.8 million parameters, on a CPU",
        text=6_000_000,
        model={"vocabulary": 2048, "context": 128, "width": 120, "heads": 4, "blocks": 3, "batch": 4, "held_out": 128},
        lr=2e-3,
        warmup=80,
        every=20,
        rounds=20,
        points=8,
        begin=60.0,
    ),
}  # fmt: skip


def problem_of(size: Size, text: Tokens, device: str, shares: int = PEERS) -> TokenGpt:
    """The problem of a size."""
    return TokenGpt(text=text, device=device, shares=shares, **size.model)


def rounds_of(size: Size, problem: TokenGpt) -> int:
    """Rounds after the warm start, as many as `PASSES` over the text allow."""
    steps = PASSES * (problem.windows // PEERS) // problem.batch
    return max(1, min(size.rounds, (steps - size.warmup) // size.every))


def _base(size: Size, rounds: int) -> Setting:
    return Setting(
        peers=PEERS,
        every=size.every,
        rounds=rounds,
        lr=size.lr,
        weight_decay=0.1,
        evaluate_every=max(1, round(rounds / size.points)),
    )


def _whole(size: Size, rounds: int, **changes: Any) -> Setting:
    """The setting of a method without a warm start: it makes as many steps."""
    return replace(_base(size, rounds + size.warmup // size.every), **changes)


def _pairwise(size: Size, rounds: int) -> tuple[Setting, Method]:
    method = DevicePairwise(PairwiseOptions(warmup_steps=size.warmup))
    return replace(_base(size, rounds), link=LATE), method


def _diloco(size: Size, rounds: int) -> tuple[Setting, Method]:
    return _base(size, rounds), DiLoCo(alpha=1.0, mu=0.8, plain_first=True, warmup_steps=size.warmup)


def _quorum(size: Size, rounds: int) -> tuple[Setting, Method]:
    seconds = float(size.warmup + rounds * size.every)
    setting = FailureSetting(**vars(_base(size, rounds)), seconds=seconds)
    return setting, QuorumDiLoCo(alpha=1.0, mu=0.8, plain_first=True, warmup_steps=size.warmup)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train."""

    title: str
    make: Callable[[Size, int], tuple[Setting, Method]]
    """setting and method of a size and its rounds"""
    shares: int = PEERS
    """parts of the text"""
    lab: type[DeviceLab] = DeviceLab
    warm: bool = False
    """whether it has a warm start"""


ARMS: Final = {
    "alone": Arm(
        title="one host alone, its own eighth",
        make=lambda size, rounds: (_whole(size, rounds, peers=1, link=FREE), LocalOnly()),
    ),
    "ddp": Arm(title="DDP, gradients in bf16", make=lambda size, rounds: (_whole(size, rounds), DeviceDdp(half=True))),
    "pairwise": Arm(title="pairwise, the daemon's defaults", make=_pairwise, warm=True),
    "diloco": Arm(title="DiLoCo, fp32", make=_diloco, warm=True),
    "quorum": Arm(title="DiLoCo, 4 bits, with a quorum", make=_quorum, lab=DeviceHostLab, warm=True),
    "all": Arm(
        title="one host alone, all tokens",
        make=lambda size, rounds: (_whole(size, rounds, peers=1, every=PEERS * size.every), LocalOnly()),
        shares=1,
    ),
}
