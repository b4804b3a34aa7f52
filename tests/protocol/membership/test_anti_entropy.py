"""Comparing views: digests, then lists, and what differs travels (Demers et al. 1987, push-pull)."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol.membership.anti_entropy import _FEW, _LEAST
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.digests import PLACES, Run, pack
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import MAX_HEADER, Member, Pong, PushPull, State
from tests.protocol.membership.machines import membership_of, peer_id, record

EMPTY = (bytes(32),)
"""digest of a peer that knows no other"""


class Peer:
    def __init__(self, number: int, *known: Member) -> None:
        self.number, self.outputs = number, Outputs()
        self.membership = membership_of(record(number), Random(number), self.outputs)
        for member in known:
            self.hear(Pong(0, (member,)), 99, 0.0)
        self.outputs.messages.clear()

    @property
    def members(self) -> dict[bytes, Member]:
        return self.membership.members

    @property
    def budget(self):
        return self.membership._dissemination.budget

    def hear(self, message: Pong | PushPull, source: int, now: float) -> list[PushPull]:
        self.membership.receive(message, peer_id(source), now)
        return self.sent()

    def sent(self) -> list[PushPull]:
        sent = [envelope.message for envelope in self.outputs.messages if isinstance(envelope.message, PushPull)]
        for envelope in self.outputs.messages:
            assert len(envelope.frames[0]) <= MAX_HEADER and wire.decode(envelope.frames)[0] == envelope.message
        self.outputs.messages.clear()
        return sent

    def asks(self, number: int, now: float = 1.0) -> PushPull:
        self.membership._anti_entropy._ask(self.members[peer_id(number)], now)
        return self.sent()[0]


def exchange(asker: Peer, asked: Peer, now: float = 1.0) -> tuple[int, int]:
    """Records beside the sender's own that the asked sends, and that the asker does."""
    given, taken = 0, 0
    for answer in asked.hear(asker.asks(asked.number, now), asker.number, now):
        for message in asker.hear(answer, asked.number, now):
            taken += max(0, len(message.members) - 1)
            for last in asked.hear(message, asker.number, now):
                given += len(last.members) - 1
                # Of one that both know, the older record is answered with the newer.
                for newer in asker.hear(last, asked.number, now):
                    assert asked.hear(newer, asker.number, now) == []
    return given, taken


def test_views_that_agree_cost_one_message_whatever_their_size() -> None:
    others = [record(number) for number in range(10, 110)]
    one, two = Peer(1, record(2), *others), Peer(2, record(1), *others)
    assert two.hear(one.asks(2), 1, 1.0) == []


def test_each_side_gets_exactly_the_records_that_only_the_other_knew() -> None:
    others = [record(number) for number in range(10, 110)]
    one = Peer(1, record(2), *others, record(200), record(12, refutation=2))
    two = Peer(2, record(1), *others, record(201), record(13, refutation=4))
    # Of one that both have in other versions each is told the other's.
    assert exchange(one, two) == (3, 3)
    assert one.members == two.members


def test_newcomer_gets_the_view_in_pages_and_the_asked_member_learns_of_it() -> None:
    one, two = Peer(1, record(2)), Peer(2, *(record(number) for number in range(10, 60)))
    exchange(one, two)
    assert set(two.members) == set(one.members) and len(one.members) == 52


def test_asked_member_that_lacks_a_record_asks_for_it_and_gets_it() -> None:
    one, two = Peer(1, record(2)), Peer(2, record(1))
    one.hear(Pong(0, (record(7, state=State.LEFT), record(8))), 99, 0.5)
    exchange(one, two)
    assert one.members == two.members
    assert two.members[peer_id(7)].state == State.LEFT


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 40, 400]))
def test_any_two_views_agree_after_finitely_many_exchanges_of_bounded_size(seed: int, size: int) -> None:
    random = Random(seed)
    shares = random.choices([0.05, 0.5, 0.98], k=2)
    peers = [Peer(1, record(2)), Peer(2, record(1))]
    for number in range(10, 10 + size):
        for peer, share in zip(peers, shares, strict=True):
            if random.random() < share:
                state = random.choice([State.ALIVE, State.ALIVE, State.LEFT])
                peer.hear(Pong(0, (record(number, state=state, refutation=random.randrange(2)),)), 99, 0.0)
    for times in range(1, 40):
        asker, asked = random.sample(peers, 2)
        given, taken = exchange(asker, asked, 10.0 * times)
        # Some more are the newer of records that both have.
        assert max(given, taken) <= 3 * _LEAST
        if peers[0].members == peers[1].members:
            break
    assert peers[0].members == peers[1].members


# -- unasked messages -----------------------------------------------------------------------------------------------


def test_unasked_list_is_not_answered() -> None:
    """Else six bytes would draw all pages, any number of times."""
    one = Peer(1, *(record(number) for number in range(2, 60)))
    everything = pack([Run(0, PLACES, ())])
    assert one.hear(PushPull(False, (record(2),), (), everything, True), 2, 1.0) == []
    one.asks(3)
    assert one.hear(PushPull(False, (record(2),), (), everything, True), 2, 1.0) == []
    assert len(one.hear(PushPull(False, (record(3),), (), everything, True), 3, 1.0)) == 3
    assert one.hear(PushPull(False, (record(3),), (), everything, True), 3, 1.0) == []


def test_listed_records_are_given_once_to_the_member_that_got_the_list() -> None:
    one = Peer(1, *(record(number) for number in range(2, 60)))
    (listed,) = one.hear(PushPull(True, (record(2),), (), EMPTY), 2, 1.0)
    wanted = PushPull(True, digest=listed.digest, listed=True)
    assert one.hear(wanted, 3, 1.0) == []
    pages = one.hear(wanted, 2, 1.0)
    # All but the one that asks.
    assert {member.id for page in pages for member in page.members} == set(one.members) - {peer_id(2)}
    assert one.hear(wanted, 2, 1.0) == []


def test_members_that_were_sent_lists_are_bounded() -> None:
    one = Peer(1, *(record(number) for number in range(2, 300)))
    for number in range(2, 202):
        one.hear(PushPull(True, (record(number),), (), EMPTY), number, 1.0 + 10.0 * number)
    assert len(one.membership._anti_entropy._owed) == 64


def test_list_of_a_member_forgotten_meanwhile_is_not_answered() -> None:
    one = Peer(1, record(2), record(3))
    one.asks(2)
    one.hear(Pong(0, (record(2, state=State.LEFT),)), 3, 1.0)
    now = 1.1 * LAN.forget_after
    one.membership._view.forget(now)
    assert peer_id(2) not in one.members
    assert one.hear(PushPull(False, (), (), pack([Run(0, PLACES, ())]), True), 2, now) == []


def test_member_that_asks_repeatedly_gets_one_page() -> None:
    one = Peer(1, *(record(number) for number in range(2, 60)))
    assert one.hear(PushPull(True, (record(2),), (), EMPTY), 2, 1.0)[0].listed
    (page,) = one.hear(PushPull(True, (record(2),), (), EMPTY), 2, 1.2)
    assert not page.listed and not page.digest
    assert one.hear(PushPull(True, (record(2),), (), EMPTY), 2, 1.6)[0].listed


# -- the budget ------------------------------------------------------------------------------------------------------


def test_newcomer_gets_the_whole_view_if_the_budget_allows_and_a_few_members_if_not() -> None:
    one = Peer(1, *(record(number) for number in range(2, 60)))
    pages = one.hear(PushPull(True, (record(100),)), 100, 1.0)
    assert len({member.id for page in pages for member in page.members}) == 59
    one.budget.spend(1e9, 1.0)
    (page,) = one.hear(PushPull(True, (record(101),)), 101, 1.0)
    assert 3 <= len(page.members) <= 1 + _FEW and page.members[0].id == peer_id(1)


def test_overdrawn_budget_asks_no_member_and_gives_no_list() -> None:
    one = Peer(1, *(record(number) for number in range(2, 60)))
    machine = one.membership._anti_entropy
    at = machine.timer()
    one.budget.spend(one.budget.left(at) + LAN.bulk_rate, at)
    assert not machine.handle_timer(at) and machine.timer() == pytest.approx(at + 1.0) and one.sent() == []
    (page,) = one.hear(PushPull(True, (record(2),), (), EMPTY), 2, at)
    assert not page.listed
    assert machine.handle_timer(machine.timer() + 0.5) and one.sent()[0].digest


def test_traffic_keeps_to_the_budget_with_any_number_of_askers() -> None:
    one = Peer(1, *(record(number) for number in range(2, 900)))
    sent = 0
    for number in range(3000):
        now = 1.0 + number * 0.02
        source = 2 + number % 800
        one.membership.receive(PushPull(True, (record(source),), (), EMPTY), peer_id(source), now)
        listed = [e.message for e in one.outputs.messages if isinstance(e.message, PushPull) and e.message.listed]
        if listed:
            wanted = PushPull(True, digest=listed[0].digest, listed=True)
            one.membership.receive(wanted, peer_id(source), now)
        sent += sum(len(envelope.frames[0]) for envelope in one.outputs.messages)
        one.outputs.messages.clear()
    # Whoever asks is answered at least with this peer's own record.
    assert sent <= LAN.bulk_rate * (60.0 + 8.0) + 3000 * 150


def test_starts_are_gossiped_while_the_budget_is_half_full_and_deaths_always() -> None:
    one = Peer(1, record(2))
    news = one.membership._dissemination.broadcasts
    one.hear(Pong(0, (record(3),)), 2, 0.0)
    assert record(3) in news.peek(12, 4000)
    one.budget.spend(0.6 * one.budget.most, 2.0)
    one.hear(Pong(0, (record(4), record(2, state=State.FAILED), record(3, refutation=1))), 99, 2.0)
    assert {(member.id, member.state, member.refutation) for member in news.peek(12, 4000)} >= {
        (peer_id(2), State.FAILED, 0),
        (peer_id(3), State.ALIVE, 1),
    }
    assert record(4) not in news.peek(12, 4000) and peer_id(4) in one.members


# -- when ------------------------------------------------------------------------------------------------------------


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


def test_member_refused_repeatedly_asks_ever_less_often() -> None:
    """Where few are asked by many, refusals alone would take all that they may say."""
    one = Peer(1, record(2))
    machine = one.membership._anti_entropy
    times = [machine.timer()]
    for _ in range(60):
        one.hear(PushPull(False, (record(2),)), 2, times[-1])
        assert machine.handle_timer(times[-1])
        times.append(machine.timer())
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert max(pauses[:5]) <= 1.25 * LAN.probe_interval * 1.3 * 1.1**5
    assert min(pauses[-5:]) >= 0.75 * LAN.push_pull_interval and max(pauses) <= 1.25 * LAN.push_pull_interval
    one.hear(PushPull(False, (record(2), record(3))), 2, times[-1])
    assert machine.handle_timer(times[-1]) and machine.timer() - times[-1] <= 1.25 * LAN.probe_interval * 1.3


def test_digests_are_coarse_while_views_have_little_in_common_and_fine_again_after_silence() -> None:
    one, two = Peer(1, record(2)), Peer(2, *(record(number) for number in range(10, 400)))
    assert sum(map(len, one.asks(2).digest)) == 32
    exchange(one, two)
    one.hear(Pong(0, tuple(record(number) for number in range(500, 600))), 99, 1.0)
    assert sum(map(len, one.asks(2, 2.0).digest)) == 64
    assert sum(map(len, one.asks(2, 3.0).digest)) > 64


def test_the_long_dead_are_in_no_digest_and_no_view() -> None:
    one, two = Peer(1, record(2), record(7, state=State.FAILED)), Peer(1, record(2, refutation=9))
    late = LAN.forget_after * 0.6
    one.hear(Pong(0, (record(2, refutation=9),)), 2, late)
    answer = one.hear(PushPull(True, (record(2, refutation=9),)), 2, late)
    assert [member.id for page in answer for member in page.members] == [peer_id(1)]
    assert peer_id(7) in one.members
    assert one.asks(2, late).digest == two.asks(2).digest


def test_a_start_learnt_from_a_view_is_not_gossiped_again_but_the_senders_own_is() -> None:
    one = Peer(1)
    one.hear(PushPull(False, (record(2), record(3), record(4, state=State.FAILED))), 2, 0.0)
    assert [member.id for member in one.membership._dissemination.broadcasts.peek(9, 4000)] == [peer_id(2)]
