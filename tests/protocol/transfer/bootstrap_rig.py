"""A peer that comes back with a checkpoint. The test speaks for all other members."""

from random import Random

from gossipdp.protocol import jobs
from gossipdp.protocol.course.election import LISTEN
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Member, PushPull, Standing, State
from simulations.simulator.settings import peer_config

SCHEMA = Schema.of([("w", (300,), "float32", "parameter")])
SETTINGS = b"the settings...."
HELD = Held(100, 10)
RESUME = 20.0
HEARD = LISTEN * LOCAL.join_interval
A, B, C, D = (bytes([letter]) * 32 for letter in b"abcd")


def record(peer, *, incarnation=1, state=State.ALIVE):
    return Member(peer, chr(peer[0]), f"10.0.0.{peer[0]}:1", incarnation, 0, state)


class Returning:
    """Peer B comes back. The test speaks for all others."""

    def __init__(self, held=HELD, remembered=(A, C), every=5, addresses=("10.0.0.9:1",)):
        config = peer_config(
            settings=SETTINGS,
            transfer=TransferConfig(manifest=2.0, chunk=1.0, silence=3.0),
            every=every,
            resume_after=RESUME,
        )
        self.now, self.sent, self.asked, self.events = 0.0, [], [], []
        self.speaking = {}
        self.peer = Peer(config, record(B), random=Random(5), sign=bytes, verify=lambda peer, data, sign: True, now=0.0)
        self.peer.join(addresses, 0.0, remembered=[record(peer) for peer in remembered], resume=held)
        self.collect()

    def collect(self):
        self.sent += [(said.to, said.message) for said in self.peer.messages_to_send()]
        while (job := self.peer.next_job()) is not None:
            self.asked.append(job)
        while (event := self.peer.next_event()) is not None:
            self.events.append(event)

    def tell(self, source, message, buffers=()):
        self.peer.receive(wire.encode(message, buffers), source, self.now)
        self.collect()

    def meet(self, *peers, incarnation=1):
        for peer in peers:
            self.speaking[peer] = incarnation
            self.tell(peer, PushPull(False, (record(peer, incarnation=incarnation),)))

    def says(self, source, has, clock=0, rounds=0, *, incarnation=1, reply=False):
        self.tell(source, Standing(incarnation, has, clock, rounds, reply))

    def run(self, until):
        """Members that were met stay alive: they say so ten times a second."""
        while self.now < until - 1e-9:
            self.now = round(self.now + 0.1, 6)
            for peer, incarnation in self.speaking.items():
                self.tell(peer, PushPull(False, (record(peer, incarnation=incarnation),)))
            timer = self.peer.timer()
            if timer is not None and timer <= self.now:
                self.peer.handle_timer(self.now)
                self.collect()

    def of(self, kind, to=None):
        return [message for peer, message in self.sent if isinstance(message, kind) and to in (None, peer)]

    @property
    def restores(self):
        return self.asked.count(jobs.Restore())
