"""Comparing views: digests of buckets, and what differs travels (Demers et al. 1987, push-pull)."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol import wire
from gossipdp.protocol.anti_entropy import Buckets
from gossipdp.protocol.membership import LAN, Membership
from gossipdp.protocol.messages import Member, Pong, PushPull, State
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.progress import ProgressBoard


def peer_id(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(4, "big"), digest_size=32).digest()


def record(number: int, state: State = State.ALIVE, refutation: int = 0) -> Member:
    return Member(peer_id(number), f"p{number}", f"10.0.0.{number}:4710", 1, refutation, state)


def buckets(*records: Member) -> Buckets:
    made = Buckets()
    for item in records:
        made.put(item)
    return made


def behind(mine: Buckets, theirs: Buckets) -> set[bytes]:
    """Whom `mine` would tell of, given the digest of `theirs`."""
    return {peer for place in mine.differing(theirs.digest()) for peer in mine.members[place]}


# -- digests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "size"), [(1, 32), (8, 32), (9, 64), (100, 512), (512, 2048), (4000, 2048)])
def test_digest_has_about_a_bucket_a_member_and_fits_a_message(members: int, size: int) -> None:
    made = buckets(*map(record, range(members)))
    assert sum(map(len, made.digest())) == size
    wide = replace(record(0), name="é" * 24, address="a" * 80, software="s" * 16)
    message = PushPull(True, (wide, wide), (), made.digest())
    assert wire.decode(wire.encode(message)) == (message, [])


@pytest.mark.parametrize("members", [3, 40, 700])
def test_equal_views_have_equal_digests_whatever_the_order_they_were_learnt_in(members: int) -> None:
    records = [record(number) for number in range(members)]
    one, two = buckets(*records), buckets(*(replace(item, refutation=7) for item in records))
    for item in reversed(records):
        two.put(item)
    assert one.digest() == two.digest() and one.differing(two.digest()) == []


@pytest.mark.parametrize("changed", [replace(record(3), incarnation=2), record(3, State.LEFT), record(3, refutation=1)])
@pytest.mark.parametrize("members", [5, 300])
def test_one_changed_record_is_found_from_either_side(changed: Member, members: int) -> None:
    records = [record(number) for number in range(members)]
    one, two = buckets(*records), buckets(*records, changed)
    for mine, theirs in ((one, two), (two, one)):
        found = behind(mine, theirs)
        assert changed.id in found and len(found) <= 4


def test_members_one_side_has_never_heard_of_are_found_though_sizes_differ() -> None:
    one, two = buckets(*map(record, range(400))), buckets(*map(record, range(20)))
    assert {peer_id(number) for number in range(20, 400)} <= behind(one, two)
    one.drop(peer_id(399))
    one.drop(peer_id(399))
    assert one.digest() == buckets(*map(record, range(399))).digest()


def test_two_members_that_change_alike_do_not_cancel_out() -> None:
    for first in range(0, 60, 2):
        before = buckets(record(first), record(first + 1))
        after = buckets(record(first, State.FAILED), record(first + 1, State.FAILED))
        assert behind(before, after) == {peer_id(first), peer_id(first + 1)}


@pytest.mark.parametrize("digest", [(), (b"12345",), (b"\0" * 12,), (b"\0" * 256,) * 7, (b"\0" * 256,) * 9])
def test_what_is_no_digest_differs_from_nothing(digest: tuple[bytes, ...]) -> None:
    assert buckets(record(1)).differing(digest) == []


# -- exchanges -------------------------------------------------------------------------------------------------------


class Peer:
    def __init__(self, number: int, *known: Member) -> None:
        self.number, self.outputs = number, Outputs()
        self.membership = Membership(
            LAN,
            record(number),
            random=Random(number),
            outputs=self.outputs,
            now=0.0,
            progress=ProgressBoard(peer_id(number)),
        )
        for member in known:
            self.hear(Pong(0, (member,)), 99, 0.0)
        self.outputs.messages.clear()

    def hear(self, message: Pong | PushPull, source: int, now: float) -> list[PushPull]:
        self.membership.receive(message, peer_id(source), now)
        return self.sent()

    def sent(self) -> list[PushPull]:
        sent = [envelope.message for envelope in self.outputs.messages if isinstance(envelope.message, PushPull)]
        self.outputs.messages.clear()
        return sent

    def asks(self, number: int, now: float = 1.0) -> PushPull:
        self.membership._anti_entropy._ask(self.membership.members[peer_id(number)], now)
        return self.sent()[0]


def exchange(asker: Peer, asked: Peer) -> tuple[int, int]:
    """Records beside the sender's own that the asked sends, and that the asker then does."""
    ask = asker.asks(asked.number)
    answers = asked.hear(ask, asker.number, 1.0)
    closing = [message for answer in answers for message in asker.hear(answer, asked.number, 1.0)]
    assert not [message for last in closing for message in asked.hear(last, asker.number, 1.0)]
    first, second = (sum(len(message.members) - 1 for message in messages) for messages in (answers, closing))
    return first, second


def test_views_that_agree_cost_one_message_whatever_their_size() -> None:
    others = [record(number) for number in range(10, 110)]
    one, two = Peer(1, record(2), *others), Peer(2, record(1), *others)
    assert two.hear(one.asks(2), 1, 1.0) == []


def test_each_side_gets_what_only_the_other_knew_and_hardly_more() -> None:
    others = [record(number) for number in range(10, 110)]
    one = Peer(1, record(2), *others, record(200), record(12, refutation=2))
    two = Peer(2, record(1), *others, record(201), record(13, refutation=4))
    first, second = exchange(one, two)
    assert 2 <= first <= 12 and 2 <= second <= 12
    assert one.membership.members == two.membership.members


def test_member_that_knows_nothing_is_taught_in_pages_and_the_asked_learns_of_it() -> None:
    two = Peer(2, *(record(number) for number in range(10, 60)))
    one = Peer(1, record(2))
    exchange(one, two)
    assert set(two.membership.members) == set(one.membership.members)


def test_asked_that_lacks_what_the_asker_has_says_so_and_is_told() -> None:
    one, two = Peer(1, record(2)), Peer(2, record(1))
    one.hear(Pong(0, (record(7, State.LEFT), record(8))), 99, 0.5)
    exchange(one, two)
    assert one.membership.members == two.membership.members
    assert two.membership.members[peer_id(7)].state == State.LEFT


def test_digest_nobody_asked_for_is_not_answered() -> None:
    """Or three hundred bytes would draw forty pages, as often as anybody likes."""
    one = Peer(1, *(record(number) for number in range(2, 60)))
    empty = Buckets().digest()
    assert one.hear(PushPull(False, (record(2),), (), empty), 2, 1.0) == []


def test_digest_of_one_forgotten_since_it_was_asked_is_not_answered() -> None:
    one = Peer(1, record(2), record(3))
    one.asks(2)
    one.hear(Pong(0, (record(2, State.LEFT),)), 3, 1.0)
    now = 1.1 * LAN.forget_after
    one.membership._view.forget(now)
    one.membership._gone(peer_id(2))
    assert one.hear(PushPull(False, (), (), Buckets().digest()), 2, now) == []


def test_those_who_ask_again_and_again_get_one_page() -> None:
    one = Peer(1, *(record(number) for number in range(2, 60)))
    empty = Buckets().digest()
    assert len(one.hear(PushPull(True, (record(2),), (), empty), 2, 1.0)) == 7
    assert len(one.hear(PushPull(True, (record(2),), (), empty), 2, 1.2)) == 1
    assert len(one.hear(PushPull(True, (record(2),), (), empty), 2, 1.6)) == 7


def test_exchanges_stay_frequent_while_they_teach_and_then_become_rare() -> None:
    one = Peer(1, record(2))
    machine = one.membership._anti_entropy
    times = [machine.timer()]
    for number in range(30):
        if number < 15:
            one.hear(PushPull(False, (record(2), record(100 + number))), 2, times[-1])
        assert machine.handle_timer(times[-1]) and not machine.handle_timer(times[-1])
        times.append(machine.timer())
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert max(pauses[:15]) <= 1.25 * LAN.probe_interval * 1.3
    assert min(pauses[-5:]) >= 0.75 * LAN.push_pull_interval and max(pauses) <= 1.25 * LAN.push_pull_interval


def test_the_long_dead_are_in_no_digest_and_no_view() -> None:
    one = Peer(1, record(2), record(7, State.FAILED))
    one.hear(Pong(0, (record(2, refutation=9),)), 2, LAN.forget_after * 0.6)
    answer = one.hear(PushPull(True, (record(2, refutation=9),)), 2, LAN.forget_after * 0.6)
    assert [member.id for page in answer for member in page.members] == [peer_id(1)]
    assert peer_id(7) in one.membership.members
    assert one.asks(2, LAN.forget_after * 0.6).digest == buckets(record(1), record(2, refutation=9)).digest()


def test_a_start_learnt_from_a_view_is_not_gossiped_again_but_the_senders_own_is() -> None:
    one = Peer(1)
    one.hear(PushPull(False, (record(2), record(3), record(4, State.FAILED))), 2, 0.0)
    assert [member.id for member in one.membership._dissemination.broadcasts.peek(9, 4000)] == [peer_id(2)]
