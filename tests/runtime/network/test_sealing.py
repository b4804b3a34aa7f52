"""What two ends of a relayed connection seal: forged, changed, moved, repeated and late messages open nothing."""

from __future__ import annotations

import pytest

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.network.sealing import MOST_MESSAGES, OVERHEAD, Ephemeral, Seal

FRAMES: list[Buffer] = [b"head", b"", b"x" * 1000]


def pair() -> tuple[Seal, Seal]:
    one, other = Ephemeral(), Ephemeral()
    mine, theirs = one.public, other.public
    return one.dialler(theirs), other.listener(mine)


def test_both_directions_open_and_have_keys_of_their_own() -> None:
    one, other = pair()
    assert one.binding == other.binding and len(one.binding) == 32
    for sender, receiver in ((one, other), (other, one)):
        number, boxes = sender.seal(FRAMES)
        assert [len(box) - OVERHEAD for box in map(bytes, boxes)] == [len(frame) for frame in map(bytes, FRAMES)]
        assert receiver.open(number, boxes) == FRAMES
    number, boxes = one.seal(FRAMES)
    with pytest.raises(RemoteProtocolError):
        one.open(number, boxes)


def test_lost_message_leaves_a_gap_and_nothing_else() -> None:
    one, other = pair()
    first, _lost, third = (one.seal([b"%d" % number]) for number in range(3))
    assert other.open(*first) == [b"0"] and other.open(*third) == [b"2"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda number, boxes: (number, boxes[:-1]),
        lambda number, boxes: (number, boxes[::-1]),
        lambda number, boxes: (number, [*boxes, boxes[0]]),
        lambda number, boxes: (number, [bytes([boxes[0][0] ^ 1]) + boxes[0][1:], *boxes[1:]]),
        lambda number, boxes: (number, [boxes[0][:-1], *boxes[1:]]),
        lambda number, boxes: (number, [b"", *boxes[1:]]),
        lambda number, boxes: (number + 1, boxes),
        lambda number, boxes: (1 << 62, boxes),
    ],
    ids=["cut", "moved", "longer", "changed", "shorter", "empty", "renumbered", "far-ahead"],
)
def test_spoilt_message_is_refused__and_the_true_one_still_opens(spoil) -> None:  # type: ignore[no-untyped-def]
    one, other = pair()
    number, boxes = one.seal(FRAMES)
    with pytest.raises(RemoteProtocolError):
        other.open(*spoil(number, boxes))
    assert other.open(number, boxes) == FRAMES


def test_repeated_and_late_messages_are_refused() -> None:
    one, other = pair()
    early, late = one.seal([b"early"]), one.seal([b"late"])
    assert other.open(*late) == [b"late"]
    for message in (late, early):
        with pytest.raises(RemoteProtocolError, match="again, or too late"):
            other.open(*message)


def test_another_connection_opens_nothing() -> None:
    one, other = pair()
    _, third = pair()
    with pytest.raises(RemoteProtocolError):
        third.open(*one.seal(FRAMES))
    assert third.binding not in (one.binding, other.binding)


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_key_that_leads_to_a_known_secret_is_refused(key: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="no key pair"):
        Ephemeral().dialler(key)


def test_keys_wear_out() -> None:
    one, _ = pair()
    assert not one.worn
    one._sent = MOST_MESSAGES
    assert one.worn


def test_nothing_secret_is_shown() -> None:
    one, _ = pair()
    assert one._sends.hex() not in repr(one) and one._sends[:4].hex() not in repr(one)
