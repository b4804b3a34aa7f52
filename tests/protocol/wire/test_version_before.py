"""The protocol versions before this one: their frames are unchanged, and peers that speak them take part.

`frames-3.txt` to `frames-5.txt` hold the golden frames of versions 3 to 5, but for messages that were removed since.
They never change. Peers of later versions write frames of version 3, so all are spoken.
"""

from collections import Counter
from pathlib import Path

import msgpack
import pytest

from gossipdp.codecs import CODECS
from gossipdp.protocol.events import ExchangeEnded, MessageDropped, UpdateRefused
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.pairwise.block_layout import Named
from gossipdp.protocol.wire.encoding import decode, encode
from gossipdp.protocol.wire.messages import OLDEST_VERSION, PROTOCOL_VERSION, Accept, Offer
from gossipdp.protocol.wire.table import MESSAGES
from simulations.simulator.host import Host
from tests.protocol.admission.deciding import OPERATOR, ban
from tests.protocol.peer_rig import Town
from tests.protocol.wire.test_frames import example, fingerprint

BEFORE = (3, 4, 5)
KINDS = {
    version: dict(line.split() for line in Path(__file__).with_name(f"frames-{version}.txt").read_text().splitlines())
    for version in BEFORE
}
IDS = {kind.__name__: number for number, kind in MESSAGES.items()}


def test_versions_before_are_spoken() -> None:
    assert (*BEFORE, PROTOCOL_VERSION) == tuple(range(OLDEST_VERSION, PROTOCOL_VERSION + 1))


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in BEFORE for name in KINDS[version]])
def test_frames_of_the_versions_before_are_unchanged(version: int, name: str) -> None:
    kind = MESSAGES[IDS[name]]
    assert fingerprint(kind) == KINDS[version][name]
    frames = encode(*example(kind))
    assert msgpack.unpackb(bytes(frames[0]))[0] <= version and decode(frames)[0] == example(kind)[0]


@pytest.mark.parametrize("before", BEFORE)
def test_peers_of_two_versions_train_together__and_the_older_gets_only_what_it_knows(before: int) -> None:
    """What reaches peer 2, which speaks `before`, is read as that version would."""
    got: Counter[str] = Counter()
    codecs: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    old: list[bytes] = []

    def read(host: Host, envelope: Envelope) -> list[Envelope]:
        version, number = msgpack.unpackb(bytes(envelope.frames[0]))[:2]
        name = MESSAGES[number].__name__
        if envelope.to in old:
            assert OLDEST_VERSION <= version <= before, f"version {before} refuses every other number"
            assert name in KINDS[before], f"version {before} does not know this message"
            got[name] += 1
        if name in ("Offer", "Accept"):
            message = decode(envelope.frames)[0]
            assert isinstance(message, Offer | Accept)
            codecs[envelope.to in old or host.id in old][message.codec] += 1
        return [envelope]

    town = Town(3, OPERATOR, versions={2: before}, tampers=read)
    old.append(town.hosts[2].id)
    for index in range(3):
        town.start(index, found=index == 0)
        town.train(index)
    town.run(20.0)
    town.net.command(town.hosts[0], "decide", lambda peer: peer.decide(ban(b"x" * 32), town.net.now))
    town.run(40.0)
    # A host of this town that speaks an earlier version knows no operator.
    assert not town.peer(1)._admission.admits(b"x" * 32) and town.peer(2)._admission.admits(b"x" * 32)
    for index in range(3):
        assert sum(event.chunks > 0 for event in town.of(index, ExchangeEnded)) > 5
        assert not town.of(index, MessageDropped) and not town.of(index, UpdateRefused)
    assert {"Ping", "Pong", "PushPull", "StateManifest", "Data", "Ack"} <= set(got)
    named = {old: {Named.of(name)[1:] for name in codecs[old]} for old in codecs}
    assert named == {True: {(before >= 5, False)}, False: {(True, True)}}, "blocks and grids of the older version"
    assert all(Named.of(name).codec in CODECS for name in codecs[True])
    assert {town.peer(0).view.members[host.id].version for host in town.hosts} == {before, PROTOCOL_VERSION}
