"""A network of honest peers in which some members become hostile (campaign T12), and what the honest peers lose.

A hostile host runs the peer that all run. Its behaviour (`behaviours`) changes what the peer sends, changes its jobs on
vectors, and sends messages of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from random import Random
from typing import Final

import numpy as np

from gossipdp.protocol import jobs
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import Event, ExchangeEnded, ExchangeStarted, MessageFailed, Struck
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.wire.messages import Lane, State
from simulations.campaigns.behaviours.base import Behaviour, Surroundings
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions

__all__ = ["FORMING", "SIEGE", "Outcome", "Siege"]

FORMING: Final = 6.0
SIEGE: Final = 16.0
"""virtual seconds of each act"""
LOOK: Final = 0.05
"""virtual seconds between two checks of which honest peers are believed dead"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one siege. Hosts are numbers, times are virtual seconds."""

    exchanges: int = 0
    """sides of exchanges between honest peers that mixed something, since the siege began"""
    distance: float = math.nan
    """mean squared distance of the honest peers to the optimum of training"""
    met: Counter[int] = field(default_factory=Counter)
    """honest host -> exchanges in which it could have noticed a culprit's fault before it set a culprit aside"""
    aside: dict[int, float] = field(default_factory=dict)
    """honest host -> when it first set a culprit aside"""
    strikes: Counter[str] = field(default_factory=Counter)
    """strikes by reason"""
    believed_dead: float = 0.0
    """longest time for which an honest peer believed another dead"""
    control_rate: float = 0.0
    """most bytes per second that an honest peer sent on the control lane, over four seconds"""


class Siege(Cluster):
    """Peers that train in a fair network. The last of them become hostile.

    Args:
        kind: what the hostile hosts do.
        size: parameters of the model.
    """

    def __init__(
        self, seed: int, kind: type[Behaviour], *, honest: int = 3, hostile: int = 1, size: int = 8192 + 300
    ) -> None:
        random = Random(f"siege/{seed}")
        fair = Conditions(
            latency=random.choice((0.005, 0.02, 0.05)),
            bandwidth=1.25e7,
            loss=random.choice((0.0, 0.02)),
            duplicate=0.02,
            job=0.002,
        )
        window = random.choice((2, 8))
        plan = Plan(peers=honest + hostile, size=size, conditions=fair, every=4, window=window, before=fair)
        self.behaviours: dict[int, Behaviour] = {}
        """hostile host -> what it does, once it is hostile"""
        super().__init__(seed, plan, tampers=self._tampers)
        self.honest, self.culprits = self.network.hosts[:honest], self.network.hosts[honest:]
        self.listeners.append(self._watch)
        self._kind, self._ids = kind, frozenset(host.id for host in self.culprits)
        self._began = math.inf
        """time at which the siege began"""
        self._exchanges = 0
        self._met: Counter[int] = Counter()
        self._aside: dict[int, float] = {}
        self._strikes: Counter[str] = Counter()
        self._sent: Counter[tuple[int, int]] = Counter()
        """(honest host, second) -> bytes on the control lane"""
        self._dead_since: dict[tuple[int, int], float] = {}
        """(honest host, host that it believes dead) -> since when"""
        self._believed_dead = 0.0

    def _config(self) -> PeerConfig:
        """Deadlines fit rounds of 0.8 s: a silent partner costs about one round, as with the defaults. Faults of two
        exchanges count as two."""
        config = super()._config()
        deadlines = Deadlines(ask=0.3, silence=1.0, doubt=0.5)
        averaging = dataclasses.replace(config.averaging, deadlines=deadlines)
        return dataclasses.replace(config, averaging=averaging, quarantine=QuarantineConfig(together=0.1))

    def begin(self) -> None:
        """Form the network. Then the culprits begin to misbehave."""
        for host in self.network.hosts:
            self.network.at(0.5 * host.index, "start", None, partial(self.restart, host))
        self.network.run(FORMING)
        self._besiege()

    def _besiege(self) -> None:
        assert all(host.running.view.ready for host in self.network.hosts), "the network never formed"
        self._began = self.network.now
        self._look()
        for host in self.culprits:
            if self._kind is not Behaviour:
                self.books.expect_faults_of(host.id)
            self.behaviours[host.index] = self._kind(self._around(host))
            self._beat(host)

    def _around(self, host: Host) -> Surroundings:
        return Surroundings(self.network, self.schema, host, self.culprits, self.honest)

    def end_hostility(self) -> None:
        """From now on the culprits are honest."""
        self.behaviours = {host.index: Behaviour(self._around(host)) for host in self.culprits}

    def siege(self, seconds: float = SIEGE) -> Outcome:
        """Run on. What must hold of honest peers is checked around every job."""
        self.network.run(self.network.now + seconds)
        distances = []
        for host in self.honest:
            self.books.check(host, range(host.algorithm.ledger.chunks))
            trainer = self.trainers[host.index]
            distances.append(float(np.mean((trainer.x - trainer.optimum).astype(np.float64) ** 2)))
        control = (sum(self._sent[index, second + later] for later in range(4)) for index, second in list(self._sent))
        return Outcome(
            exchanges=self._exchanges,
            distance=float(np.mean(distances)),
            met=self._met,
            aside=self._aside,
            strikes=self._strikes,
            believed_dead=self._believed_dead,
            control_rate=max(control, default=0) / 4.0,
        )

    def _execute(self, host: Host, job: jobs.Job[object]) -> object:
        if host.index in self.behaviours and host.id in self.books.hostile:
            return self.behaviours[host.index].does(job)
        return self.books.run(host, job)

    def _tampers(self, host: Host, envelope: Envelope) -> Iterable[Envelope]:
        if host.index in self.behaviours:
            return self.behaviours[host.index].sends(envelope)
        if self.network.now >= self._began and envelope.lane == Lane.CONTROL:
            self._sent[host.index, int(self.network.now)] += sum(memoryview(frame).nbytes for frame in envelope.frames)
        return (envelope,)

    def _beat(self, host: Host) -> None:
        behaviour = self.behaviours[host.index]
        for envelope in behaviour.speaks():
            self.network.inject(host, envelope)
        if math.isfinite(behaviour.beat):
            self.network.at(self.network.now + behaviour.beat, "speaks", host, partial(self._beat, host))

    def _look(self) -> None:
        now = self.network.now
        for one, other in permutations(self.honest, 2):
            if one.running.view.members[other.id].state in (State.FAILED, State.LEFT):
                since = self._dead_since.setdefault((one.index, other.index), now)
                self._believed_dead = max(self._believed_dead, now - since)
            else:
                self._dead_since.pop((one.index, other.index), None)
        self.network.at(now + LOOK, "looks", None, self._look)

    def _watch(self, host: Host, event: Event) -> None:
        if self.network.now < self._began or host in self.culprits:
            return
        match event:
            case ExchangeEnded(partner=partner, chunks=chunks) if chunks and partner not in self._ids:
                self._exchanges += 1
            case ExchangeStarted(partner=partner, initiator=initiator) if partner in self._ids:
                if host.index not in self._aside and (initiator or not self._kind.answers):
                    self._met[host.index] += 1
            case MessageFailed():
                raise AssertionError(f"{host.name}: {event}")
            case Struck(peer, reason, _, pause):
                assert peer in self._ids, f"{host.name} struck an honest peer: {event}"
                self._strikes[reason] += 1
                if pause:
                    self._aside.setdefault(host.index, self.network.now)
