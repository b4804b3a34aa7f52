"""Replicas on hosts with events, played for a given time. The learning rate follows the simulated clock.

A rate that followed the steps would not have fallen where a method lost steps. So every method ends with the same rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Curve, Lab, Method, Point, Problem
from simulations.lab.failures.hosts import FailureSetting, Hosts
from simulations.lab.inner import AdamW

__all__ = ["HostLab", "HostMethod", "Played", "hosted", "play"]

TINY: Final = 1e-6
"""seconds that rounding may add to a clock"""
POINTS: Final = 20
"""measurements of a run"""
FEW: Final = 4
"""single replicas that are measured"""


class HostMethod(Method, Protocol):
    def holders(self, lab: Lab) -> Sequence[int]:
        """Hosts that hold a replica now."""


@dataclass
class HostLab(Lab):
    """A laboratory whose hosts have events.

    Raises:
        TypeError: the setting has no events.
    """

    hosts: Hosts = field(init=False)
    busy: NDArray[np.float64] = field(init=False)
    """seconds that each host computed, shape (N,)"""
    lost: NDArray[np.float64] = field(init=False)
    """seconds of these whose steps were lost, shape (N,)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.setting, FailureSetting):
            raise TypeError(f"{type(self.setting).__name__} has no events")
        self.limit = self.setting.seconds
        self.hosts = Hosts(self.setting.peers, self.setting.link, self.setting.events)
        self.busy, self.lost = np.zeros(self.peers), np.zeros(self.peers)
        self._began = math.inf

    # -- time and steps -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._began = self.seconds

    def advance(self, steps: float = 1.0) -> None:
        """Do nothing: the learning rate follows the clock."""

    def set_clock(self, seconds: float) -> None:
        """Set the clock, at most to the end of the run."""
        super().set_clock(min(seconds, self.limit))
        if self.seconds > self._began:
            self.progress = (self.seconds - self._began) / (self.limit - self._began)

    def elapse(self, seconds: float) -> None:
        self.set_clock(self.seconds + seconds)

    def update(self, gradients: Tensor, peers: Counts | None = None) -> None:
        super().update(gradients, peers)
        self.busy[slice(None) if peers is None else peers] += self.setting.step_seconds

    def step(self, hosts: Sequence[int]) -> None:
        """One step of each of these hosts by itself."""
        chosen = None if len(hosts) == self.peers else np.array(hosts, np.int64)
        if chosen is None or len(chosen):
            self.update(self.gradients(chosen), chosen)

    # -- what is lost, and what is copied -------------------------------------------------------------------------

    def lose(self, hosts: Sequence[int], seconds: float) -> None:
        """Count `seconds` of computing as lost. Their steps are counted already."""
        self.lost[list(hosts)] += seconds

    def waste(self, host: int, seconds: float) -> None:
        """Count `seconds` of computing whose steps are lost, and that are not played for that reason."""
        self.busy[host] += seconds
        self.lost[host] += seconds

    def state(self, host: int) -> list[Tensor]:
        """A copy of the host's replica and of its inner optimizer."""
        return [tensor[host].clone() for tensor in self._tensors()]

    def restore(self, state: Sequence[Tensor], hosts: Sequence[int]) -> None:
        """Set these hosts to a state."""
        for tensor, row in zip(self._tensors(), state, strict=True):
            tensor[list(hosts)] = row

    def _tensors(self) -> list[Tensor]:
        inner = self.inner
        return [self.x, *([inner.m, inner.v, inner.counts] if isinstance(inner, AdamW) else [])]

    def idle_shares(self) -> NDArray[np.float64]:
        """Share of its time there in which each host computed nothing, shape (N,)."""
        return np.asarray(np.maximum(0.0, 1.0 - self.busy / self._there()))

    def lost_shares(self) -> NDArray[np.float64]:
        """Share of its time there in which each host made steps that were lost, shape (N,)."""
        return np.asarray(self.lost / self._there())

    def _there(self) -> NDArray[np.float64]:
        seconds = [self.hosts.present_seconds(host, 0.0, self.seconds) for host in range(self.peers)]
        return np.asarray(np.maximum(np.array(seconds), TINY))


def hosted(lab: Lab) -> HostLab:
    """The same lab, as the one with hosts that it has to be.

    Raises:
        TypeError: it has no hosts.
    """
    if not isinstance(lab, HostLab):
        raise TypeError("this method needs hosts with events")
    return lab


class Played(NamedTuple):
    curve: Curve
    lab: HostLab


def play(problem: Problem, method: HostMethod, setting: FailureSetting) -> Played:
    """Play one run of `setting.seconds`."""
    lab = HostLab(problem, setting)
    method.begin(lab)
    lab.start()
    points = [_measure(lab, method, 0)]
    apart = (setting.seconds - lab.seconds) / POINTS
    due, number = lab.seconds + apart, 0
    while lab.seconds < setting.seconds - TINY:
        method.round(lab)
        number += 1
        if lab.seconds >= min(due, setting.seconds) - TINY:
            points.append(_measure(lab, method, number))
            due = lab.seconds + apart
    return Played(Curve(method.name, problem.name, setting, problem.parameters, tuple(points)), lab)


def _measure(lab: HostLab, method: HostMethod, number: int) -> Point:
    """The state of the replicas that hosts hold now."""
    holders = np.array(method.holders(lab), np.int64)
    model = lab.problem.evaluate(method.model(lab))
    few = holders[np.unique(np.linspace(0, len(holders) - 1, FEW).astype(np.int64))]
    alone = [lab.problem.evaluate(lab.x[int(host)]).loss for host in few]
    rows = lab.x[torch.from_numpy(holders)]
    return Point(
        number,
        lab.seconds,
        float(lab.received.mean()) / lab.problem.parameters,
        float(lab.steps.mean()),
        model.loss,
        model.accuracy,
        float(np.mean(alone)),
        float((rows - rows.mean(0)).square().sum(1).mean().sqrt()),
    )
