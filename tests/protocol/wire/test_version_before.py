"""The protocol version before this one: its frames are unchanged, and peers that speak it take part.

`frames-3.txt` holds the golden frames of version 3 as it was released, but for messages that were removed since. It
never changes. When version 3 is no longer spoken, the file of the next version takes its place.
"""

from collections import Counter
from pathlib import Path

import msgpack
import pytest

from gossipdp.protocol.events import ExchangeEnded, MessageDropped, UpdateRefused
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire.encoding import decode, encode
from gossipdp.protocol.wire.messages import OLDEST_VERSION, PROTOCOL_VERSION
from gossipdp.protocol.wire.table import MESSAGES
from simulations.simulator.host import Host
from tests.protocol.admission.deciding import OPERATOR, ban
from tests.protocol.peer_rig import Town
from tests.protocol.wire.test_frames import example, fingerprint

BEFORE = 3
KINDS = dict(line.split() for line in Path(__file__).with_name("frames-3.txt").read_text().splitlines())
IDS = {kind.__name__: number for number, kind in MESSAGES.items()}


def test_versions_overlap_by_one() -> None:
    assert (OLDEST_VERSION, PROTOCOL_VERSION) == (BEFORE, BEFORE + 1)


@pytest.mark.parametrize("name", KINDS)
def test_frames_of_the_version_before_are_unchanged(name: str) -> None:
    kind = MESSAGES[IDS[name]]
    assert fingerprint(kind) == KINDS[name]
    frames = encode(*example(kind))
    assert msgpack.unpackb(bytes(frames[0]))[0] == BEFORE and decode(frames)[0] == example(kind)[0]


def test_peers_of_both_versions_train_together__and_the_older_gets_only_what_it_knows() -> None:
    """Peer 2 speaks version 3: what reaches it is read as that version would."""
    got: Counter[str] = Counter()
    old: list[bytes] = []

    def read(host: Host, envelope: Envelope) -> list[Envelope]:
        if envelope.to in old:
            version, number = msgpack.unpackb(bytes(envelope.frames[0]))[:2]
            assert version == BEFORE, "version 3 refuses every other number"
            assert MESSAGES[number].__name__ in KINDS, "version 3 does not know this message"
            got[MESSAGES[number].__name__] += 1
        return [envelope]

    town = Town(3, OPERATOR, versions={2: BEFORE}, tampers=read)
    old.append(town.hosts[2].id)
    for index in range(3):
        town.start(index, found=index == 0)
        town.train(index)
    town.run(20.0)
    town.net.command(town.hosts[0], "decide", lambda peer: peer.decide(ban(b"x" * 32), town.net.now))
    town.run(40.0)
    assert not town.peer(1).admission.admits(b"x" * 32) and town.peer(2).admission.admits(b"x" * 32)
    for index in range(3):
        assert sum(event.chunks > 0 for event in town.of(index, ExchangeEnded)) > 5
        assert not town.of(index, MessageDropped) and not town.of(index, UpdateRefused)
    assert {"Ping", "Pong", "PushPull", "StateManifest", "Data", "Ack"} <= set(got)
    assert {town.peer(0).membership.members[host.id].version for host in town.hosts} == {BEFORE, PROTOCOL_VERSION}
