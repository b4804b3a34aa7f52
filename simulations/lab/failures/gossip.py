"""`pairwise` on hosts with events: the daemon's own algorithm goes on among those that are there.

The times are those of the daemon's preset for separate sites (`gossipdp/protocol/presets.py`). A silent host counts as
lost after the longest time that its membership takes. An exchange that stands still is given up after `silence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import payload_bytes
from gossipdp.protocol.presets import WAN
from gossipdp.training.optimizer_state.encoding import decode, encode
from peers.plan.pairs import OpenExchange
from simulations.lab.core import Lab
from simulations.lab.failures.lab import TINY, HostLab, hosted
from simulations.lab.inner import AdamW
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Replica

__all__ = ["DETECTION", "SILENCE", "FailingPairwise"]

DETECTION: Final = 15.0
"""seconds until all peers know that a host is gone, at most (`WAN` in `gossipdp/protocol/membership/config.py`)"""
SILENCE: Final = WAN.deadlines.silence
COPY_TURNS: Final = 4
"""sequential messages of a copy: request, manifest, chunks, moments"""


class FailingPairwise(PairwiseGossip):
    """`pairwise` under the events of the setting.

    * An exchange with a silent host that still counts as a member comes to nothing. Its partner gets no other in this
      round; the daemon would look for one after 2 s.
    * An exchange in which a host dies, or pauses for more than `SILENCE`, ends after `SILENCE`, and keeps what it
      mixed. Its survivor is busy until then.
    * No schedule is followed while a member is missing.
    * A paused host goes on with its old replica. Its next outer step has the steps from before the pause too.
    * A host that arrives copies the anchor and Adam's moments of a random member, as they are when the copy begins. It
      trains from the copy's end on.
    """

    def __init__(self, options: PairwiseOptions | None = None) -> None:
        super().__init__(options, "pairwise, failing")
        self._ready: dict[int, float] = {}
        """when the last copy of a host ends; infinite while it is dead"""
        self._looked = -math.inf
        """the moment up to which deaths and arrivals are known"""

    def holders(self, lab: Lab) -> Sequence[int]:
        return [host for host in range(lab.peers) if self._works(hosted(lab), host)]

    def finish(self, lab: Lab) -> float:
        """As `PairwiseGossip.finish`, among the hosts that are there. It takes time of its own."""
        hosted(lab).limit = math.inf
        among = self.holders(lab)
        self._missing = {host for host in range(lab.peers) if host not in among}
        return self._finish(lab, among)

    def model(self, lab: Lab) -> Tensor:
        return torch.from_numpy(np.mean([self.replicas[host].ledger.a for host in self.holders(lab)], 0))

    # -- presence -------------------------------------------------------------------------------------------------

    def _works(self, lab: HostLab, host: int) -> bool:
        return lab.hosts.is_there(host, lab.seconds) and self._ready.get(host, 0.0) <= lab.seconds + TINY

    def _advance(self, lab: Lab) -> None:
        if not self._closing:
            self._update_hosts(hosted(lab))
        super()._advance(lab)

    def _update_hosts(self, lab: HostLab) -> None:
        """Note who died and who arrived, and who counts as a member."""
        now, hosts = lab.seconds, lab.hosts
        for host in range(lab.peers):
            if self._looked < hosts.death(host, self._looked) <= now:
                self._ready[host] = math.inf
            if math.isinf(self._ready.get(host, 0.0)) and hosts.is_there(host, now):
                self._arrive(lab, host)
        self._looked = now
        silent = {host: now - hosts.silence(host, now, DETECTION) for host in range(lab.peers)}
        copying = {host for host in range(lab.peers) if hosts.is_there(host, now) and not self._works(lab, host)}
        self._missing = copying | {host for host, seconds in silent.items() if seconds >= DETECTION}
        self._scheduled = self._scheduled and not self._missing
        for host, replica in enumerate(self.replicas):
            replica.set_away(not self._works(lab, host))

    def _arrive(self, lab: HostLab, host: int) -> None:
        for exchange in [exchange for exchange in self._open_exchanges if host in exchange.pair]:
            exchange.cut()
            self._end_exchange(lab, exchange)
        source = int(lab.random.choice(self.holders(lab)))
        self._replace(lab, host, source)
        parameters = lab.problem.parameters
        size = 2.0 * parameters + payload_bytes(parameters)
        self._ready[host] = lab.hosts.transfer((source, host), lab.seconds, size, COPY_TURNS)

    def _replace(self, lab: Lab, peer: int, source: int) -> None:
        """Begin `peer` anew: with the anchor of `source`, its Adam moments, and no outer momentum."""
        lab.x[peer] = torch.from_numpy(self.replicas[source].ledger.a)
        _begin_optimizer(lab, peer, source)
        self.replicas[peer] = Replica(peer, lab.x[peer], self._algorithm(), alone=0)
        lab.received[peer] += 2.0 * lab.problem.parameters  # a state travels as bfloat16

    # -- rounds ---------------------------------------------------------------------------------------------------

    def _train(self, lab: Lab, every: int) -> None:
        lab = hosted(lab)
        step = lab.setting.step_seconds
        self._began, self._duration = lab.seconds, every * step
        for number in range(every):
            lab.set_clock(self._began + number * step)
            self._advance(lab)
            now = lab.seconds
            lab.step(
                [
                    host
                    for host in range(lab.peers)
                    if self._works(lab, host) and lab.hosts.compute(host, now, step) <= now + step + TINY
                ]
            )
        lab.set_clock(self._began + self._duration)
        self._advance(lab)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def _free(self) -> list[int]:
        return [peer for peer in super()._free() if peer not in self._missing]

    def _begin_exchange(self, lab: Lab, first: int, second: int, weight: float) -> None:
        if all(self._works(hosted(lab), host) for host in (first, second)):
            super()._begin_exchange(lab, first, second, weight)
            return
        self._steps[[first, second]] += 1
        self._tried.add(frozenset((first, second)))
        self.tally.count_failed()

    def _end_exchange(self, lab: Lab, exchange: OpenExchange) -> None:
        usual = self._whole
        super()._end_exchange(lab, exchange)
        hosts = hosted(lab).hosts
        if any(hosts.silence(host, exchange.began, SILENCE) <= lab.seconds for host in exchange.pair):
            # It stood still, so it does not tell how long an exchange lasts.
            self._whole = usual

    def _received(self, lab: Lab, exchange: OpenExchange, down: int, up: int) -> None:
        lab.received[list(exchange.pair)] += down, up
        hosts = hosted(lab).hosts
        silence = min(hosts.silence(host, exchange.at, SILENCE) for host in exchange.pair)
        end = hosts.transfer(exchange.pair, exchange.at, max(down, up), 0)
        if silence < end:
            exchange.cut()
            self.tally.count_cut()
            end = max(exchange.at, silence + SILENCE)
        exchange.delay(end - exchange.at)


def _begin_optimizer(lab: Lab, peer: int, source: int) -> None:
    """Begin Adam of a joiner with the moments of `source`, through the codec that they travel in."""
    inner = lab.inner
    if not isinstance(inner, AdamW):
        return
    size = lab.problem.parameters
    v, m = (torch.nn.functional.pad(each[source], (0, -size % BLOCK)) for each in (inner.v, inner.m))
    v, m = decode(encode(v, m))
    inner.v[peer], inner.m[peer] = v[:size], m[:size]
    inner.counts[peer] = inner.counts[source]
    lab.received[peer] += payload_bytes(size)
