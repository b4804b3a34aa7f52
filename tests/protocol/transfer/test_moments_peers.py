"""Whole peers in virtual time: a joiner's training process gets the optimizer's moments with the model."""

from collections import defaultdict

import numpy as np
import pytest

from gossipdp.codecs import moments as codec
from gossipdp.protocol import jobs
from gossipdp.protocol.events import MomentsProgress, SessionOpened, StateReady
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire.messages import MomentsRequest
from simulations.simulator.network import Conditions, Network
from simulations.simulator.settings import peer_config
from simulations.simulator.trainer import Trainer, TrainerConfig
from tests.codecs import moments_reference

SCHEMA = Schema.of([("w", (3 * 8192 + 200,), "float32", "parameter")])


class Beginner(Trainer):
    """A training process whose optimizer is new."""

    def _tell(self, kind, action, *, dead=False):
        if kind == "attach":
            network = self._network

            def action(peer):
                peer.attach(SCHEMA.to_bytes(), network.now, moments=True)

        super()._tell(kind, action, dead=dead)


class Hosts:
    def __init__(self, *moments, loss=0.0):
        self.events, self.trainers, self.asked = defaultdict(list), {}, []
        self.net = Network(3, Conditions(latency=0.005, loss=loss), listen=self.heard, passes=self.passes)
        self.hosts = [self.net.add(self.configured(each)) for each in moments]

    @staticmethod
    def configured(moments):
        return peer_config(
            settings=b"the settings....",
            transfer=TransferConfig(manifest=5.0, chunk=1.0, silence=5.0),
            every=5,
            warmup_steps=20,
            resume_after=5.0,
            leave_within=2.0,
            moments=moments,
        )

    def heard(self, host, event):
        self.events[host.index].append(event)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)

    def passes(self, sender, target, message):
        if isinstance(message, MomentsRequest):
            self.asked.append(target.index)
        return True

    def start(self, index):
        self.net.start(self.hosts[index], seeds=self.hosts[:1], found=index == 0)
        self.train(index)

    def train(self, index):
        arguments = self.net, self.hosts[index], SCHEMA, TrainerConfig(), index + len(self.events[index])
        self.trainers[index] = Beginner(*arguments, lambda *what: None)

    def hold(self, index, seed):
        """What a training process on this host has given of its optimizer."""
        random, chunks = np.random.default_rng(seed), []
        for size in chunk_sizes(SCHEMA):
            v = random.standard_normal(size).astype(np.float32) ** 2
            payload = moments_reference.encoded(0.5 * np.sqrt(v), v)
            chunks.append(jobs.Frozen(payload.data, codec.digest(payload)))
        held = Moments(100 * seed, tuple(chunks))
        self.net.command(self.hosts[index], "moments", lambda peer: peer.hold_moments(held, self.net.now))
        return held

    def until(self, holds, within=30.0):
        end = self.net.now + within
        while not holds():
            assert self.net.now < end
            self.net.run(self.net.now + 0.05)

    def opened(self, index):
        return [event for event in self.events[index] if isinstance(event, SessionOpened)]


def same(a, b):
    return a.steps == b.steps and [bytes(x.payload) for x in a.chunks] == [bytes(x.payload) for x in b.chunks]


def test_joiner_has_the_moments_of_its_source_before_its_session_begins():
    hosts = Hosts(True, True)
    hosts.start(0)
    hosts.until(lambda: hosts.opened(0))
    held = hosts.hold(0, 1)
    hosts.start(1)
    hosts.until(lambda: hosts.opened(1))
    assert same(hosts.hosts[1].peer.view.moments, held)
    kinds = [type(event) for event in hosts.events[1]]
    assert kinds.index(StateReady) < kinds.index(MomentsProgress) < kinds.index(SessionOpened)
    assert kinds.count(MomentsProgress) == len(chunk_sizes(SCHEMA))


@pytest.mark.parametrize(("source", "joiner"), [(False, True), (True, False), (False, False)])
def test_switched_off_on_either_side_no_moments_are_given_and_no_session_waits(source, joiner):
    hosts = Hosts(source, joiner)
    hosts.start(0)
    hosts.until(lambda: hosts.opened(0))
    hosts.hold(0, 1)
    hosts.start(1)
    hosts.until(lambda: hosts.opened(1), within=5.0)
    assert hosts.hosts[1].peer.view.moments is None
    assert bool(hosts.asked) == joiner


def test_training_process_that_comes_back_finds_its_own_hosts_moments_without_a_request():
    hosts = Hosts(True, True)
    hosts.start(0)
    hosts.until(lambda: hosts.opened(0))
    hosts.hold(0, 1)
    hosts.start(1)
    hosts.until(lambda: hosts.opened(1))
    asked, own = len(hosts.asked), hosts.hold(1, 2)
    hosts.trainers[1].die()
    hosts.net.run(hosts.net.now + 1.0)
    hosts.train(1)
    hosts.until(lambda: len(hosts.opened(1)) == 2)
    assert same(hosts.hosts[1].peer.view.moments, own) and len(hosts.asked) == asked


def test_source_that_dies_in_the_middle_is_followed_by_another():
    hosts = Hosts(True, True, True)
    hosts.start(0)
    hosts.until(lambda: hosts.opened(0))
    held = {0: hosts.hold(0, 1)}
    hosts.start(1)
    hosts.until(lambda: hosts.opened(1))
    held[1] = hosts.hold(1, 2)
    hosts.start(2)
    hosts.until(lambda: any(isinstance(event, MomentsProgress) for event in hosts.events[2]))
    source = hosts.asked[-1]
    hosts.net.stop(hosts.hosts[source])
    hosts.until(lambda: hosts.opened(2))
    fetched = [bytes(chunk.payload) for chunk in hosts.hosts[2].peer.view.moments.chunks]
    both = [[bytes(chunk.payload) for chunk in held[index].chunks] for index in (source, 1 - source)]
    assert all(fetched[place] in (both[0][place], both[1][place]) for place in range(len(fetched)))
    assert hosts.hosts[2].peer.view.moments.steps in (held[source].steps, 200)


def test_lossy_network_gives_the_same_moments():
    hosts = Hosts(True, True, loss=0.2)
    hosts.start(0)
    hosts.until(lambda: hosts.opened(0))
    held = hosts.hold(0, 1)
    hosts.start(1)
    hosts.until(lambda: hosts.opened(1), within=120.0)
    assert same(hosts.hosts[1].peer.view.moments, held)
