"""Whatever peers build at their limits, others can read: with the longest names, the largest counts and full tables."""

from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.admission.packing import MAX_RECEIPTS, MAX_SUBJECTS, pack, unpack
from gossipdp.protocol.admission.register import SECRET
from gossipdp.protocol.admission.statements import NETWORK
from gossipdp.protocol.data.blocks import DataSet
from gossipdp.protocol.data.leasing import MAX_DATA
from gossipdp.protocol.events import MessageFailed
from gossipdp.protocol.membership.progress import LARGEST
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    BOX_BYTES,
    MAX_ACCUSERS,
    MAX_ALLOWED,
    MAX_BLOCKS,
    MAX_BUFFER,
    MAX_HOLDERS,
    MAX_LEASES,
    MAX_USES,
    Decision,
    HostInvite,
    Line,
    Lineage,
    Member,
    MomentsAsk,
    MomentsChunk,
    MomentsManifest,
    MomentsRefuse,
    MomentsRequest,
    NewSecret,
    Ping,
    Pong,
    Progress,
    PushPull,
    Receipt,
    State,
    StateSample,
    StateWait,
    Verdict,
)
from gossipdp.protocol.wire.table import MESSAGES
from simulations.simulator.host import Host, sign, verify
from simulations.simulator.network import Conditions
from tests.protocol.admission.deciding import OPERATOR, ban
from tests.protocol.peer_rig import Town

WIDE = "\U0001f600"
NAME = WIDE * 48
U32, U63 = (1 << 32) - 1, (1 << 63) - 1
ONLY_NUMBERS = {MomentsAsk, MomentsChunk, MomentsManifest, MomentsRefuse, MomentsRequest, StateSample, StateWait}
"""Messages that are not sent here. Nothing that another peer says is in them. `StateSketches` replaces one."""


def signer(peer):
    return Signer(partial(sign, peer), verify)


class Extremes:
    """Peers that train under loss, with limits reached. Each message that they send is decoded."""

    def __init__(self):
        self.sent, self.unread = Counter(), []
        self.town = Town(5, OPERATOR, tampers=self.look)
        self.town.start(0, found=True)
        self.town.train(0)
        self.town.run(2.0)
        for index in (1, 2, 3):
            self.begin(index)
            self.town.run(5.0)
        self.town.net.set_conditions(Conditions(latency=0.02, loss=0.2))

    def look(self, host, envelope):
        self.sent[type(envelope.message)] += 1
        try:
            assert wire.decode(envelope.frames)[0] == envelope.message
        except RemoteProtocolError as error:
            self.unread.append(str(error))
        return (envelope,)

    def begin(self, index):
        self.town.start(index)
        self.town.train(index)

    def each(self, act):
        for host in self.town.hosts:
            if host.peer is not None:
                self.town.net.command(host, "acts", partial(act, host))

    def hear(self, source, message):
        frames, now = wire.encode(message), self.town.net.now
        self.each(lambda host, peer: host.id == source or peer.receive(frames, source, now))

    # -- limits -----------------------------------------------------------------------------------------------

    def fill_data(self):
        def fill(host, peer):
            for number in range(MAX_DATA):
                data = DataSet(bytes([number]) * 16, NAME, MAX_BLOCKS)
                assert peer.leasing.open(data, self.town.net.now)
                for _ in range(2 * MAX_LEASES):
                    peer.leasing.lease(data.digest, self.town.net.now)

        self.each(fill)

    def fill_members(self, liar):
        def widest(number):
            peer, address = number.to_bytes(32, "big"), WIDE * 16 + f".invalid:{10_000 + number}"
            ghost = Member(peer, NAME, address, U32, U32, State.LEFT, 255, WIDE * 16)
            return signer(peer).sign_member(ghost)

        for first in range(1, 500, 5):
            self.hear(liar, PushPull(False, tuple(map(widest, range(first, first + 5)))))
        self.each(
            lambda host, peer: peer.advertise([host.address, *(letter * 80 for letter in "abc")], self.town.net.now)
        )

    def largest_counts(self, *liars):
        line = Line(U32 - 15, (1 << 24) - 1, LARGEST, U32 - 15, liars[0])
        for liar in liars:
            report = signer(liar).sign_progress(Progress(liar, LARGEST, 1 << 40, 1 << 40, 1 << 24))
            self.hear(liar, Ping(9, (), (report,)))
            for host in (self.town.hosts[0], self.town.hosts[3]):
                self.hear(liar, Lineage(1, U32, host.incarnation, True, True, U63 - 5, line))

    def decide(self):
        def decide(peer):
            for number in range(64):
                subject = number.to_bytes(32, "little")
                peer.decide(ban(subject, U63, name=NAME, reason=NAME, time=U63), self.town.net.now)

        self.town.net.command(self.town.hosts[0], "decides", decide)

    def doubt(self, teller, *members):
        accusers = tuple(bytes([number]) * 32 for number in range(MAX_ACCUSERS))
        for member in members:
            known = self.town.peer(0).view.members[member]
            self.hear(teller, Pong(0, (replace(known, state=State.SUSPECT, accusers=accusers),)))


def test_peers_at_all_limits_under_loss_cuts_and_restarts__every_message_is_read_as_it_was_built(monkeypatch):
    monkeypatch.setattr(Host, "name", property(lambda host: NAME))
    made = Extremes()
    town, (_, b, c, d, _) = made.town, [host.id for host in made.town.hosts]
    made.fill_data()
    made.fill_members(b)
    made.largest_counts(b, c)
    made.decide()
    town.run(1.0)
    assert town.peer(0).view.clock >= LARGEST - 1000 and len(town.peer(0).view.members) > 400
    for _ in range(20):
        made.doubt(d, b, c)
        town.run(0.5)
    town.net.links.cut(town.hosts[:1], town.hosts[2:3])
    town.run(10.0)
    town.net.links.cut(town.hosts[:2], town.hosts[2:])
    town.run(30.0)
    town.net.links.heal()
    town.run(20.0)
    for index in (2, 3):
        town.hosts[index].save()
        town.net.stop(town.hosts[index])
        town.start(index)
    made.begin(4)
    town.run(20.0)
    assert not made.unread and not any(town.of(index, MessageFailed) for index in range(5))
    assert set(MESSAGES.values()) - set(made.sent) <= ONLY_NUMBERS


@pytest.mark.parametrize("verdict", [Verdict.BANNED, Verdict.INVITED])
def test_largest_register_fits_one_message_and_is_read(verdict):
    def ids(count):
        return tuple(number.to_bytes(32, "big") for number in range(1, count + 1))

    about = {"name": NAME, "reason": NAME, "time": U63, "signature": bytes(64)}
    secret = NewSecret(U63, U63, bytes(32), (bytes(BOX_BYTES),) * MAX_HOLDERS)
    invite = HostInvite(U63, MAX_USES, U63) if verdict is Verdict.INVITED else None
    decisions = (
        Decision(U63, Verdict.CLOSED, NETWORK, allowed=ids(MAX_ALLOWED), **about),
        Decision(U63, Verdict.RENEWED, SECRET, allowed=ids(MAX_HOLDERS), secret=secret, **about),
        *(Decision(U63, verdict, subject, invite=invite, **about) for subject in ids(MAX_SUBJECTS)),
    )
    receipts = tuple(Receipt(peer, U63, peer, bytes(64)) for peer in ids(MAX_RECEIPTS + MAX_HOLDERS))
    buffer = pack(decisions, receipts)
    assert len(buffer) <= MAX_BUFFER and unpack(buffer) == (decisions, receipts)
