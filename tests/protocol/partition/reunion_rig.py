"""A reunion as the tests drive it: peer B, and a test that speaks for all other members."""

from random import Random

from gossipdp.protocol.course.age import Age
from gossipdp.protocol.course.facts import Facts
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.lines import NO_LINE
from gossipdp.protocol.partition.reunion import Reunion
from gossipdp.protocol.partition.sides import FREEZE
from gossipdp.protocol.partition.verdict import HEARING
from gossipdp.protocol.transfer.arrived import Arrived, Origin
from gossipdp.protocol.wire.messages import Line, Lineage, Member, State

EVERY, ROUNDS = 5, 10
PERIOD = LOCAL.join_interval
HEARD, FROZEN = HEARING * PERIOD, FREEZE * PERIOD
LONG = EVERY * ROUNDS
A, B, C, D, E, F = (bytes([letter]) * 32 for letter in b"abcdef")
GREATER = Line(1, 5, 300, 30, D)
MINE = Line(1, 3, 150, 30, B)
"""The line of B's side in `loser`, and after `divide(D, E)`."""


def record(peer, state=State.ALIVE, incarnation=1, *, outbound=False):
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
        return sorted((m for m in others if m.state in (State.ALIVE, State.SUSPECT)), key=lambda m: m.id)

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


class Side:
    """Peer B has the model, and A and C are of its side. The test speaks for all others."""

    def __init__(self, side=(A, C), me=B, every=EVERY, *, waits=False):
        """waits: a training process waits for a newer model, and A and C are to give it."""
        self.side = side
        self.view, self.outputs, self.progress = View(me), Outputs(), ProgressBoard(me)
        self.now, self.own, self.held, self.quiet = 1000.0, Own(100, 20, 0, 0.0), [], True
        self.joiners, self.done, self.numbers, self.finishing = [], [], 0, False
        self.reunion = Reunion(
            self.view, self.progress, self.joiner, random=Random(3), outputs=self.outputs, apart_rounds=ROUNDS,
            every=every, me=lambda: self.own, hold=self.hold, done=lambda *what: self.done.append(what),
            age=Age(idle=waits), facts=self.facts, givers=self.givers, finishing=lambda: self.finishing,
        )  # fmt: skip
        self.reunion.ready(b"", [], 0.0)
        for peer in side:
            self.see(peer, at=0.0)

    def facts(self):
        return Facts(
            clock=self.own.clock, every=EVERY, waits=True, begins=False, ends=False, spare=False, last=False,
            closing=False, closes=False,
        )  # fmt: skip

    def givers(self):
        return [peer for peer in self.side if peer not in self.reunion.apart]

    def joiner(self, newer_than):
        self.joiners.append(Fetching())
        return self.joiners[-1]

    def hold(self, held, now):
        self.held.append(held)
        return self.quiet

    def see(self, peer, state=State.ALIVE, incarnation=1, at=None):
        member = self.view.members[peer] = record(peer, state, incarnation)
        self.reunion.member_changed(member, self.now if at is None else at)
        self.step()

    def step(self):
        self.reunion.step(self.now)

    def train(self, rounds):
        self.own = self.own._replace(clock=self.own.clock + EVERY * rounds, rounds=self.own.rounds + rounds)

    def divide(self, *others, rounds=ROUNDS):
        """The others are lost, this peer trains `rounds`, and they come back."""
        for peer in others:
            self.see(peer, at=0.0)
        for peer in others:
            self.see(peer, State.FAILED)
        self.train(rounds)
        for peer in others:
            member = self.view.members[peer] = record(peer)
            self.reunion.member_changed(member, self.now)
        self.step()

    def hear(self, peer, line=NO_LINE, *, apart=True, reply=False, lag=0, incarnation=1, number=None, life=1):
        self.numbers += 1
        word = Lineage(incarnation, self.numbers if number is None else number, life, apart, reply, lag, line)
        self.reunion.receive(word, peer, self.now)
        self.step()

    def wait(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now += PERIOD
            self.reunion.handle_timer(self.now)
            self.step()

    def keep(self):
        """The driver has saved the checkpoint."""
        self.reunion.follower.kept()
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
        return set(self.reunion.apart)

    @property
    def line(self):
        return self.reunion.line


def loser(*others):
    b = Side()
    b.divide(D, E, *others)
    for peer in (D, E):
        b.hear(peer, GREATER)
    b.wait(HEARD + PERIOD)
    return b
