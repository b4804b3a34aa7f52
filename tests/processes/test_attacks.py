"""Young members and strangers attack real daemons, each in one way. Daemons train on, and a newcomer gets in."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission.packing import pack as packed
from gossipdp.protocol.admission.statements import receipt
from gossipdp.protocol.data.blocks import pack
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import (
    Coverage,
    Decision,
    Decisions,
    Lane,
    Line,
    Lineage,
    Member,
    Message,
    Offer,
    Ping,
    PingRequest,
    Progress,
    PushPull,
    State,
    Verdict,
)
from gossipdp.runtime import files
from gossipdp.runtime.link.data_client import DataLink, Group
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.invite import HostInvite
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.transport import Transport
from peers import invites
from peers.home_records import MEMBERS
from simulations.processes.namespaces.processes import NETWORK
from tests.processes.hostile_member import HostileMember
from tests.processes.running import Host, Network, gossipdp, until
from tests.processes.test_attacked import limited, strangers
from tests.runtime.network.transports import Relay

pytestmark = pytest.mark.processes

SIZE = 20_000
BEAT = 0.2
"""seconds between two messages of an attack to each host"""
BEATS = 20
"""beats of an attack, at least"""
MORE = 4
"""exchanges of each honest host during an attack, at least"""
WIDE = "\U0001f600"
"""a character of four bytes"""


@dataclass(frozen=True)
class Attack:
    goes: Callable[["Siege"], Iterator[bool]]
    """Makes one beat at a time, and tells whether the attack has begun."""
    keys: int = 1
    ignores: tuple[type[Message], ...] = ()
    files: int = 0
    """limit of open files of each honest daemon; 0: the machine's"""
    code: str = ""
    """of the notice that an honest host gives"""
    newcomer: int = 2
    """exchanges of a newcomer during the attack, at least"""


class Siege:
    """An attack on running hosts, which goes on while `beat` is called."""

    def __init__(self, network: Network, honest: list[Host], attack: Attack) -> None:
        self.network, self.honest = network, honest
        self.keys = [HostileMember(honest, f"key-{number}", attack.ignores) for number in range(attack.keys)]
        self._ids = {bytes.fromhex(host.status()["id"]) for host in honest}
        self._goes, self.beats = attack.goes(self), 0

    def targets(self) -> Iterator[tuple[HostileMember, Member]]:
        """Each hostile key, and each honest member that it knows."""
        for key in self.keys:
            yield from ((key, member) for member in key.victims() if member.id in self._ids)

    def tell(self, message: Message, *buffers: bytes) -> None:
        """Send `message` from each key to each honest member."""
        for key, member in self.targets():
            key.say(member, message, *buffers)

    def transport(self, limits: TransportLimits | None = None) -> Transport:
        """The links of one more key, without a peer."""
        secret, identity = self.honest[0].secret(), Identity.generate()
        return Transport(identity, secret, network=NETWORK, run=b"", incarnation=1, listen=None, limits=limits)

    def beat(self) -> None:
        ended = [host.last_words() for host in self.honest if host.ends()]
        assert not ended, ended[0]
        if len(list(self.targets())) == len(self.keys) * len(self.honest):
            self.beats += next(self._goes)
        for key in self.keys:
            key.act(BEAT / len(self.keys), BEAT)

    def close(self) -> None:
        with ExitStack() as stack:
            for key in self.keys:
                stack.callback(key.close)
            self._goes.close()  # type: ignore[attr-defined]


def number(siege: Siege) -> int:
    return siege.keys[0].random.getrandbits(60)


# -- attacks ---------------------------------------------------------------------------------------------------------


def smallest_speed(siege: Siege) -> Iterator[bool]:
    while True:
        siege.tell(Ping(number(siege), (), (), 5e-324))
        yield True


def receipts_of_an_invite(siege: Siege) -> Iterator[bool]:
    """Genuine receipts of one host's invite, for hosts that do not exist: ten messages at once, of falling ids."""
    founder, top = siege.honest[0], 1 << 254
    done = gossipdp("invite", "--for", "guest", "--expires", "10m", "--home", str(founder.home))
    assert done.returncode == 0, done.stderr
    invite = invites.read_invite((founder.home / "invites" / "guest").read_text()).invite
    assert isinstance(invite, HostInvite)
    key, made, begun = Identity(invite.key), list[bytes](), False
    while True:
        top -= 4000
        ids = ((top - number).to_bytes(32, "big") for number in range(4000))
        made.append(packed([invite.decision], [receipt(invite.decision, peer, NETWORK, key.sign) for peer in ids]))
        if len(made) == 10:
            for buffer in made:
                siege.tell(Decisions(invite.operator), buffer)
            made, begun = [], True
        yield begun


def ghosts_and_longest_records(siege: Siege) -> Iterator[bool]:
    """More members that left than one part of a digest has room for, and suspects with the longest records."""
    identities = [Identity.generate() for _ in range(4)]
    signers = [Signer(identity.sign, Identity.verify) for identity in identities]
    for first in range(0, 520, 20):
        gone = []
        for _ in range(20):
            ghost = Identity.generate()
            left = Member(ghost.id, "g", "", 1, 0, State.LEFT)
            gone.append(Signer(ghost.sign, Identity.verify).sign_member(left))
        siege.tell(PushPull(False, tuple(gone)))
        yield first > 256
    refutation = 0
    while True:
        refutation += 1
        for which, (identity, signer) in enumerate(zip(identities, signers, strict=True)):
            letter = (WIDE, "a")[which % 2]
            places = (letter * 64, letter * 63 + "b", letter * 63 + "c", letter * 63 + "d")
            record = Member(identity.id, letter * 48, places[0], 1, refutation, State.ALIVE, software=letter * 16)
            record = signer.sign_member(replace(record, others=places[1:]))
            accusers = tuple(member.id for _, member in siege.targets())
            siege.tell(PushPull(False, (record,)))
            siege.tell(PushPull(False, (replace(record, state=State.SUSPECT, accusers=accusers),)))
        yield True


def greater_lines(siege: Siege) -> Iterator[bool]:
    """Each key says that it trained apart, on the greatest side there can be."""
    line, count = Line(0xFFFF_FFF0, 0xFF_FFFF, 1 << 40, 0xFFFF_FFF0, siege.keys[0].identity.id), 0
    while True:
        count += 1
        for key, member in siege.targets():
            key.say(member, Lineage(1, count, member.incarnation, True, False, 0, line))
        yield True


def far_ranges(siege: Siege) -> Iterator[bool]:
    """A member that trains claims ranges without bound in each exchange."""

    def hostile(argv: list[str]) -> list[str]:
        script = str(Path(__file__).with_name("far_ranges.py"))
        return [argv[0], script, *argv[argv.index("peers.daemon") + 1 :]] if "peers.daemon" in argv else list(argv)

    host = joined(siege.network, "far", within=hostile)
    while True:
        yield host.exchanges() >= 2


def forged_decisions(siege: Siege) -> Iterator[bool]:
    forged = [Decision(1 << 40, Verdict.NONE, token_bytes(32), time=1, signature=token_bytes(64)) for _ in range(4000)]
    invite = invites.read_invite((siege.honest[0].home / "invite").read_text()).invite
    buffer = packed(forged, ())
    while True:
        siege.tell(Decisions(invite.operator), buffer)
        yield True


def all_blocks_finished(siege: Siege) -> Iterator[bool]:
    """A reader of each honest host takes a beat for each block, and gets those of the first epoch all the while."""
    data, count, taken = token_bytes(16), 1 << 14, 0
    claims = pack((1 << count) - 1, count), pack(0, count)
    with ExitStack() as stack:
        links = [DataLink(host.home) for host in siege.honest]
        for link in links:
            stack.callback(link.close)
            link.begin(Group(token_bytes(16), 1, 0, 0, data, "set", count))
        while True:
            leased = [(link, link.next(taken)) for link in links]
            assert all(block is not None and block[0] == 0 for _, block in leased), "the pass is over"
            taken += 1
            # A reader that does not know yet how long a block takes believes all.
            yield taken > 4
            for link, block in leased:
                link.used(*block)  # type: ignore[misc]
            if taken > 4:
                siege.tell(Coverage(data, "set", count, 0, False), *claims)


def false_clock(siege: Siege) -> Iterator[bool]:
    while True:
        for key, member in siege.targets():
            report = Progress(key.identity.id, 1 << 31, 9, 9, 9)
            report = Signer(key.identity.sign, Identity.verify).sign_progress(report)
            key.say(member, Ping(number(siege), (), (report,)))
        yield True


def call_to_finish(siege: Siege) -> Iterator[bool]:
    while True:
        for key in siege.keys:
            key.peer.finish(time.monotonic(), calls=True)
        yield True


def unanswered_offers(siege: Siege) -> Iterator[bool]:
    """Keys that say that they train, and answer no offer."""
    while True:
        siege.tell(Ping(number(siege), (), (), 45.0))
        yield any(key.ignored for key in siege.keys)


def places_for_links(siege: Siege) -> Iterator[bool]:
    """Keys that hold more links with the founder than it has places, and use them."""
    address = siege.honest[0].address
    with ExitStack() as stack:
        keys = [siege.transport() for _ in range(24)]
        for key in keys:
            stack.callback(key.close, 0)
        while True:
            for key in keys:
                key.send(b"", address, Lane.CONTROL, encode(Ping(number(siege))))
                key.poll(0.0)
            yield sum(len(key.links()) for key in keys) >= 8


def unfinished_handshakes(siege: Siege) -> Iterator[bool]:
    with strangers(siege.honest[0], 600, 2000):
        while True:
            yield True


def message_without_end(siege: Siege) -> Iterator[bool]:
    """A message of 200 MiB stops before its last frame comes."""
    founder = siege.honest[0]
    with Relay(int(founder.address.rpartition(":")[2]), most=200 << 20) as relay, ExitStack() as stack:
        key = siege.transport(TransportLimits(queue_bytes=1 << 30))
        stack.callback(key.close, 0)
        target = next(member for _, member in siege.targets() if member.name == founder.name)
        address = f"127.0.0.1:{relay.port}"
        while not key.links():
            key.send(target.id, address, Lane.CONTROL, encode(Ping(1)))
            key.poll(0.02)
            yield False
        key.send(target.id, address, Lane.DATA, [b"\x93x", *[bytes(4 << 20)] * 60])
        while True:
            key.poll(0.0)
            yield relay.stalled.is_set() or not key.links()


def dial_back_elsewhere(siege: Siege) -> Iterator[bool]:
    """Asks to be dialled back, and to have a member pinged, at a port of another host."""
    with socket.create_server(("127.0.0.2", 0)) as other:
        other.setblocking(False)
        address = f"127.0.0.2:{other.getsockname()[1]}"
        while True:
            asked = [key.transport.ask_to_dial_back(member.id, address) for key, member in siege.targets()]
            siege.tell(PingRequest(number(siege), token_bytes(32), address))
            with suppress(BlockingIOError):
                raise AssertionError(f"dialled by {other.accept()[1]}")
            yield all(asked)


ATTACKS = {
    "speed": Attack(smallest_speed),
    "receipts": Attack(receipts_of_an_invite),
    "records": Attack(ghosts_and_longest_records),
    "lines": Attack(greater_lines, keys=2),
    "ranges": Attack(far_ranges),
    "decisions": Attack(forged_decisions),
    "data": Attack(all_blocks_finished),
    "clock": Attack(false_clock),
    # A host that has just joined knows no member for long, so it follows the call: docs/security.md.
    "finish": Attack(call_to_finish, code="GD-406", newcomer=0),
    "offers": Attack(unanswered_offers, keys=4, ignores=(Offer,)),
    "links": Attack(places_for_links, files=256),
    "strangers": Attack(unfinished_handshakes, code="GD-104"),
    "endless": Attack(message_without_end, code="GD-402"),
    "dial-back": Attack(dial_back_elsewhere),
}


# -- what holds ------------------------------------------------------------------------------------------------------


def know_for_long(hosts: list[Host]) -> None:
    """Write into the home of each host, before it starts, that it has known the others for long."""
    ids = {host.name: Identity.load_or_create(host.home).id.hex() for host in hosts}
    rows = [files.Remembered(id=ids[host.name], name=host.name, address=host.address, known=1e6) for host in hosts]
    for host in hosts:
        files.save_members(host.home / MEMBERS, [row for row in rows if row.name != host.name])


def joined(network: Network, name: str, within: Callable[[list[str]], list[str]] = list) -> Host:
    """A further host that starts now, with the founder's invite."""
    host = Host(network.directory, name, founder=False, size=SIZE, within=within)  # type: ignore[arg-type]
    network.hosts.append(host)
    host.settle_in((network.founder.home / "invite").read_text())
    host.start_daemon()
    host.start_training()
    return host


def check(siege: Siege, before: list[dict[str, Any]], code: str) -> None:
    """Each daemon lives and exchanges as its rounds ask for, and no model and no run was given up."""
    for host, status in zip(siege.honest, before, strict=True):
        now, text = host.status(), host.text()
        assert now["state"] == "ready" and now["training"] == "attached"
        assert now["clock"] < status["clock"] + 100_000
        exchanges, rounds = now["exchanges"]["done"] - status["exchanges"]["done"], now["round"] - status["round"]
        assert exchanges >= rounds / 4, host.last_words()
        for word in ("re-sync", "finishing", "GD-509", "Traceback"):
            assert word not in text, host.last_words()
    means = [host.mean() for host in siege.honest]
    assert max(means) - min(means) < 1.0, means
    assert not code or any(code in host.text() for host in siege.honest)


@pytest.mark.long
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_of_young_members_or_strangers__daemons_train_on_and_a_newcomer_gets_in(
    network: Callable[..., Network], name: str
) -> None:
    attack = ATTACKS[name]
    net = network(3, size=SIZE, within=limited(attack.files))
    honest = list(net.hosts)
    net.settle_in()
    know_for_long(honest)
    for host in honest:
        host.start_daemon()
        host.start_training()
    net.until_it_runs()
    before = [host.status() for host in honest]
    siege = Siege(net, honest, attack)
    try:
        until("the attack begins", lambda: siege.beats, honest, meanwhile=siege.beat)
        counts, newcomer = [host.exchanges() for host in honest], joined(net, "newcomer")

        def came_to() -> tuple[int, ...]:
            gained = [min(MORE, host.exchanges() - count) for host, count in zip(honest, counts, strict=True)]
            return min(BEATS, siege.beats), min(attack.newcomer, newcomer.exchanges()), *gained

        goal = (BEATS, attack.newcomer, *[MORE] * len(honest))
        until("all exchange", lambda: came_to() == goal, net.hosts, moves=came_to, meanwhile=siege.beat)
        check(siege, before, attack.code)
    finally:
        siege.close()
