"""What the tests of whole peers share: a network in virtual time, and one peer alone."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from gossipdp.protocol.peer import Peer
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION, Member, State
from simulations.simulator.network import Conditions, Network
from simulations.simulator.settings import peer_config
from simulations.simulator.trainer import Trainer, TrainerConfig

SCHEMA = Schema.of([("w", (8192 + 200,), "float32", "parameter")])


OTHER = Schema.of([("w", (8192 + 100,), "float32", "parameter")])


def configured(**changes):
    options = {
        "settings": b"the settings....",
        "transfer": TransferConfig(manifest=2.0, chunk=1.0, silence=3.0),
        "every": 5,
        "warmup_steps": 20,
        "resume_after": 5.0,
        "leave_within": 2.0,
    }
    return peer_config(**{**options, **changes})


class Town:
    """A network whose peers' events are kept by host.

    Args:
        operator: key whose decisions the hosts follow.
        versions: index of a host -> protocol version that it speaks instead of the newest. It knows no operator.
        tampers: see `Network`.
        seed: of the network's randomness.
    """

    def __init__(self, peers=2, operator=b"", versions=None, tampers=None, seed=1, **changes):
        self.events = defaultdict(list)
        self.trainers = {}
        self.net = Network(seed, Conditions(latency=0.005), listen=self.heard, tampers=tampers)
        spoken = versions or {}
        self.hosts = [
            self.net.add(
                configured(**changes),
                operator=b"" if index in spoken else operator,
                version=spoken.get(index, PROTOCOL_VERSION),
            )
            for index in range(peers)
        ]

    def heard(self, host, event):
        self.events[host.index].append(event)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)

    def start(self, index, *, found=False):
        self.net.start(self.hosts[index], seeds=self.hosts[:1], found=found)

    def train(self, index, schema=SCHEMA, **config):
        number = 10 * index + len(self.events[index])
        trainer = Trainer(self.net, self.hosts[index], schema, TrainerConfig(**config), number, lambda *what: None)
        self.trainers[index] = trainer
        return trainer

    def run(self, seconds):
        self.net.run(self.net.now + seconds)

    def of(self, index, kind):
        return [event for event in self.events[index] if isinstance(event, kind)]

    def peer(self, index):
        return self.hosts[index].peer


def founded(peers=2, **changes):
    """Peer 0 has founded and trains."""
    town = Town(peers, **changes)
    town.start(0, found=True)
    town.train(0)
    town.run(0.5)
    return town


def take(method):
    taken = []
    while (item := method()) is not None:
        taken.append(item)
    return taken


def a_peer(seed=1, **parts):
    me = Member(b"p" * 32, "p", "10.0.0.1:1", 1, 0, State.ALIVE)
    return Peer(
        configured(),
        me,
        random=Random(seed),
        sign=lambda data: data,
        verify=lambda peer, data, sign: True,
        now=0.0,
        **parts,
    )
