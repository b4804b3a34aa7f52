"""A relay that is hostile: it repeats, reorders, cuts and changes what it carries, and puts keys in the middle."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import relayed
from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.events import DialFailed, Received
from gossipdp.runtime.network.sealing import Ephemeral, Seal
from gossipdp.runtime.network.signed_hello import Carried, pack
from tests.runtime.network.test_relayed import Hidden
from tests.runtime.network.transports import PING, Net, name

Spoil = Callable[[Lane, list[Buffer]], Sequence[list[Buffer]]]


def spoils(hidden: Hidden, spoil: Spoil) -> None:
    """From now on the relay sends `spoil(lane, frames)`, any number of messages, in place of each that it carries."""
    links = hidden.relay._links

    def carry(link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
        target = links.linked(to)
        if target is not None:
            for each in spoil(lane, list(frames)):
                links._queues.write(target.connections[lane], [*pack(Carried(link.peer)), *each])

    hidden.relay._links._carrier.carry = carry  # type: ignore[method-assign]


def sealed(frames: list[Buffer]) -> bool:
    return isinstance(relayed._decoder.decode(frames[0]), relayed._Sealed)


def payloads(hidden: Hidden) -> list[bytes]:
    """First frames of the protocol's messages that arrived on the data lane."""
    events = hidden.net.events(hidden.b, Received)
    return [bytes(event.frames[0]) for event in events if event.lane is Lane.DATA]


def test_repeated_messages_arrive_once(net: Net) -> None:
    hidden = Hidden(net)
    hidden.link()
    spoils(hidden, lambda lane, frames: [frames, frames])
    for number in range(3):
        hidden.send([b"\x90%d" % number], Lane.DATA)
    net.until(lambda: hidden.b.counters.drops["malformed"] >= 3)
    assert payloads(hidden) == [b"\x900", b"\x901", b"\x902"]


def test_message_that_comes_after_a_later_one_is_refused(net: Net) -> None:
    hidden, held = Hidden(net), list[list[Buffer]]()
    hidden.link()

    def swap(lane: Lane, frames: list[Buffer]) -> list[list[Buffer]]:
        if lane is Lane.CONTROL:
            return [frames]
        held.append(frames)
        return held[::-1] if len(held) == 2 else []

    spoils(hidden, swap)
    for number in range(2):
        hidden.send([b"\x90%d" % number], Lane.DATA)
    net.until(lambda: hidden.b.counters.drops["malformed"])
    assert payloads(hidden) == [b"\x901"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frames: frames[:-1],
        lambda frames: [*frames, frames[-1]],
        lambda frames: [frames[0], frames[2], frames[1]],
        lambda frames: [frames[0], bytes(len(frames[1])), frames[2]],
        lambda frames: [b"\x93not a parcel", *frames[1:]],
        lambda frames: [],
    ],
    ids=["cut", "longer", "moved", "changed", "malformed", "empty"],
)
def test_spoilt_messages_are_counted_and_the_link_stays(net: Net, spoil: Callable[[Any], list[Buffer]]) -> None:
    hidden, spoilt = Hidden(net), [True]
    hidden.link()
    spoils(hidden, lambda lane, frames: [spoil(frames) if lane is Lane.DATA and spoilt[0] else frames])
    hidden.send([b"\x90one", b"payload"], Lane.DATA)
    net.until(lambda: hidden.b.counters.drops["malformed"])
    assert not payloads(hidden)
    spoilt[0] = False
    hidden.send([b"\x90two", b"payload"], Lane.DATA)
    net.until(lambda: payloads(hidden))
    assert payloads(hidden) == [b"\x90two"]


class Middle:
    """A relay that makes a key pair of its own for each side of each stream, and reads what it passes on."""

    def __init__(self, hidden: Hidden) -> None:
        self.read: list[bytes] = []
        self._mine: dict[bytes, tuple[Ephemeral, Ephemeral]] = {}
        self._seals: dict[bytes, tuple[Seal, Seal]] = {}
        """stream -> seals towards the dialler and towards the listener"""
        self._theirs: dict[bytes, bytes] = {}
        spoils(hidden, self.spoil)

    def spoil(self, lane: Lane, frames: list[Buffer]) -> list[list[Buffer]]:
        parcel = relayed._decoder.decode(frames[0])
        match parcel:
            case relayed._Begin(stream, key):
                self._mine[stream], self._theirs[stream] = (Ephemeral(), Ephemeral()), key
                return [[relayed._encoder.encode(relayed._Begin(stream, self._mine[stream][1].public))]]
            case relayed._Began(stream, key):
                near, far = self._mine[stream]
                shown = near.public
                self._seals[stream] = near.listener(self._theirs[stream]), far.dialler(key)
                return [[relayed._encoder.encode(relayed._Began(stream, shown))]]
            case relayed._Sealed(stream, number):
                for source, target in (self._seals[stream], self._seals[stream][::-1]):
                    try:
                        plain = source.open(number, frames[1:])
                    except Exception:
                        continue
                    self.read += [bytes(each) for each in plain]
                    again, boxes = target.seal(plain)
                    return [[relayed._encoder.encode(relayed._Sealed(stream, again)), *boxes]]
        return [frames]


def test_relay_with_keys_of_its_own_in_the_middle_is_found_out__although_it_has_the_networks_secret(net: Net) -> None:
    hidden = Hidden(net)
    middle = Middle(hidden)
    secret = secrets.token_bytes(16)
    hidden.send([b"\x90" + secret], Lane.DATA)
    net.until(lambda: net.events(hidden.a, DialFailed))
    assert net.events(hidden.a, DialFailed)[0].code == "GD-202"
    assert not net.events(hidden.b, Received) and not any(link.via for link in hidden.b.links())
    assert middle.read and not any(secret in each for each in middle.read), "it has read the hello and nothing else"


def test_relay_that_says_a_stream_is_from_another_peer_gains_no_link(net: Net) -> None:
    hidden = Hidden(net)
    other = net.peer(listen=None)
    links = hidden.relay._links

    def carry(link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
        target, origin = links.linked(to), name(other) if link.peer == name(hidden.a) else link.peer
        if target is not None:
            links._queues.write(target.connections[lane], [*pack(Carried(origin)), *frames])

    links._carrier.carry = carry  # type: ignore[method-assign]
    hidden.send(PING)
    net.settle(0.5)
    assert not net.events(hidden.b, Received) and not any(link.via for link in hidden.b.links())


def test_flood_of_streams_costs_few_key_exchanges(net: Net) -> None:
    hidden = Hidden(net)
    hidden.link()
    spoils(
        hidden,
        lambda lane, frames: [
            frames,
            *(
                [relayed._encoder.encode(relayed._Begin(secrets.token_bytes(16), Ephemeral().public))]
                for _ in range(100)
            ),
        ],
    )
    hidden.send(PING)
    net.until(lambda: hidden.b.counters.drops["unverified"] >= 90)
    assert len(hidden.b._links._relayed._unproven()) <= relayed.UNPROVEN
    assert net.events(hidden.b, Received)
