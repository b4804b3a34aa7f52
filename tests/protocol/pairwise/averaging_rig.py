"""Peers that average without a network: the test carries each message and runs each job."""

import math
from random import Random
from types import SimpleNamespace

import numpy as np
from msgspec.structs import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.course.facts import Age
from gossipdp.protocol.events import ExchangeEnded
from gossipdp.protocol.model import Model, Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Ack, Member, Offer, State
from simulations.simulator.settings import averaging_config, pairwise

SIZE = 2 * 8192 + 600
SETTINGS = b"the settings...."
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])


class Members:
    """The part of membership that averaging reads."""

    def __init__(self, me, others):
        self.me = me
        self.members = {member.id: member for member in [me, *others]}

    def alive(self):
        states = (State.ALIVE, State.SUSPECT)
        return [m for i, m in sorted(self.members.items()) if i != self.me.id and m.state in states]

    def rtt(self, peer):
        return 0.01

    def address_of(self, peer):
        return self.members[peer].address

    def linked(self, peer):
        return True


def nothing(*_):
    pass


class Pace:
    """The part of pacing that averaging reads."""

    def __init__(self):
        self.usual_every, self.room, self.runaway = 50, math.inf, SimpleNamespace(share=1.0)
        self.fresh = self.alone = self.first = self.trains = self.warming_up = False
        self.distances = []
        """of the exchanges that have mixed"""

    def mixed(self, duration, distance):
        self.distances.append(distance)

    def outer(self):
        return Outer(1.0, 0.5, 1.0, 1.0)


def averages(membership, config, outputs, *, settings, keys=(), shuns=lambda peer, now: False, pacing=None):
    """`Averaging` of a peer with this membership, whose training makes rounds."""
    parts = SimpleNamespace(
        config=SimpleNamespace(averaging=config, settings=settings, keys=keys, sync=False),
        membership=membership,
        progress=None,
        outputs=outputs,
        strikes=SimpleNamespace(shuns=shuns),
        random=Random(membership.me.id[0]),
    )
    return Averaging(
        parts,
        pacing or Pace(),
        SimpleNamespace(trains=True, open=True, gain=0.0, mixed=nothing),
        SimpleNamespace(clock=0),
        Age(idle=False),
        {},
    )


class Node:
    def __init__(self, me, others, *, incarnation=1, config=None, schema=SCHEMA, settings=SETTINGS, keys=()):
        self.outputs, self.events = Outputs(), []
        self.membership = Members(replace(me, incarnation=incarnation), others)
        self.shuns, self.pacing = lambda peer, now: False, Pace()
        self.algorithm = pairwise()
        self.algorithm.allocate(SIZE, SIZE, 8192)
        self.algorithm.ledger.a[:] = np.random.default_rng(me.id[0]).standard_normal(SIZE)
        self.algorithm._step[:] = 10.0 * math.sqrt(SIZE)  # so that nothing is clipped
        self.id = me.id
        self.averaging = averages(
            self.membership,
            config or configured(),
            self.outputs,
            settings=settings,
            keys=keys,
            shuns=self._shuns,
            pacing=self.pacing,
        )
        self.terms = self.averaging._terms
        self.averaging.ready(Model(schema=schema, schema_bytes=schema.to_bytes(), settings=SETTINGS, clock=0, rounds=0))

    @property
    def ended(self):
        """Chunks that each exchange has mixed by its end."""
        return [event.chunks for event in self.of(ExchangeEnded)]

    @property
    def distance(self):
        """RMS distance that the last exchange has told."""
        return self.pacing.distances[-1]

    def _shuns(self, peer, now):
        return self.shuns(peer, now)

    def work(self, now):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(result, jobs.Turn):
                self.averaging.job_done(job, result, now)
        self.events += self.outputs.events
        self.outputs.events.clear()

    def post(self, now=0.0):
        self.work(now)
        sent = list(self.outputs.messages)
        self.outputs.messages.clear()
        return sent

    def hear(self, source, message, buffers=(), now=0.0):
        message, buffers = wire.decode(wire.encode(message, buffers))
        self.averaging.receive(message, list(buffers), source, 50, now)
        self.work(now)

    def news(self, member, now=0.0):
        self.membership.members[member.id] = member
        self.averaging.member_changed(member, now)
        self.work(now)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def member(letter, incarnation=1, state=State.ALIVE):
    return Member(letter * 32, letter.decode(), f"{letter.decode()}:1", incarnation, 0, state)


def configured(**changes):
    return averaging_config(**{"window": 2, "codec": "modulo8", **changes})


A, B, C, D = (member(letter) for letter in (b"a", b"b", b"c", b"d"))


def network(*members, **options):
    return {me.id: Node(me, [other for other in members if other is not me], **options) for me in members}


def pump(nodes, now=0.0, drop=lambda envelope: False):
    """Deliver messages until no peer has any to send."""
    seen = []
    while batch := [(node, envelope) for node in nodes.values() for envelope in node.post(now)]:
        for node, envelope in batch:
            seen.append(envelope.message)
            if not drop(envelope) and envelope.to in nodes:
                message, buffers = wire.decode(envelope.frames)
                nodes[envelope.to].averaging.receive(message, list(buffers), node.id, 50, now)
                nodes[envelope.to].work(now)
    return seen


def begin(nodes, now=0.0):
    """A offers an exchange and B accepts. Returns its number; no chunk is open yet."""
    nodes[A.id].averaging.want(1, now)
    [offer] = nodes[A.id].post()
    nodes[B.id].hear(A.id, offer.message)
    [accept] = nodes[B.id].post()
    nodes[A.id].hear(B.id, accept.message)
    return offer.message.exchange


def an_offer(exchange, **changes):
    fields = {
        "schema": SCHEMA.digest,
        "settings": SETTINGS,
        "codec": "modulo8",
        "weight": 0.5,
        "pull": 0.0,
        "first": 0,
        "window": 2,
    }
    return Offer(exchange, **{**fields, **changes})


def half_applied():
    """A and B in the middle of an exchange: B has mixed, its acknowledgements are lost."""
    nodes = network(A, B)
    nodes[A.id].averaging.want(1, 0.0)
    pump(nodes, drop=lambda envelope: isinstance(envelope.message, Ack))
    return nodes
