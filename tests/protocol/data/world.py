"""Hosts that share leases: messages arrive at once, and the test sets the time."""

import hashlib
from functools import cache
from random import Random

from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import DataSet, Lease, pack
from gossipdp.protocol.data.leasing import Leasing
from gossipdp.protocol.data.rendezvous import weights
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Coverage, Member, Ping, Reader, State
from tests.protocol.membership.machines import membership_of

BLOCKS = 60
DATA = DataSet(b"what is read now"[:16], "data", BLOCKS)


def peer(number: int) -> bytes:
    return hashlib.blake2b(bytes([number]), digest_size=32).digest()


@cache
def weight(member: bytes, block: int, blocks: int) -> int:
    bits = [str(part >> block & 1) for part in weights(member, blocks)]
    return int("".join(bits), 2)


def word(epoch: int = 0, *readers: Reader, reply: bool = False, finished: int = 0):
    message = Coverage(DATA.digest, "data", BLOCKS, epoch, reply, readers)
    return message, [pack(finished, BLOCKS)] * 2


class Host:
    def __init__(self, number: int, incarnation: int = 1) -> None:
        self.id, self.outputs, self.news = peer(number), Outputs(), Outputs()
        self.me = Member(self.id, f"p{number}", f"10.0.0.{number}:1", incarnation, 0, State.ALIVE)
        random = Random(number)
        self.membership = membership_of(self.me, random, self.news)
        self.leasing = Leasing(self.membership, incarnation=incarnation, random=random, outputs=self.outputs, now=0.0)
        self.used: list[Lease] = []

    def sees(self, member: Member) -> None:
        self.membership.receive(Ping(1, (member,)), member.id, 0.0)
        self.leasing.member_changed(0.0)

    def take(self, now: float, **options) -> Lease | None:
        return self.leasing.lease(DATA.digest, now, **options)

    def finish(self, lease: Lease, now: float) -> None:
        self.used.append(lease)
        self.leasing.finish(DATA.digest, lease, now)

    @property
    def table(self) -> BlockTable:
        table = self.leasing.table(DATA.digest)
        assert table is not None
        return table

    def events(self, kind):
        return [event for event in self.outputs.events if isinstance(event, kind)]


class World:
    """Hosts whose messages arrive at once. The test sets their time."""

    def __init__(self, hosts: int) -> None:
        self.now = 0.0
        self.hosts = {peer(number): Host(number) for number in range(hosts)}
        self.cut: set[bytes] = set()
        self.bytes = 0
        for one in self.hosts.values():
            for other in self.hosts.values():
                if one is not other:
                    one.sees(other.me)
        for host in self.hosts.values():
            assert host.leasing.open(DATA, 0.0)
        self.deliver()

    def __getitem__(self, number: int) -> Host:
        return self.hosts[peer(number)]

    def deliver(self) -> None:
        while any(host.outputs.messages for host in self.hosts.values()):
            for host in self.hosts.values():
                while host.outputs.messages:
                    envelope = host.outputs.messages.popleft()
                    message, buffers = wire.decode([bytes(frame) for frame in envelope.frames])
                    self.bytes += sum(len(bytes(frame)) for frame in envelope.frames)
                    target = self.hosts.get(envelope.to)
                    if target is not None and not self.cut & {host.id, envelope.to}:
                        target.leasing.receive(message, buffers, host.id, self.now)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = min(timer for host in self.hosts.values() if (timer := host.leasing.timer()) is not None)
            if due >= until:
                break
            self.now = max(self.now, due)
            for host in self.hosts.values():
                timer = host.leasing.timer()
                if timer is not None and timer <= self.now:
                    host.leasing.handle_timer(self.now)
            self.deliver()
        self.now = until

    def join(self, number: int) -> Host:
        late = Host(number)
        for host in self.hosts.values():
            late.sees(host.me)
            host.sees(late.me)
        self.hosts[late.id] = late
        late.leasing.open(DATA, self.now)
        self.deliver()
        return late

    def kill(self, number: int) -> None:
        lost = self.hosts.pop(peer(number)).me
        for host in self.hosts.values():
            failed = Member(lost.id, lost.name, lost.address, lost.incarnation, 0, State.FAILED)
            host.membership.receive(Ping(1, (host.me, failed)), next(iter(self.hosts)), self.now)
            host.membership.receive(Ping(1, (failed,)), bytes(32), self.now)
            host.leasing.member_changed(self.now)
