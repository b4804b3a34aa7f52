"""Methods that wait for every host, under torchrun: a failure stops all, and they start again from what is stored.

torchrun's rules (docs.pytorch.org/docs/stable/elastic/run.html, "Membership Changes"; defaults in
torch/distributed/elastic/rendezvous/dynamic_rendezvous.py of torch 2.13):

* A host is dropped after 15 s without a sign of life (`keep_alive_interval` 5 s, `keep_alive_max_attempt` 3).
* If a host fails, the workers on all hosts are stopped and started again. The same happens when a host arrives.
* A rendezvous with fewer hosts than the most waits 30 s for more (`last_call`). A full one is over at once.

Two seconds here favour these methods. The workers' collectives notice a host without power only after their own
time-out, by default 600 s with NCCL and 1,800 s with Gloo; here 15 s are enough for all. Workers are ready 30 s after
the rendezvous, an assumption: they import torch, open the GPU, load the checkpoint and build their groups.

A pause is shorter than these time-outs of collectives, so all wait until it is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from peers.plan.clock import BACKWARD
from simulations.lab.baselines.costs import model_bytes
from simulations.lab.baselines.synchronous import Ddp
from simulations.lab.core import Lab
from simulations.lab.failures.collective import HostedDiLoCo, all_reduce_bytes, indices
from simulations.lab.failures.hosts import Hosts
from simulations.lab.failures.lab import TINY, HostLab, hosted

__all__ = ["DETECTION", "LAST_CALL", "START", "ElasticDdp", "WaitingDiLoCo", "change", "restart"]

DETECTION: Final = 15.0
"""seconds until a dead host is dropped"""
LAST_CALL: Final = 30.0
"""seconds that a rendezvous waits for hosts that are missing"""
START: Final = 30.0
"""seconds from the rendezvous until the workers are ready"""


def change(hosts: Hosts, members: Sequence[int], at: float) -> tuple[float, bool]:
    """The next failure of a member or arrival of another host: when, infinite if there is none, and is it a failure?"""
    failure = min((hosts.death(host, at) for host in members), default=math.inf)
    others = [host for host in range(hosts.count) if host not in members]
    arrival = min((hosts.back(host, at) for host in others), default=math.inf)
    return min(failure, arrival), failure <= arrival and failure < math.inf


def restart(
    hosts: Hosts, members: Sequence[int], since: float, at: float, size: float
) -> tuple[float, list[int], list[int]]:
    """Stop all at `at`, find out who is there, and start again.

    Args:
        members: hosts that trained at `since`, and hold what is stored.
        size: bytes of it, which every other host copies from a member before all begin.

    Returns:
        When training begins, who trains, and who of these held what is stored. A failure or an arrival before that
        begins it anew. If no host holds it, training does not begin.
    """
    while True:
        here = hosts.there(at)
        ready = at + START + (0.0 if len(here) == hosts.count else LAST_CALL)
        kept = [host for host in here if host in members and hosts.death(host, since) > at]
        if not kept:
            return math.inf, here, kept
        copies = [hosts.transfer((kept[0], host), ready, size, 2) for host in here if host not in kept]
        ready = max((ready, *copies))
        moment, failed = change(hosts, here, at)
        if moment >= ready:
            return ready, here, kept
        members, since, at = kept, at, moment + (DETECTION if failed else 0.0)


@dataclass
class ElasticDdp(Ddp):
    """Data-parallel training under torchrun, from checkpoints.

    The equations and the costs of a step are those of `Ddp`, over the hosts that train. A failure or an arrival undoes
    all steps since the last checkpoint. A checkpoint costs nothing. A host that arrives copies parameters and Adam's
    moments, 12 bytes a parameter, while all wait.
    """

    half: bool = True
    checkpoint_every: float = 30.0
    """seconds of training"""
    name: str = "ddp-elastic"

    def begin(self, lab: Lab) -> None:
        self._members = hosted(lab).hosts.there(0.0)
        self._save(hosted(lab))

    def holders(self, lab: Lab) -> Sequence[int]:
        return self._members

    def model(self, lab: Lab) -> Tensor:
        return lab.x[self._members].mean(0)

    def round(self, lab: Lab) -> None:
        """One step, or one restart."""
        lab = hosted(lab)
        now, hosts, members = lab.seconds, lab.hosts, self._members
        size = all_reduce_bytes(len(members), model_bytes(lab) * (0.5 if self.half else 1.0))
        step = lab.setting.step_seconds
        computed = max(hosts.compute(host, now, step) for host in members)
        hidden = max(hosts.compute(host, now, (1.0 - BACKWARD) * step) for host in members)
        moved = hosts.transfer(members, hidden, size, 2 * (len(members) - 1).bit_length()) if len(members) > 1 else now
        end = max(computed, moved)
        moment, failed = change(hosts, members, now)
        if moment < min(end, lab.limit):
            self._restart(lab, moment + (DETECTION if failed else 0.0))
        elif end > lab.limit + TINY:
            lab.set_clock(lab.limit)
        else:
            chosen = None if len(members) == lab.peers else members
            gradients = lab.gradients() if chosen is None else lab.gradients(indices(chosen))
            mean = self._mean(gradients).expand_as(gradients)
            lab.update(mean, None if chosen is None else indices(chosen))
            lab.received[members] += size
            self._unsaved += 1
            lab.set_clock(end)
            if end - self._saved_at >= self.checkpoint_every:
                self._save(lab)

    def _restart(self, lab: HostLab, at: float) -> None:
        lab.lose(self._members, self._unsaved * lab.setting.step_seconds)
        size = 3.0 * model_bytes(lab)
        begins, here, kept = restart(lab.hosts, self._members, lab.seconds, at, size)
        if kept:
            lab.received[[host for host in here if host not in kept]] += size
            self._members = here
            lab.restore(self._state, here)
        lab.set_clock(begins)
        self._save(lab)

    def _save(self, lab: HostLab) -> None:
        self._state = lab.state(self._members[0])
        self._saved_at, self._unsaved = lab.seconds, 0


@dataclass
class WaitingDiLoCo(HostedDiLoCo):
    """DiLoCo under torchrun: all wait for the last host, and a failure or an arrival undoes the round.

    Every host stores what it holds after each outer step, which costs nothing. A host that arrives copies theta, v and
    Adam's moments, 16 bytes a parameter, while all wait.
    """

    name: str = "diloco-waiting"

    def play(self, lab: Lab, every: int) -> None:
        lab = hosted(lab)
        now, hosts, members = lab.seconds, lab.hosts, self.members
        steps = self.fitting(lab, every)
        trained = max(hosts.compute(host, now, steps * lab.setting.step_seconds) for host in members)
        end = self.collective(lab, members, trained)
        moment, failed = change(hosts, members, now)
        if not steps:
            lab.set_clock(lab.limit)
        elif moment < min(end, lab.limit) or end > lab.limit + TINY:
            stopped = min(lab.limit, moment + (DETECTION if failed else 0.0))
            for host in members:
                computed = hosts.present_seconds(host, now, min(stopped, hosts.death(host, now)))
                lab.waste(host, min(steps * lab.setting.step_seconds, computed))
            self._restart(lab, stopped)
        else:
            self.train(lab, members, steps)
            lab.set_clock(trained)
            self.outer(lab)
            lab.x[members] = self.anchor

    def _restart(self, lab: HostLab, at: float) -> None:
        if at >= lab.limit:
            lab.set_clock(lab.limit)
            return
        begins, here, kept = restart(lab.hosts, self.members, lab.seconds, at, self.state_bytes(lab))
        if kept:
            self.admit(lab, kept[0], [host for host in here if host not in kept])
            self.settle(here)
        lab.set_clock(begins)
