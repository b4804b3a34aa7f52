"""DiLoCo with a quorum: a round goes on without the hosts that are late or gone.

The rules are torchft's (github.com/meta-pytorch/torchft, `src/lighthouse.rs`, `torchft/manager.py`,
`torchft/local_sgd.py`), with its default times:

* A host sends a sign of life every 0.1 s. After 5 s without one it counts as dead (`heartbeat_timeout_ms`).
* At the end of its steps a host asks for a quorum. The quorum forms when every living host of the last one has asked,
  or 60 s after the first asked (`join_timeout_ms`).
* A collective that does not end because a host is gone fails after 60 s (`Manager(timeout)`). The round is undone.
* A host outside the quorum asks at the end of its own steps. The next quorum takes it in. It copies the state of a
  member, its own steps are lost, and the members wait for the copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulations.lab.core import Lab
from simulations.lab.failures.collective import TURNS, HostedDiLoCo
from simulations.lab.failures.hosts import Hosts
from simulations.lab.failures.lab import TINY, HostLab, hosted

__all__ = ["HEARTBEAT", "JOIN", "TIMEOUT", "QuorumDiLoCo", "asked_no_more"]

HEARTBEAT: Final = 5.0
"""seconds of silence after which a host counts as dead"""
JOIN: Final = 60.0
"""seconds that a quorum waits for living hosts"""
TIMEOUT: Final = 60.0
"""seconds until a collective fails"""


def asked_no_more(hosts: Hosts, host: int, first: float) -> float:
    """When the quorum that was first asked for at `first` stops waiting for `host`, which has not asked."""
    silence = hosts.silence(host, first, HEARTBEAT)
    return min(first + JOIN, max(first, silence + HEARTBEAT))


@dataclass
class QuorumDiLoCo(HostedDiLoCo):
    """DiLoCo whose outer step is the mean of a quorum.

        Delta = 1/|Q| sum over Q of (theta - inner^H(theta))

    Q are the hosts that the rules above let take part. A host that arrives or returns copies theta, v and Adam's
    moments, 16 bytes a parameter.
    """

    name: str = "diloco-quorum"

    def begin(self, lab: Lab) -> None:
        self._outside: dict[int, float] = {}
        """hosts outside the quorum, and when each asks to be taken in"""
        self._formed = 0.0
        """when the last quorum formed"""
        super().begin(lab)

    def play(self, lab: Lab, every: int) -> None:
        lab = hosted(lab)
        hosts, now = lab.hosts, lab.seconds
        died = [host for host in self.members if hosts.death(host, self._formed) <= now]
        self._outside |= {host: hosts.back(host, hosts.death(host, self._formed)) for host in died}
        self.settle([host for host in self.members if host not in died])
        steps = self.fitting(lab, every)
        work = steps * lab.setting.step_seconds
        asks = {host: hosts.compute(host, now, work) for host in self.members}
        first = min(asks.values())
        formed = max(min(ask, asked_no_more(hosts, host, first)) for host, ask in asks.items())
        if not steps or formed > lab.limit:
            lab.set_clock(lab.limit)
            return
        quorum = [
            host
            for host, ask in asks.items()
            if ask <= formed < hosts.death(host, now) and hosts.is_there(host, formed)
        ]
        self._formed = formed
        self._leave_out(lab, [host for host in self.members if host not in quorum], now, work, asks)
        self.settle(quorum)
        self._outer_step(lab, steps, formed)
        self._take_in(lab, formed)

    def _leave_out(self, lab: HostLab, missing: Sequence[int], now: float, work: float, asks: dict[int, float]) -> None:
        """The steps of these hosts are lost. A host that lives asks again; for a dead one another may."""
        for host in missing:
            died = lab.hosts.death(host, now)
            lab.waste(host, min(work, lab.hosts.present_seconds(host, now, min(died, lab.limit))))
            self._outside[host] = asks[host] if math.isfinite(asks[host]) else lab.hosts.back(host, died)

    def _outer_step(self, lab: HostLab, steps: int, formed: float) -> None:
        """Train the quorum, and step if its collective ends."""
        silence = min(lab.hosts.silence(host, formed, TIMEOUT) for host in self.members)
        end = self.collective(lab, self.members, formed)
        if silence < end or end > lab.limit + TINY:
            for host in self.members:
                lab.waste(host, steps * lab.setting.step_seconds)
            lab.set_clock(silence + TIMEOUT if silence < end else end)
            return
        self.train(lab, self.members, steps)
        lab.set_clock(formed)
        self.outer(lab)
        lab.x[self.members] = self.anchor

    def _take_in(self, lab: HostLab, formed: float) -> None:
        """Hosts that asked before the quorum formed copy the state of a member, and all wait for it."""
        now, hosts = lab.seconds, lab.hosts
        newcomers = [host for host, ask in self._outside.items() if ask <= formed and hosts.is_there(host, now)]
        copies = {
            host: hosts.transfer((self.members[0], host), now, self.state_bytes(lab), TURNS) for host in newcomers
        }
        taken = [host for host, end in copies.items() if math.isfinite(end)]
        self.admit(lab, self.members[0], taken)
        self.settle(sorted([*self.members, *taken]))
        self._outside = {host: ask for host, ask in self._outside.items() if host not in taken}
        lab.set_clock(max((now, *(copies[host] for host in taken))))
