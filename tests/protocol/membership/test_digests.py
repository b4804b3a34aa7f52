"""Views summed up: digests, and lists of what differs (Demers et al. 1987, section 1.3; Meyer 2023)."""

from bisect import bisect_left, insort
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipdp.protocol.membership.digests import FINE, MAX_MARKS, PLACES, Digests, Run, first_of, pack, unpack
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import MAX_HEADER, Member, PushPull, State
from tests.protocol.membership.machines import peer_id, record


class Table:
    """Records with their sum, as a view keeps them."""

    def __init__(self, *records: Member) -> None:
        self.records: dict[bytes, Member] = {}
        self.ids: list[bytes] = []
        self.digests = Digests(self.ids)
        for item in records:
            self.put(item)

    def put(self, item: Member) -> None:
        if item.id not in self.records:
            insort(self.ids, item.id)
        self.records[item.id] = item
        self.digests.put(item)

    def drop(self, peer: bytes) -> None:
        del self.records[peer], self.ids[bisect_left(self.ids, peer)]
        self.digests.drop(peer)

    def merge(self, item: Member) -> None:
        """Later records win, as in a view."""
        known = self.records.get(item.id)
        if known is None or (item.refutation, item.state) > (known.refutation, known.state):
            self.put(item)


def found(mine: Table, theirs: Table) -> set[bytes]:
    """Whose records are in places that differ, as `mine` sees it."""
    runs = mine.digests.differing(theirs.digests.digest())
    return {peer for run in mine.digests.listed(runs, 0, 10**6) for peer in mine.ids if within(peer, run)}


def within(peer: bytes, run: Run) -> bool:
    return run.first <= int.from_bytes(peer[:2], "big") >> 4 < run.first + run.places


# -- digests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "size"), [(1, 32), (8, 32), (9, 64), (100, 512), (512, 2048), (4000, 2048)])
def test_digest_has_about_a_bucket_a_member_and_fits_a_message(members: int, size: int) -> None:
    digest = Table(*map(record, range(members))).digests.digest()
    assert sum(map(len, digest)) == size
    wide = replace(record(0), name="é" * 24, address="a" * 80, software="s" * 16)
    message = PushPull(True, (wide, wide), (), digest)
    assert wire.decode(wire.encode(message)) == (message, [])


def test_coarse_digest_is_small_with_any_number_of_members() -> None:
    one, two = (Table(*map(record, range(count))) for count in (5000, 4000))
    digest = one.digests.digest(coarse=True)
    assert sum(map(len, digest)) == 64 and two.digests.differing(digest) == [(0, PLACES)]
    assert one.digests.differing(digest) == []


@pytest.mark.parametrize("members", [3, 40, 700])
def test_equal_views_have_equal_digests_whatever_the_order_they_were_learnt_in(members: int) -> None:
    records = [record(number) for number in range(members)]
    one, two = Table(*records), Table(*(replace(item, refutation=7) for item in records))
    for item in reversed(records):
        two.put(item)
    assert one.digests.digest() == two.digests.digest()
    assert one.digests.differing(two.digests.digest()) == []


@pytest.mark.parametrize(
    "changed", [replace(record(3), incarnation=2), record(3, state=State.LEFT), record(3, refutation=1)]
)
@pytest.mark.parametrize("members", [5, 300])
def test_one_changed_record_is_found_from_either_side(changed: Member, members: int) -> None:
    records = [record(number) for number in range(members)]
    one, two = Table(*records), Table(*records, changed)
    for mine, theirs in ((one, two), (two, one)):
        assert changed.id in found(mine, theirs) and len(found(mine, theirs)) <= 5


def test_unknown_members_are_found_though_sizes_differ() -> None:
    one, two = Table(*map(record, range(400))), Table(*map(record, range(20)))
    assert {peer_id(number) for number in range(20, 400)} <= found(one, two)
    one.drop(peer_id(399))
    one.digests.drop(peer_id(399))
    assert one.digests.digest() == Table(*map(record, range(399))).digests.digest()


def test_two_equal_changes_do_not_cancel_out() -> None:
    for first in range(0, 60, 2):
        before = Table(record(first), record(first + 1))
        after = Table(record(first, state=State.FAILED), record(first + 1, state=State.FAILED))
        assert found(before, after) == {peer_id(first), peer_id(first + 1)}


@pytest.mark.parametrize("digest", [(), (b"12345",), (b"\0" * 12,), (b"\0" * 256,) * 7, (b"\0" * 256,) * 9])
def test_malformed_digest_differs_nowhere(digest: tuple[bytes, ...]) -> None:
    assert Table(record(1)).digests.differing(digest) == []


def test_dropped_member_is_in_no_digest_and_no_list_until_it_is_put_again() -> None:
    one, two = Table(*map(record, range(50))), Table(*map(record, range(49)))
    one.digests.drop(peer_id(49))
    assert one.digests.digest() == two.digests.digest() and one.digests.members() == two.digests.members()
    assert peer_id(49) not in one.digests.compare([Run(0, PLACES, ())])[0]
    one.put(record(49, refutation=1))
    assert peer_id(49) in one.digests.compare([Run(0, PLACES, ())])[0]


# -- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 1000, PLACES - 1])
@pytest.mark.parametrize("members", [0, 10, 300, 3000])
def test_list_fits_a_message_and_begins_at_its_start(members: int, start: int) -> None:
    table = Table(*map(record, range(members)))
    runs = table.digests.listed([(0, PLACES)], start)
    parts = pack(runs)
    assert unpack(parts) == runs and runs[0].first == start
    message = PushPull(False, digest=parts, listed=True)
    assert len(wire.encode(message)[0]) <= MAX_HEADER and wire.decode(wire.encode(message)) == (message, [])
    if members <= 300:
        assert sum(run.places for run in runs) == PLACES and sum(len(run.marks) for run in runs) == members
    else:
        assert MAX_MARKS - 20 <= sum(len(run.marks) for run in runs) <= MAX_MARKS


def test_small_runs_are_listed_as_far_as_they_fit() -> None:
    table = Table(*map(record, range(2000)))
    runs = [(place, place + 8) for place in range(0, PLACES, 16)]
    listed = table.digests.listed(runs, 77 * 8 + 3)
    assert listed[0].first == 77 * 16 + 3 and listed[0].places == 5 and unpack(pack(listed)) == listed
    assert sum(2 + len(run.marks) for run in listed) <= MAX_MARKS


def test_place_too_full_for_a_list_is_listed_in_part() -> None:
    crowd = [replace(record(number), id=b"\0\0" + peer_id(number)[2:]) for number in range(MAX_MARKS + 50)]
    (run,) = Table(*crowd).digests.listed([(0, PLACES)], 0)
    assert (run.first, run.places, len(run.marks)) == (0, 1, MAX_MARKS - 2)
    assert [other.first for other in Table(*crowd).digests.listed([(0, PLACES)], 1)] == [1]


@pytest.mark.parametrize(
    "parts",
    [
        (b"\0",),
        (b"\0\0\0\0" + bytes(4),),
        (b"\0\0\1\0\1\0\0\0",),
        (b"\0\0\1\0" + bytes(4) + b"\xff\x0f\2\0" + bytes(4),),
        (b"\xff\xff\1\0" + bytes(4),),
        (b"\0\0\1\0\1\0\0\0abcd" + b"x",),
    ],
)
def test_malformed_list_is_empty(parts: tuple[bytes, ...]) -> None:
    assert unpack(parts) == []


@pytest.mark.parametrize(
    "runs",
    [
        [Run(0, PLACES, ())] * 256,
        [Run(0, PLACES, ()), Run(7, 1, ())],
        [Run(7, 1, (5,)), Run(7, 1, (6,))],
        [Run(8, 8, ()), Run(0, 9, ())],
    ],
)
def test_list_that_names_a_place_twice_is_malformed(runs: list[Run]) -> None:
    """A few bytes of it would have the whole view compared again and again."""
    assert unpack(pack(runs)) == []


@given(st.lists(st.binary(min_size=4, max_size=256), max_size=8))
def test_any_bytes_are_a_list_or_malformed_and_do_no_harm(parts: list[bytes]) -> None:
    table = Table(*map(record, range(30)))
    gives, wants = table.digests.compare(unpack(tuple(parts)))
    assert len(gives) == len(set(gives)) <= 30 and len(table.digests.named(wants)) == 0


def test_list_shows_what_each_side_lacks() -> None:
    one, two = Table(*map(record, range(40))), Table(*map(record, range(20, 60)))
    listed = two.digests.listed(two.digests.differing(one.digests.digest()), 0)
    gives, wants = one.digests.compare(listed)
    assert set(gives) == {peer_id(number) for number in range(20)}
    assert set(two.digests.named(wants)) == {peer_id(number) for number in range(40, 60)}
    assert sum(len(run.marks) for run in first_of(wants, 7)) == 7 and first_of(wants, 100) == wants


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_any_two_tables_are_equal_after_finitely_many_exchanges(data: st.DataObject, seed: int) -> None:
    """Each as bounded as in a message, whatever its digest was like and wherever its list began."""
    random = Random(seed)
    size = data.draw(st.sampled_from([3, 60, 900]))
    kinds = data.draw(st.lists(st.sampled_from([0.0, 0.02, 0.5, 1.0]), min_size=2, max_size=2))
    tables = [Table(record(10**6 + side)) for side in range(2)]
    for number in range(size):
        for table, share in zip(tables, kinds, strict=True):
            if random.random() < share or number % 7 == 0:
                table.put(record(number, state=random.choice(list(State)), refutation=random.randrange(2)))
    exchanges = 0
    while tables[0].records != tables[1].records:
        exchanges += 1
        assert exchanges <= 400
        one, two = random.sample(tables, 2)
        digest = one.digests.digest(coarse=random.random() < 0.5)
        runs = two.digests.differing(digest)
        assert runs
        start = random.randrange(sum(end - first for first, end in runs))
        parts = pack(two.digests.listed(runs, start))
        assert len(parts) <= 8 and len(b"".join(digest)) <= 4 * FINE
        gives, wants = one.digests.compare(unpack(parts))
        asked = pack(first_of(wants, 96))
        assert len(asked) <= 8
        for peer in two.digests.named(unpack(asked)):
            one.merge(two.records[peer])
        for peer in gives[:96]:
            two.merge(one.records[peer])
    assert tables[0].digests.digest() == tables[1].digests.digest()
