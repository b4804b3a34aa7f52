"""A network of whole peers with `epidemic` and their training processes in virtual time. A helper of tests.

`Books` checks the ledger's invariant around every job and every touch of x. This helper also checks that all ready
peers hold the same bits once nothing is published and no link is cut.
"""

from __future__ import annotations

from dataclasses import replace

from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.epidemic.epidemic import EpidemicConfig
from gossipdp.protocol.events import (
    EpochDiverged,
    EpochSettled,
    IncrementApplied,
    IncrementPublished,
    ResyncEnded,
    RoundDone,
    SessionRefused,
    StateReady,
    UpdateRefused,
)
from gossipdp.protocol.presets import SIMULATED
from gossipdp.protocol.schema import Schema
from simulations.simulator.host import Host
from simulations.simulator.invariants import Books
from simulations.simulator.network import Conditions, Network
from simulations.simulator.trainer import Trainer, TrainerConfig

SETTINGS = b"settings of a run"[:16]
STEP = 0.1
"""seconds of a training step"""
SPAN = 8
"""steps of the network's clock in an epoch"""


def config(span=SPAN, **changes):
    broadcast = replace(SIMULATED.broadcast, run=SETTINGS, span=span)
    return PeerConfig(
        **{
            "membership": SIMULATED.membership,
            "settings": SETTINGS,
            "transfer": SIMULATED.transfer,
            "strategy": EpidemicConfig(broadcast=broadcast, whole_until=20),
            "every": span,
            "warmup_steps": 20,
            "resume_after": 3.0,
            "leave_within": 2.0,
        }
        | changes
    )


class Epidemics:
    """A network with `epidemic`.

    Args:
        chunks: chunks of the model.
        tolerant: allow refusals as implausible. In bad weather a peer judges another's state by its own, which differs.
        buffers: elements of the model's buffer, which has a chunk of its own; 0 for a model without one.
    """

    def __init__(self, seed, peers, *, chunks=2, buffers=44, conditions=None, trace=None, tolerant=False, **changes):
        self.tolerant = tolerant
        self.calm = Conditions(latency=0.01, job=0.002)
        self.network = Network(seed, conditions or self.calm, listen=self._heard, execute=self._execute, trace=trace)
        self.books = Books(self.network.hosts, lambda: self.network.now)
        size = 8192 * (chunks - 1) + 300
        entries = [("weight", (size - buffers,), "float32", "parameter"), ("mean", (buffers,), "float32", "buffer")]
        self.schema = Schema.of(entries[: 2 if buffers else 1])
        self.trainers: dict[int, Trainer] = {}
        self.events: dict[int, list] = {}
        self.random = self.network.random("script")
        self._numbers = 0
        for _ in range(peers):
            self.network.add(config(**changes))

    def _execute(self, host, job):
        return self.books.run(host, job)

    def _heard(self, host: Host, event):
        if not (self.tolerant and isinstance(event, UpdateRefused) and event.reason == "implausible"):
            self.books.heard(host, event)
        assert not isinstance(event, SessionRefused), event
        self.events.setdefault(host.index, []).append((self.network.now, event))
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)

    def of(self, kind, index=None, since=0.0):
        told = [self.events.get(index, [])] if index is not None else self.events.values()
        return [event for events in told for at, event in events if at >= since and isinstance(event, kind)]

    # -- what the test does -----------------------------------------------------------------------------------

    def start(self, index, *, found=False, train=True):
        host = self.network.hosts[index]
        self.network.start(host, seeds=self.network.hosts[:2], found=found)
        self.books.started(host)
        old = self.trainers.get(index)
        if old is not None and old.alive:
            old.attach()
        elif train:
            self._numbers += 1
            settings = TrainerConfig(step_time=STEP)
            self.trainers[index] = Trainer(self.network, host, self.schema, settings, self._numbers, self.books.touched)
            self.books.trains(self.trainers[index])
        return host

    def crash(self, index, *, disk=True):
        host = self.network.hosts[index]
        self.books.stopped(host)
        self.network.stop(host, keep_disk=disk)

    def run(self, seconds):
        self.network.run(self.network.now + seconds)

    def form(self, count=None):
        """Start the hosts one after another. The first founds the network."""
        self.start(0, found=True)
        for index in range(1, len(self.network.hosts) if count is None else count):
            self.run(0.3)
            self.start(index)
        self.until_ready()

    def until_ready(self, seconds=30.0):
        until = self.network.now + seconds
        while not all(host.peer.replica.ready for host in self.up):
            assert self.network.now < until, [host.name for host in self.up if not host.peer.replica.ready]
            self.run(0.5)

    def finish(self, seconds=20.0):
        """Heal all faults, kill all training processes, and let all messages arrive."""
        self.network.links.heal()
        self.network.set_conditions(self.calm)
        self.run(SPAN * STEP)
        for trainer in self.trainers.values():
            if trainer.alive:
                trainer.die()
        self.run(seconds)

    # -- what must hold ---------------------------------------------------------------------------------------

    @property
    def up(self):
        return [host for host in self.network.hosts if host.peer is not None]

    def digests(self):
        """Host -> hashes of all chunks, of the hosts that are ready."""
        return {
            host.name: tuple(host.algorithm.ledger.digest(chunk) for chunk in range(host.algorithm.ledger.chunks))
            for host in self.up
            if host.peer.replica.ready
        }

    def agree(self):
        digests = self.digests()
        assert len(digests) == len(self.up), "somebody has no model"
        assert len(set(digests.values())) == 1, {name: digest[0].hex()[:8] for name, digest in digests.items()}

    def summary(self):
        kinds = (RoundDone, IncrementPublished, IncrementApplied, EpochSettled, EpochDiverged, ResyncEnded, StateReady)
        return {kind.__name__: len(self.of(kind)) for kind in kinds}
