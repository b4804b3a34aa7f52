"""The two sides of one exchange. The test loses, repeats or delays their messages."""

import math
from collections import deque

import numpy as np

from gossipdp.protocol import jobs
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.exchange import Deadlines, Terms
from gossipdp.protocol.pairwise.initiator import Initiator
from gossipdp.protocol.pairwise.responder import Responder
from gossipdp.protocol.pairwise.timing import Timing
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Accept, End
from simulations.simulator.settings import pairwise

CHUNKS, WIDTH = 3, 256
INITIATOR, RESPONDER = b"i" * 32, b"r" * 32
EXCHANGE = 1 << 32 | 7
DEADLINES = Deadlines(ask=1.0, silence=10.0, doubt=5.0)


def terms(partner, codec, window, rate=float("inf")):
    return Terms(
        partner=partner,
        incarnation=1,
        initiator=INITIATOR,
        exchange=EXCHANGE,
        chunks=CHUNKS,
        size=CHUNKS * WIDTH,
        first=1,
        coding=jobs.Coding(codec=codec, lower=partner == RESPONDER),
        mixing=jobs.Mixing(weight=0.5, pull=0.0),
        window=window,
        rate=rate,
    )


class Side:
    """One machine with its vectors. `work` runs its jobs, `post` takes its messages."""

    def __init__(self, seed, spread):
        self.outputs, self.algorithm, self.machine = Outputs(), pairwise(), None
        self.algorithm.allocate(CHUNKS * WIDTH, CHUNKS * WIDTH, WIDTH)
        rng = np.random.default_rng(seed)
        self.algorithm.ledger.a[:] = rng.standard_normal(CHUNKS * WIDTH) * spread
        self.algorithm.range[:] = spread
        self.algorithm._step[:] = 10.0 * spread * math.sqrt(WIDTH)  # so that nothing is clipped
        self.start = self.algorithm.ledger.a.copy()
        self.events, self.alive, self.mixed = [], True, []

    @property
    def a(self):
        return self.algorithm.ledger.a

    def work(self, now):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(result, jobs.Turn):
                if result.mixed:
                    self.mixed.append(job.key.chunk)
                self.machine.job_done(job, result, now)
        self.events += self.outputs.events
        self.outputs.events.clear()

    def post(self):
        sent = list(self.outputs.messages)
        self.outputs.messages.clear()
        return sent

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class Pair:
    """Both machines and the wire between them. Every message is decoded from its frames."""

    def __init__(self, codec="modulo8", window=2, spread=0.1, rate=float("inf"), usual=None, ends=math.inf):
        self.now, self.tempo = 0.0, Timing(DEADLINES.ask)
        if usual is not None:
            self.tempo.exchanged(1, usual)
        self.initiator, self.responder = Side(1, spread), Side(2, spread)
        accept = Accept(EXCHANGE, codec, 0.5, 0.0, window, 1)
        offered, accepted = terms(RESPONDER, codec, window, rate), terms(INITIATOR, codec, window, rate)
        self.responder.machine = Responder(accepted, accept, self.responder.outputs, DEADLINES, now=0.0)
        self.accept = self.responder.post()
        outputs = self.initiator.outputs
        self.initiator.machine = Initiator(offered, outputs, DEADLINES, now=0.0, timing=self.tempo, until=ends)
        self.wire: deque[tuple[Side, object]] = deque()
        self.said = []

    def sides(self):
        return self.initiator, self.responder

    def gather(self):
        """Run jobs and put the messages on the wire, each with its receiver."""
        for side, other in (self.sides(), self.sides()[::-1]):
            if side.alive:
                side.work(self.now)
                for envelope in side.post():
                    self.said.append(envelope.message)
                    self.wire.append((other, envelope))

    def deliver(self, side, envelope):
        if side.alive and side.machine is not None:
            message, buffers = wire.decode(envelope.frames)
            side.machine.receive(message, list(buffers), 100, self.now)

    def unknown(self):
        """The responder remembers nothing: what averaging would answer."""
        self.initiator.machine.receive(End(EXCHANGE, False, "unknown"), [], 10, self.now)

    def play(self, mangle=lambda number, item, wire: [item], until=200.0):
        """To rest. `mangle` says what becomes of message `number`: a list of (hearer, envelope)."""
        number = 0
        while True:
            self.gather()
            if self.wire:
                item = self.wire.popleft()
                for hearer, envelope in mangle(number, item, self.wire):
                    self.deliver(hearer, envelope)
                    self.gather()
                number += 1
                continue
            timers = [side.machine.timer() for side in self.sides() if side.alive]
            due = min((time for time in timers if time is not None), default=None)
            if due is None or due > until:
                return number
            self.now = due
            for side in self.sides():
                if side.alive:
                    side.machine.handle_timer(self.now)

    def check(self, chunks=range(CHUNKS)):
        """The sum has not moved; `chunks` are averaged, the others as they were; nothing is left open."""
        i, r = self.sides()
        np.testing.assert_allclose(i.a.astype(np.float64) + r.a, i.start.astype(np.float64) + r.start, atol=1e-6)
        for chunk in range(CHUNKS):
            span = slice(chunk * WIDTH, (chunk + 1) * WIDTH)
            if chunk in chunks:
                np.testing.assert_allclose(i.a[span], r.a[span], atol=0.03)
            else:
                assert (i.a[span] == i.start[span]).all() and (r.a[span] == r.start[span]).all()
        for side in self.sides():
            assert sorted(side.mixed) == sorted(chunks)
            assert not side.algorithm._open
        assert i.machine.settled and r.machine.ended


def transcript(**options):
    pair = Pair(**options)
    count = pair.play()
    pair.check()
    return pair.said, count


MESSAGES = 4 * CHUNKS + 1
"""of an exchange that nothing disturbs"""
