"""The units of the broadcast: header, store, send window, links and fetches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic.fetching import MAX_ANNOUNCED, MAX_HOLDERS, Fetches
from gossipdp.protocol.epidemic.link import HEADER, MAX_GRAFTS, Link
from gossipdp.protocol.epidemic.links import MAX_LINKS, MAX_REFUSALS, MAX_VISITORS, Links, chosen
from gossipdp.protocol.epidemic.send_window import SendWindow
from gossipdp.protocol.epidemic.signing import make, name_of, part_hash, unpack_table
from gossipdp.protocol.epidemic.store import MAX_OPEN, Record, Store
from gossipdp.protocol.wire.epidemic_messages import MAX_PART, MAX_PARTS, Rumour
from tests.protocol.epidemic.broadcast_network import peer, signature

PARTS = [b"one", b"three", b"fifteen"]
DRAFT = Rumour(peer(0), 1, 7, 0, 0.5, 700, 10, 1, 1, bytes(32), bytes(64))


def signed(draft=DRAFT, parts=PARTS):
    return make(draft, parts, b"run", lambda data: signature(draft.origin, data))


def record(number=0, *, origin=0, epoch=7, size=10, parts=2, whole=False):
    draft = replace(DRAFT, origin=peer(origin), epoch=epoch, sequence=number)
    rumour, table = signed(draft, [bytes([number]) * (size // parts)] * parts)
    wanted = unpack_table(table, rumour)
    made = Record(name_of(rumour, b"run"), rumour, table, wanted, peer(9))
    if whole:
        made.have, made.needed = made.full, False
    return made


# -- header -----------------------------------------------------------------------------------------------------------


def test_table_says_size_and_hash_of_each_part():
    rumour, table = signed()
    assert unpack_table(memoryview(table), rumour) == [(len(part), part_hash(part)) for part in PARTS]
    assert (rumour.size, rumour.parts) == (15, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("origin", peer(1)),
        ("incarnation", 2),
        ("epoch", 8),
        ("sequence", 1),
        ("weight", 0.25),
        ("clock", 701),
        ("samples", 11),
        ("size", 16),
        ("parts", 4),
        ("root", bytes(31) + b"\1"),
    ],
)
def test_every_signed_field_is_part_of_the_name(field, value):
    rumour, _ = signed()
    assert name_of(rumour, b"run") != name_of(replace(rumour, **{field: value}), b"run")


def test_name_depends_on_the_run_and_not_on_the_hops():
    rumour, _ = signed()
    assert name_of(rumour, b"run") != name_of(rumour, b"other")
    assert name_of(rumour, b"run") == name_of(replace(rumour, hops=9), b"run")


def test_changed_or_cut_table_is_refused():
    rumour, table = signed()
    assert unpack_table(table[:-1], rumour) is None
    assert unpack_table(b"\0" + table[1:-1] + b"\0", rumour) is None
    assert unpack_table(table, replace(rumour, size=16)) is None
    assert unpack_table(table, replace(rumour, parts=2)) is None


def test_origin_that_signs_a_part_too_large_is_refused():
    rumour, _ = signed(parts=[bytes(4)])
    with pytest.raises(LocalProtocolError):
        signed(parts=[bytes(MAX_PART + 1)])
    table = (MAX_PART + 1).to_bytes(4, "big") + bytes(32)
    assert unpack_table(table, replace(rumour, size=MAX_PART + 1)) is None


@pytest.mark.parametrize("parts", [[], [b""], [b"x"] * (MAX_PARTS + 1)])
def test_impossible_parts_raise(parts):
    with pytest.raises(LocalProtocolError):
        signed(parts=parts)


# -- store ------------------------------------------------------------------------------------------------------------


def test_applied_payloads_are_dropped_for_room_the_oldest_epoch_first():
    dropped = []
    store = Store(30, dropped.append)
    late, early, fresh = record(0, epoch=8, whole=True), record(1, epoch=6, whole=True), record(2, epoch=9, whole=True)
    for each in (late, early, fresh, record(3, epoch=9)):
        assert store.admit(each)
    assert store.get(early.name) is None and store.get(late.name) is late
    assert (store.bytes, len(store), dropped) == (30, 3, [early.name])


def test_incomplete_or_needed_payload_is_never_dropped():
    dropped = []
    store = Store(30, dropped.append)
    waiting = record(1, origin=1, whole=True)
    waiting.need(True)
    assert store.admit(record(0)) and store.admit(waiting) and store.admit(record(2, origin=2))
    assert not store.admit(record(3, origin=3)) and not dropped


def test_incomplete_increments_of_one_origin_are_limited():
    dropped = []
    store = Store(1000, dropped.append)
    coming = [record(number) for number in range(MAX_OPEN + 1)]
    assert [store.admit(each) for each in coming] == [True] * MAX_OPEN + [False]
    store.put(coming[0], 0, b"x")
    store.put(coming[0], 1, b"y")
    assert coming[0].complete and store.admit(coming[-1])
    store.drop(coming[1].name)
    assert store.bytes == 10 * MAX_OPEN and not dropped


# -- send window ------------------------------------------------------------------------------------------------------


def test_window_widens_with_answers_and_halves_with_a_loss():
    window, sent = SendWindow(8, 1.0), 0
    for _ in range(20):
        while window.room:
            window.sent(sent, 0.0)
            sent += 1
        window.answered([sent - 1], 0.1)
    assert sum(key in window for key in range(sent)) == 7
    assert window.lost(0.9) == [] and len(window.lost(1.0)) == 7
    assert [window.sent(key, 1.0) for key in range(4)] and not window.room


def test_patience_follows_the_answers_and_doubles_with_each_silence():
    window = SendWindow(8, 1.0)
    window.sent("a", 0.0)
    assert window.timer() == 1.0
    window.answered(["a"], 0.9)
    window.sent("b", 1.0)
    assert window.timer() == pytest.approx(1.0 + 1.8)
    assert window.lost(2.8) == ["b"]
    window.sent("b", 2.8)
    assert window.timer() == pytest.approx(2.8 + 3.6)


def test_answer_to_what_was_sent_twice_teaches_nothing():
    """Its answer is ambiguous (Karn & Partridge 1987)."""
    window = SendWindow(8, 1.0)
    window.sent("a", 0.0)
    window.lost(1.0)
    window.sent("a", 1.0)
    window.answered(["a"], 1.01)
    window.sent("b", 2.0)
    assert window.timer() == 2.0 + 2.0


def test_item_overtaken_by_an_answer_is_lost_without_backoff():
    window = SendWindow(8, 1.0, first=2)
    window.sent("a", 0.0)
    assert window.lost(1.0) == ["a"]
    window.sent("a", 1.0)
    assert window.timer() == 3.0
    window.sent("b", 1.5)
    window.answered(["b"], 1.6)
    assert window.lost(1.9) == [] and window.lost(2.0) == ["a"]


def test_forgotten_item_is_not_under_way():
    window = SendWindow(1, 1.0)
    window.sent("a", 0.0)
    assert not window.room
    window.forget(["a", "never sent"])
    assert window.room and window.timer() == float("inf")


# -- links ------------------------------------------------------------------------------------------------------------


@given(st.integers(2, 60), st.integers(0, 99))
def test_chosen_links_connect_the_graph(count, offset):
    peers = [peer(offset + number) for number in range(count)]
    near = {each: set() for each in peers}
    for each in peers:
        own = chosen(each, peers, 3)
        assert len(own) == min(3, count - 1) and each not in own
        for other in own:
            near[each].add(other)
            near[other].add(each)
    seen, front = {peers[0]}, [peers[0]]
    while front:
        front = [other for other in near[front.pop()] if other not in seen] + front
        seen.update(front)
    assert seen == set(peers)


def test_choice_depends_on_the_live_members_alone():
    peers = [peer(number) for number in range(20)]
    before = chosen(peers[0], peers, 3)
    assert chosen(peers[0], peers[::-1], 3) == before
    unchosen = next(each for each in peers[1:] if each not in before)
    assert chosen(peers[0], [each for each in peers if each != unchosen], 3) == before


def links(count=20):
    made = Links(peer(0), 3, 2, 1.0)
    made.follow(peer(number) for number in range(count))
    return made


def test_more_neighbours_than_the_most_are_refused():
    made = links(40)
    others = [peer(number) for number in range(1, 40)]
    assert sum(made.chosen_by(each) for each in others) == MAX_LINKS == len(made.neighbours())
    assert not made.chosen_by(peer(99))


def test_member_that_refuses_is_greeted_again_and_then_given_up():
    made = links()
    other = made.neighbours()[0].peer
    for _ in range(MAX_REFUSALS):
        assert made.get(other).own
        made.get(other).told = True
        made.refused_by(other)
        assert not made.get(other).told or not made.get(other).own
    assert not made.get(other).neighbour and len(made.neighbours()) == 3
    made.follow(peer(number) for number in range(1, 20) if peer(number) != other)
    made.follow(peer(number) for number in range(20))
    assert made.get(other).own


def test_member_chosen_no_more_stays_a_neighbour_if_it_chose_this_peer():
    made = Links(peer(0), 1, 2, 1.0)
    made.follow(peer(number) for number in range(5))
    (link,) = made.neighbours()
    before = {peer(number) for number in range(1, 5)}
    nearer = next(
        peer(number) for number in range(5, 900) if chosen(peer(0), {*before, peer(number)}, 1) == {peer(number)}
    )
    lone, chooser = Links(peer(0), 1, 2, 1.0), Links(peer(0), 1, 2, 1.0)
    for each in (lone, chooser):
        each.follow(before)
    assert chooser.chosen_by(link.peer)
    assert lone.follow({*before, nearer}) == ([], [link.peer])
    assert chooser.follow({*before, nearer}) == ([], []) and chooser.get(link.peer).neighbour


def test_visitors_are_limited_and_idle_ones_make_room():
    made = links(60)
    strangers = [peer(number) for number in range(60) if made.get(peer(number)) is None and number]
    for each in strangers[:MAX_VISITORS]:
        made.serve(each).graft(record(whole=True), 0)
    assert made.serve(strangers[MAX_VISITORS]) is None
    made.get(strangers[0]).disconnected()
    assert made.serve(strangers[MAX_VISITORS]) is not None
    assert made.serve(peer(99)) is None


def test_over_an_untried_link_only_the_header_goes_ahead():
    link, sent = Link(peer(1), 4, 1.0), record(whole=True)
    link.push(sent)
    assert link.next(0.0) == (link.pushes[sent.name], HEADER) and link.next(0.0) is None
    link.answered(sent.name, 0, 0.1)
    assert link.next(0.1)[1] == 0
    link.answered(sent.name, 1, 0.2)
    assert link.next(0.2)[1] == 1
    link.answered(sent.name, 3, 0.3)
    assert not link.pushes and link.timer() == float("inf")
    again = record(1, whole=True)
    link.push(again)
    assert [link.next(1.0)[1] for _ in range(3)] == [HEADER, 0, 1]


def test_item_without_an_answer_is_sent_again():
    link, sent = Link(peer(1), 4, 1.0), record(whole=True)
    link.push(sent)
    link.next(0.0)
    assert not link.handle_timer(0.9) and link.handle_timer(1.0)
    assert link.next(1.0)[1] == HEADER
    link.answered(sent.name, 0, 1.1)
    assert link.next(1.1)[1] == 0
    at = link.timer()
    assert link.handle_timer(at) and link.next(at)[1] == 0


def test_incomplete_increment_is_pushed_on_as_it_comes():
    link, coming = Link(peer(1), 4, 1.0), record(parts=2)
    link.graft(coming, 0)
    assert link.next(0.0)[1] == HEADER and link.next(0.0) is None
    coming.have = 0b10
    assert link.next(0.0)[1] == 1 and link.next(0.0) is None


def test_grafts_of_one_increment_to_one_link_are_limited():
    link, sent = Link(peer(1), 4, 1.0), record(whole=True)
    assert [link.graft(sent, 0) for _ in range(MAX_GRAFTS + 1)] == [True] * MAX_GRAFTS + [False]


# -- fetches ----------------------------------------------------------------------------------------------------------


def test_announced_increment_is_awaited_and_then_asked_of_one_holder_after_the_other():
    fetches = Fetches()
    assert fetches.announced(b"a", 7, peer(1), 0.0, 1.0) and fetches.announced(b"a", 7, peer(2), 0.5, 1.0)
    assert fetches.due(0.9) == []
    (fetch,) = fetches.due(1.0)
    asked = []
    for _ in range(3):
        asked.append(fetches.turn(fetch, 6.0, fetch.at))
    assert asked == [peer(1), peer(2), peer(1)]
    assert fetch.at == 1.0 + 6.0 + 12.0 + 24.0


def test_incomplete_holders_are_asked_besides_the_only_complete_one():
    fetches = Fetches()
    fetch = fetches.shown(b"a", 7, peer(1), 0.0, 6.0)
    fetches.offered(fetch, peer(2))
    fetches.announced(b"a", 7, peer(3), 0.0, 1.0)
    assert [fetches.turn(fetch, 6.0, 6.0) for _ in range(4)] == [peer(3), peer(2), peer(3), peer(1)]


def test_busy_source_is_given_longer_than_a_silent_one():
    fetches = Fetches()
    fetch = fetches.shown(b"a", 7, peer(1), 0.0, 6.0)
    assert not fetches.waits(fetch, float("-inf"), 6.0, 6.0)
    assert fetches.waits(fetch, 5.0, 6.0, 6.0) and fetch.at == 11.0
    assert fetches.waits(fetch, 47.0, 6.0, 47.0) and fetch.at == 48.0
    assert not fetches.waits(fetch, 48.0, 6.0, 48.0)


def test_holder_that_denies_is_not_asked_again():
    fetches = Fetches()
    fetch = fetches.shown(b"a", 7, peer(1), 0.0, 6.0)
    fetches.denied(b"a", peer(1), 1.0)
    assert fetches.due(1.0) == [fetch] and fetches.turn(fetch, 6.0, 1.0) == b""
    fetches.announced(b"a", 7, peer(2), 2.0, 1.0)
    assert fetches.due(3.0) == [fetch] and fetches.turn(fetch, 6.0, 3.0) == peer(2)


def test_holders_that_do_not_send_make_room_for_another():
    fetches = Fetches()
    for number in range(MAX_HOLDERS + 1):
        fetches.announced(b"a", 7, peer(number), 0.0, 1.0)
    (fetch,) = fetches.due(1.0)
    assert peer(MAX_HOLDERS) not in fetch.holders
    assert [fetches.turn(fetch, 6.0, 1.0) for _ in range(2)] == [peer(0), peer(1)]
    fetches.announced(b"a", 7, peer(MAX_HOLDERS), 2.0, 1.0)
    assert peer(MAX_HOLDERS) in fetch.holders and peer(0) not in fetch.holders
    assert len(fetch.holders) == MAX_HOLDERS


def test_endless_names_of_one_peer_do_not_fill_the_table():
    fetches = Fetches()
    names = [number.to_bytes(4, "big") for number in range(MAX_ANNOUNCED + 9)]
    assert sum(fetches.announced(name, 7, peer(1), 0.0, 1.0) for name in names) == MAX_ANNOUNCED
    assert fetches.announced(b"another", 7, peer(2), 0.0, 1.0)
    fetches.shown(names[0], 7, peer(1), 0.0, 1.0)
    fetches.end(names[1])
    assert sum(fetches.announced(name, 7, peer(1), 0.0, 1.0) for name in names[MAX_ANNOUNCED:]) == 2


def test_ended_fetch_leaves_no_timer():
    fetches = Fetches()
    fetches.announced(b"a", 7, peer(1), 0.0, 1.0)
    fetches.end(b"a")
    assert fetches.due(1.0) == [] and fetches.timer() == float("inf")
