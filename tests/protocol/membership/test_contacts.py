"""What this peer saw of its members itself, what it remembers of an earlier life, and its address after it has left."""

from __future__ import annotations

from msgspec.structs import replace

from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Ping
from tests.protocol.membership.machines import Peer, peer_id, record


def test_link_that_the_transport_lost__only_that_member_counts_as_not_linked() -> None:
    peer = Peer(record(0))
    for number in (1, 2):
        peer.hear(Ping(number, (record(number),)), number, 0.0)
    contacts = peer.membership._view.contacts
    peer.membership.link_down(peer_id(1), "gone", 1.0)
    assert not contacts.linked(peer_id(1)) and contacts.linked(peer_id(2))
    peer.hear(Ping(3), 1, 2.0)
    assert contacts.linked(peer_id(1))


def test_remembered_are_others_that_have_an_address() -> None:
    view = View(LAN, record(0))
    view.remember([record(0), replace(record(1), address=""), record(2)])
    assert set(view.remembered) == {peer_id(2)}


def test_peer_that_has_left_changes_its_record_no_more() -> None:
    peer = Peer(record(0))
    peer.membership.leave(1.0)
    left = peer.membership.me
    peer.membership.advertise(["10.9.9.9:4710"], 2.0)
    assert peer.membership.me == left
