"""Decoupled DiLoCo on hosts with events, which may be its learners' or its syncer's.

From the readings of the paper (`simulations/lab/baselines/decoupled.py`):

* A learner that dies is left out of the merges. The others go on.
* A learner that starts again copies the model and Adam's moments from a healthy learner.
* A learner that paused gets what it missed when it goes on.
* Checkpoints of all workers are consistent. The paper's runs had failing learners, and no failing syncer.

Chosen here, because the readings say nothing of it:

* The syncer knows at once who is there.
* A paused learner trains on with its old fragments until the whole model has arrived in fp32.
* The syncer's checkpoints are at most 30 s apart and cost nothing. If its host dies, all merges under way are lost, and
  its learners train on alone. As soon as another host is ready, it takes the last checkpoint without a transfer.
* A syncer that starts again takes each fragment's weighted mean of the learners as it is, without an outer step, and in
  fp32 both ways. So the learners' steps of that time are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from simulations.lab.baselines.costs import model_bytes
from simulations.lab.baselines.decoupled import SYNCER, Arrival, DecoupledDiLoCo
from simulations.lab.core import Lab
from simulations.lab.failures.hosts import Event, FailureSetting, Hosts
from simulations.lab.failures.lab import TINY, HostLab, hosted

__all__ = ["CHECKPOINT", "FailingDecoupled"]

CHECKPOINT: Final = 30.0
"""seconds between two checkpoints of the syncer"""
TURNS: Final = 2
"""messages of a copy: request and answer"""


@dataclass
class FailingDecoupled(DecoupledDiLoCo):
    """Decoupled DiLoCo under the events of the setting, which are its learners', and under those of its syncer.

    While the syncer is not there, the model is the mean of the learners.
    """

    at_syncer: tuple[Event, ...] = ()
    """events of the syncer; the host that they name does not count"""
    name: str = "diloco-decoupled, failing"

    def begin(self, lab: Lab) -> None:
        setting, number = hosted(lab).setting, lab.peers
        assert isinstance(setting, FailureSetting)
        events = [*setting.events, *(replace(event, host=number) for event in self.at_syncer)]
        self._hosts = Hosts(number + 1, setting.link, events)
        self._ready: dict[int, float] = {}
        """when the last copy of a learner ends; infinite while it is dead"""
        self._seen = lab.seconds
        """the moment up to which deaths and returns of learners are known"""
        self._present = set(range(number))
        """learners that worked at that moment"""
        self._alive_from = -math.inf
        """the end of the syncer's last death"""
        self._kept: tuple[float, Tensor, Tensor] | None = None
        """the syncer's last checkpoint: when, Theta and v"""
        super().begin(lab)

    def holders(self, lab: Lab) -> Sequence[int]:
        return self.connected(lab, lab.seconds)

    def model(self, lab: Lab) -> Tensor:
        there = self._hosts.is_there(lab.peers, lab.seconds)
        return self.theta if there else lab.x[self.holders(lab)].mean(0)

    # -- hosts ----------------------------------------------------------------------------------------------------

    def move(self, lab: Lab, host: int, begin: float, size: float) -> float:
        if host == SYNCER:
            return self._hosts.transfer((lab.peers,), begin, size / self.syncers, 0)
        return self._hosts.transfer((host,), begin, size, 0)

    def awake(self, lab: Lab, at: float) -> float:
        return self._hosts.back(lab.peers, at)

    def connected(self, lab: Lab, at: float) -> list[int]:
        return [
            learner
            for learner in range(lab.peers)
            if self._hosts.is_there(learner, at) and self._ready.get(learner, 0.0) <= at + TINY
        ]

    # -- learners -------------------------------------------------------------------------------------------------

    def steps(self, lab: Lab, every: int) -> Iterator[tuple[float, list[int]]]:
        lab, step = hosted(lab), lab.setting.step_seconds
        fitting = math.floor((lab.limit - lab.seconds) / step + 1e-9)
        for _ in range(min(every, fitting)):
            now = lab.seconds
            self._look(lab, now)
            whole = [host for host in range(lab.peers) if self._hosts.compute(host, now, step) <= now + step + TINY]
            yield now + step, [host for host in self.connected(lab, now) if host in whole]
            lab.set_clock(now + step)
        if not fitting:
            lab.set_clock(lab.limit)
        self._look(lab, lab.seconds)

    def train(self, lab: Lab, learners: Sequence[int]) -> None:
        hosted(lab).step(learners)

    def _look(self, lab: HostLab, now: float) -> None:
        """Note which learners died, arrived or came back."""
        for learner in range(lab.peers):
            if self._seen < self._hosts.death(learner, self._seen) <= now:
                lab.lose([learner], float(self._since[learner].mean()) * lab.setting.step_seconds)
                self._ready[learner] = math.inf
                self._arrivals[learner].clear()
            if math.isinf(self._ready.get(learner, 0.0)) and self._hosts.is_there(learner, now):
                self._copy(lab, learner, now)
        self._seen, before, self._present = now, self._present, set(self.connected(lab, now))
        for learner in sorted(self._present - before):
            self._catch_up(lab, learner, now)

    def _copy(self, lab: HostLab, learner: int, now: float) -> None:
        """A learner that starts again copies the model and Adam's moments from another, as they are now."""
        others = self.connected(lab, now)
        if not others:
            return
        source, size = others[0], 3.0 * model_bytes(lab)
        lab.restore(lab.state(source), [learner])
        lab.received[learner] += size
        self._received[learner], self._since[learner] = self._received[source], self._since[source]
        self._ready[learner] = self._hosts.transfer((source, learner), now, size, TURNS)

    def _catch_up(self, lab: HostLab, learner: int, now: float) -> None:
        """A learner that is back asks for the whole model, in fp32. An absent syncer sends nothing."""
        if not self._hosts.is_there(lab.peers, now):
            return
        size, begin = model_bytes(lab), max(now, self._outward)
        self._outward = self.move(lab, SYNCER, begin, size)
        at = max(self._outward, self.move(lab, learner, begin, size)) + lab.setting.link.latency
        lab.received[learner] += size
        for number, span in enumerate(self._spans):
            self._arrivals[learner].append(Arrival(at, number, self.theta[span].clone()))

    # -- the syncer -----------------------------------------------------------------------------------------------

    def _advance(self, lab: Lab, until: float) -> None:
        died = self._hosts.death(lab.peers, self._alive_from)
        if died < until:
            super()._advance(lab, died)
            self._crash(lab, died)
        super()._advance(lab, until)
        if self._kept is None or until - self._kept[0] >= CHECKPOINT:
            self._kept = until, self.theta.clone(), self.v.clone()

    def _crash(self, lab: Lab, at: float) -> None:
        """The syncer dies. What replaces it has the last checkpoint."""
        self._merges.clear()
        for learner, coming in enumerate(self._arrivals):
            self._arrivals[learner] = [arrival for arrival in coming if arrival.at <= at]
        if self._kept is not None:
            _, self.theta, self.v = self._kept[0], self._kept[1].clone(), self._kept[2].clone()
        self._alive_from = self._slot = self._freed = self._inward = self._outward = self.awake(lab, at)
        self._whole = set(range(len(self._spans)))
