"""A reunion as the tests drive it: peer B, and a test that speaks for all other members."""

import math
from dataclasses import replace
from random import Random

from gossipdp.protocol import jobs
from gossipdp.protocol.course.course import Course
from gossipdp.protocol.course.facts import Age
from gossipdp.protocol.course.meeting import HEARING
from gossipdp.protocol.course.rules import NO_LINE
from gossipdp.protocol.course.sides import FREEZE, Absences, Sides
from gossipdp.protocol.course.table import Event, State
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.arrived import Arrived, Origin
from gossipdp.protocol.wire.messages import Line, Lineage, Member
from gossipdp.protocol.wire.messages import State as Liveness
from simulations.simulator.settings import peer_config
from tests.protocol.membership.machines import TRUSTING

EVERY, ROUNDS = 5, 10
PERIOD = LOCAL.join_interval
HEARD, FROZEN = HEARING * PERIOD, FREEZE * PERIOD
LONG = EVERY * ROUNDS
A, B, C, D, E, F = (bytes([letter]) * 32 for letter in b"abcdef")
GREATER = Line(1, 5, 300, 30, D)
MINE = Line(1, 3, 150, 30, B)
"""The line of B's side in `loser`, and after `divide(D, E)`."""


def record(peer, state=Liveness.ALIVE, incarnation=1, *, outbound=False):
    address = "" if outbound else f"10.0.0.{peer[0]}:1"
    return Member(peer, chr(peer[0]), address, incarnation, 0, state)


class View:
    """Membership's view, set by the test."""

    def __init__(self, me):
        self.config, self.me, self.buried = LOCAL, record(me), 0
        self.members = {me: self.me}
        self.silent, self.idle = set(), set()
        self.proven = None
        """None: no member is, and all have a voice"""

    def voices(self, peers):
        return [peer for peer in peers if self.proven is None or peer in self.proven]

    def alive(self):
        others = [member for member in self.members.values() if member.id != self.me.id]
        return sorted((m for m in others if m.state in (Liveness.ALIVE, Liveness.SUSPECT)), key=lambda m: m.id)

    def training(self):
        return [member.id for member in self.alive() if member.id not in self.idle]

    def reaches(self, peer):
        return True

    def heard_since(self, peer, time):
        return peer not in self.silent


class Fetching:
    """Stands in for a Joiner."""

    def __init__(self):
        self.source, self.arrived, self.done, self.busy = None, None, False, False
        self.sought = []

    def outdone(self, candidates):
        return False

    def seek(self, candidates, now):
        self.sought = list(candidates)
        if candidates and self.source is None:
            self.source = candidates[0]

    def gone(self, peer, now):
        if peer == self.source:
            self.source = None

    def adopted(self, job, result, now):
        pass

    def timer(self):
        return None

    def handle_timer(self, now):
        pass


FETCHED = Arrived(origin=Origin.RECEIVED, schema=b"", clock=300, rounds=30)
SCHEMA = Schema.of([("w", (300,), "float32", "parameter")])
MODEL = Arrived(origin=Origin.FOUNDED, schema=SCHEMA.to_bytes(), clock=0, rounds=0)


class Ending:
    """The run goes on."""

    begun, spare, counts = False, False, None

    def trainers(self):
        return []

    def closing(self):
        return False

    def member_changed(self, member, now):
        pass

    def timer(self):
        return math.inf

    def due(self, now):
        return False


class Stands:
    """Stands in for a machine of which only values are read: each call does nothing."""

    def __init__(self, **values):
        self.__dict__.update(values)

    def __getattr__(self, name):
        return lambda *args, **options: None


class Fetches(Course):
    """A course whose models come as the test says."""

    def __init__(self, *args):
        self.joiners = []
        super().__init__(*args)

    def _new_joiner(self, *, newer_than=-1):
        self.joiners.append(Fetching())
        return self.joiners[-1]


class Progressing:
    """This peer's progress, set by the test."""

    def __init__(self):
        self.progress, self.replaced_at = Own(100, 20, 0, 0.0), []

    def own(self, clock):
        return self.progress

    @property
    def own_clock(self):
        return self.progress.clock

    clock = own_clock
    ages_every = EVERY

    def came(self, clock, rounds):
        pass

    def report(self, rounds):
        pass

    def began(self, rounds, *, fresh):
        pass

    def set(self):
        pass

    def watch(self, attached, now):
        pass

    def resynced(self, rounds, duration):
        pass

    def replaced(self, clock, ahead):
        self.replaced_at.append(clock)

    def timer(self):
        return math.inf


class Side:
    """Peer B has the model, and A and C are of its side. The test speaks for all others."""

    def __init__(self, side=(A, C), me=B, every=EVERY, *, waits=False, remembered=(), joins=False):
        """waits: a training process waits for a newer model, and A and C are to give it.

        Args:
            remembered: members of an earlier life.
            joins: B has no model yet.
        """
        self.side, self.view, self.outputs, self.progress = side, View(me), Outputs(), ProgressBoard(me, TRUSTING)
        self.now, self.held, self.quiet, self.numbers = 1000.0, [], True, 0
        self.me, self.ending = Progressing(), Ending()
        config = peer_config(every=every, apart_rounds=ROUNDS)
        parts = Parts(
            config=config, membership=self.view, progress=self.progress, strikes=Stands(), outputs=self.outputs,
            speed=Stands(), random=Random(3), sign=bytes, verify=lambda peer, data, sign: True, now=0.0,
        )  # fmt: skip
        self.sides = Sides(self.view, Absences(self.progress, self.me, ROUNDS * every), PERIOD)
        self.course = Fetches(
            parts, self.me, Age(idle=waits), self.sides, self.me,
            Stands(open=False, rounds=0, trains=not waits, held=False), Stands(hold=self.hold, take_news=list),
            Stands(), Stands(waiting=Stands(live=None) if waits else None, wants_moments=False), self.ending,
        )  # fmt: skip
        if not joins:
            self.ready(b"", remembered, 0.0)
        age = self.course._age  # of a model that came long ago, if this peer does not train
        age.since = age.behind = age.transfer = 0
        for peer in side:
            self.see(peer, at=0.0)

    def ready(self, giver, remembered, at):
        """The model is here."""
        own = Origin.RECEIVED if giver else Origin.RESTORED
        self.course.state, self.course._remembered = State.FETCHING, remembered
        self.course._take(Event.FETCHED, replace(MODEL, origin=own, giver=giver), at)
        self.outputs.events.clear()
        self.outputs.jobs.clear()

    @property
    def joiners(self):
        return self.course.joiners

    @property
    def own(self):
        return self.me.progress

    @own.setter
    def own(self, own):
        self.me.progress = own

    @property
    def undecided(self):
        return math.isfinite(self.course._meeting.due_at)

    def hold(self, held, now):
        self.held.append(held)
        return self.quiet

    def see(self, peer, state=Liveness.ALIVE, incarnation=1, at=None):
        member = self.view.members[peer] = record(peer, state, incarnation)
        self.course.member_changed(member, self.now if at is None else at)
        self.step()

    def step(self):
        self.course.step(self.now)

    def train(self, rounds):
        self.own = self.own._replace(clock=self.own.clock + EVERY * rounds, rounds=self.own.rounds + rounds)

    def divide(self, *others, rounds=ROUNDS):
        """The others are lost, this peer trains `rounds`, and they come back."""
        for peer in others:
            self.see(peer, at=0.0)
        for peer in others:
            self.see(peer, Liveness.FAILED)
        self.train(rounds)
        for peer in others:
            member = self.view.members[peer] = record(peer)
            self.course.member_changed(member, self.now)
        self.step()

    def hear(self, peer, line=NO_LINE, *, apart=True, reply=False, lag=0, incarnation=1, number=None, life=1):
        self.numbers += 1
        word = Lineage(incarnation, self.numbers if number is None else number, life, apart, reply, lag, line)
        self.course.receive(word, [], peer, 0, self.now)
        self.step()

    def wait(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now += PERIOD
            self.course.handle_timer(self.now)
            self.step()

    def keep(self):
        """The driver has saved the checkpoint."""
        self.course.job_done(jobs.Keep(""), None, self.now)
        self.step()

    def fetched(self):
        joiner = self.joiners[-1]
        joiner.arrived, joiner.done = FETCHED, True
        self.step()

    def of(self, kind):
        return [event for event in self.outputs.events if isinstance(event, kind)]

    def said(self, to):
        return [e.message for e in self.outputs.messages if e.to == to and isinstance(e.message, Lineage)]

    @property
    def apart(self):
        return set(self.sides.apart)

    @property
    def line(self):
        return self.course._meeting.line


def loser(*others):
    b = Side()
    b.divide(D, E, *others)
    for peer in (D, E):
        b.hear(peer, GREATER)
    b.wait(HEARD + PERIOD)
    return b
