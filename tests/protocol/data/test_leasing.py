"""Leases without a coordinator: sets of blocks, their owners, and which block a peer takes next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol.data import leasing as module
from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import DataSet, Lease, pack, unpack
from gossipdp.protocol.data.rendezvous import Owners, elements
from gossipdp.protocol.events import DataKnown
from tests.protocol.data.world import BLOCKS, DATA, Host, World, peer, weight


def test_alone_leases_are_given_at_once_and_epochs_follow_each_other():
    world = World(1)
    host = world[0]
    assert host.events(DataKnown) == [DataKnown(DATA.digest)]
    for turn in range(3 * BLOCKS):
        lease = host.take(float(turn))
        assert lease is not None and lease.epoch == turn // BLOCKS
        host.finish(lease, turn + 0.5)
    assert len(set(host.used)) == 3 * BLOCKS and (host.table.epoch, host.table.duplicates) == (3, 0)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 6), st.randoms(use_true_random=False), st.lists(st.integers(1, 8), min_size=6, max_size=6))
def test_peers_of_agreeing_views_share_an_epoch_without_a_duplicate(hosts, random, speeds):
    world = World(hosts)
    world.run(10.0)
    busy: dict[bytes, tuple[float, Lease]] = {}
    while any(host.table.epoch == 0 for host in world.hosts.values()):
        for place, (name, host) in enumerate(world.hosts.items()):
            if name in busy and busy[name][0] <= world.now:
                host.finish(busy.pop(name)[1], world.now)
            if name not in busy and host.table.epoch == 0 and (lease := host.take(world.now, latest=0)) is not None:
                busy[name] = world.now + 10.0 * speeds[place], lease
        world.run(10.0)
    used = [lease for host in world.hosts.values() for lease in host.used]
    assert sorted(used) == [Lease(0, block) for block in range(BLOCKS)]
    shares = [len(host.used) for host in world.hosts.values()]
    assert all(share > 0 for share in shares) or 8 * sum(speeds[:hosts]) > BLOCKS


def test_two_peers_that_know_of_each_other_never_choose_the_same():
    world = World(4)
    world.run(10.0)
    taken = [world[number].take(world.now) for number in range(4) for _ in range(BLOCKS // 8)]
    assert None not in taken and len(set(taken)) == len(taken)


def test_next_blocks_of_other_owners_are_left_to_them():
    world = World(2)
    world.run(10.0)
    one, two = world[0], world[1]
    theirs = one.table.owners.of(two.id[:8])
    helped = set()
    while (lease := one.take(world.now, latest=0)) is not None:
        helped.add(lease.block)
    kept = [two.take(world.now, latest=0) for _ in range(module.KEPT)]
    assert helped & set(elements(theirs)) and not {lease.block for lease in kept if lease} & helped


def test_open_and_own_blocks_of_a_dead_member_fall_to_others():
    world = World(3)
    world.run(10.0)
    lease = world[2].take(world.now)
    assert lease is not None
    world.run(10.0)
    code = lease.code
    assert all(code in world[number].table.readers[peer(2)[:8]].leases for number in (0, 1))
    world.kill(2)
    found = {world[number].take(world.now, latest=0) for number in (0, 1) for _ in range(BLOCKS)}
    assert {Lease(0, block) for block in range(BLOCKS)} - found == set() and lease in found


def test_member_that_stops_reading_leaves_its_blocks_to_others():
    world = World(2)
    world.run(10.0)
    lease = world[1].take(world.now)
    world[1].leasing.close(DATA.digest, world.now)
    world.run(10.0)
    assert list(world[0].table.owners) == [peer(0)[:8]]
    assert lease in {world[0].take(world.now, latest=0) for _ in range(BLOCKS)}


def test_gained_blocks_wait_for_news_of_their_former_owner():
    world = World(3)
    world.run(10.0)
    host = world[0]
    before = host.table.owners.of(host.id[:8])
    world.kill(2)
    inherited = host.table.owners.of(host.id[:8]) & ~before
    taken = [host.take(world.now, latest=0) for _ in range(before.bit_count())]
    assert inherited and {lease.block for lease in taken if lease} == set(elements(before))
    world.now += host.leasing._gossip.spreading()
    settled = [host.take(world.now, latest=0) for _ in range(inherited.bit_count())]
    assert {lease.block for lease in settled if lease} == set(elements(inherited))


def test_gained_blocks_are_taken_if_there_is_nothing_else_to_do():
    world = World(2)
    world.run(10.0)
    world.kill(1)
    taken = [world[0].take(world.now, latest=0) for _ in range(BLOCKS)]
    assert {lease.block for lease in taken if lease} == set(range(BLOCKS))


def test_newcomer_begins_with_the_blocks_that_former_owners_reach_last():
    world = World(2)
    world.run(10.0)
    owners = Owners(BLOCKS)
    owners.become(host.id[:8] for host in world.hosts.values())
    late = world.join(9)
    own = late.table.owners.of(late.id[:8])
    weights = {block: max(weight(owner, block, BLOCKS) for owner in owners) for block in elements(own)}
    taken = [late.take(world.now, latest=0) for _ in range(3)]
    assert [lease.block for lease in taken if lease] == sorted(weights, key=weights.__getitem__)[:3]
    # Once it is known to all it goes by its own weights.
    world.run(10.0)
    heaviest = max(elements(own & ~late.table._held(0)), key=lambda block: weight(late.id[:8], block, BLOCKS))
    assert late.take(world.now) == Lease(0, heaviest)


def test_newcomer_is_told_of_all_readers():
    world = World(30)
    world.run(20.0)
    late = world.join(50)
    assert len(late.table.readers) == late.leasing.readers(DATA.digest) == 31
    assert all(
        late.table.owners.of(host.id[:8]) == host.table.owners.of(host.id[:8]) & ~late.table.owners.of(late.id[:8])
        for host in world.hosts.values()
        if host is not late
    )


def unanswered():
    """A newcomer that sees five members and has asked them. None has answered."""
    late = Host(9)
    for number in range(5):
        late.sees(Host(number).me)
    late.leasing.open(DATA, 0.0)
    late.leasing.handle_timer(module.ASK_WITHIN)
    return late


def test_members_that_a_newcomer_has_not_heard_keep_their_blocks_for_a_while():
    late = unanswered()
    mine = late.table.owners.of(late.id[:8])
    assert late.leasing.known(DATA.digest) and late.leasing.readers(DATA.digest) == 1
    assert 0 < mine.bit_count() < BLOCKS / 2
    taken = [late.take(module.ASK_WITHIN) for _ in range(mine.bit_count())]
    assert {lease.block for lease in taken if lease} == set(elements(mine))
    # They do not read, it seems.
    now = module.ASK_WITHIN + late.leasing._gossip.spreading()
    assert late.take(now) is not None and late.table.owners.of(late.id[:8]) == (1 << BLOCKS) - 1


def test_question_about_a_finished_epoch_tells_no_readers():
    late = unanswered()
    late.table.merge(1, [0, 0])
    mine = late.table.owners.of(late.id[:8])
    assert late.take(module.ASK_WITHIN, latest=0) is None
    assert len(late.table.presumed) == 5 and late.table.owners.of(late.id[:8]) == mine


def test_members_with_hardly_any_blocks_left_share_in_helping():
    table, kept = BlockTable(DATA), 3
    table.reads = True
    one, two, slow = (peer(number)[:8] for number in range(3))
    table.follow(one, {one, two, slow}, set(), 0.0)
    theirs = sorted(elements(table.owners.of(two)), key=lambda block: weight(two, block, BLOCKS))
    nearly = table.owners.of(one) | sum(1 << block for block in theirs[kept:])
    table.merge(0, [nearly, 0])
    helped = set()
    while (block := table.choose(one, 0, -1, kept)) is not None:
        helped.add(block)
        table.merge(0, [1 << block, 0])
    assert helped and all(weight(one, block, BLOCKS) > weight(two, block, BLOCKS) for block in helped)
    # It is not yet to help itself.
    assert table.choose(two, 0, -1, kept) == theirs[kept - 1]


def test_more_is_left_to_owners_the_longer_news_takes():
    def left(hosts: int) -> int:
        world = World(hosts)
        world.run(10.0)
        host = world[0]
        host.finish(host.take(world.now, latest=0), world.now + 0.2)
        while host.take(world.now, latest=0) is not None:
            pass
        other = world[1].id[:8]
        return (host.table._free(host.id[:8], 0) & host.table.owners.of(other)).bit_count() * hosts

    assert left(2) > 2 * (module.KEPT + 1)
    small, large = World(2), World(16)
    for world in (small, large):
        world.run(10.0)
    assert 0.0 < small[0].leasing._gossip.spreading() < large[0].leasing._gossip.spreading() / 2


names = st.sets(st.integers(0, 40).map(lambda number: peer(number)[:8]), max_size=8)


@given(st.lists(names, min_size=1, max_size=5), st.integers(1, 200))
def test_owners_follow_from_the_members_whatever_came_before(steps, blocks):
    owners, fresh = Owners(blocks), Owners(blocks)
    for members in steps:
        owners.become(members)
    fresh.become(steps[-1])
    assert {member: owners.of(member) for member in owners} == {member: fresh.of(member) for member in fresh}


@given(names, st.integers(1, 200))
def test_every_block_has_one_owner_while_there_are_members(members, blocks):
    owners = Owners(blocks)
    owners.become(members)
    sets = [owners.of(member) for member in owners]
    assert sum(each.bit_count() for each in sets) == (blocks if members else 0)
    for block in range(blocks):
        heaviest = max(members, key=lambda member: weight(member, block, blocks), default=None)
        assert heaviest is None or owners.of(heaviest) >> block & 1


@given(names, st.integers(0, 40), st.integers(1, 200))
def test_a_member_that_joins_moves_only_what_it_takes_and_one_that_leaves_only_what_it_had(members, number, blocks):
    other = peer(number)[:8]
    one, two = Owners(blocks), Owners(blocks)
    one.become(members - {other})
    two.become(members | {other})
    assert all(one.of(member) & ~two.of(member) & ~two.of(other) == 0 for member in members - {other})


def test_blocks_are_shared_out_evenly():
    owners = Owners(4096)
    owners.become(peer(number)[:8] for number in range(16))
    assert all(200 < owners.of(member).bit_count() < 320 for member in owners)


def test_weights_are_the_same_everywhere():
    assert [weight(b"somebody", block, 9) for block in (0, 8)] == [82798350901062, 72255194013073]


@given(st.integers(0, 40), st.sets(st.integers(0, 199)), st.integers(1, 12))
def test_heaviest_blocks_are_found_without_a_look_at_each(number, chosen, count):
    me, others = peer(number)[:8], [peer(50 + other)[:8] for other in range(3)]
    owners, blocks = Owners(200), sum(1 << block for block in chosen)
    owners.become([me, *others])
    ordered = sorted(chosen, key=lambda block: weight(me, block, 200), reverse=True)
    assert set(elements(owners.heaviest(me, blocks, count))) == set(ordered[:count])
    if chosen:
        least = min(chosen, key=lambda block: max(weight(other, block, 200) for other in others))
        assert owners.lightest(others, blocks) == 1 << least
    shared = owners.shared(blocks, others)
    assert sum(shared.values()) == blocks
    assert all(
        weight(other, block, 200) == max(weight(each, block, 200) for each in others)
        for other in others
        for block in elements(shared[other])
    )


# -- sets on the wire -------------------------------------------------------------------------------------------------


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, (1 << count) - 1))))
def test_a_set_survives_the_wire(drawn):
    count, blocks = drawn
    data = pack(blocks, count)
    assert unpack(memoryview(data), count) == blocks and len(data) <= 1 + (count + 7) // 8


@pytest.mark.parametrize("left", [0, 1, 5])
def test_a_set_nearly_empty_or_nearly_full_is_short(left):
    few = sum(1 << 700 * place for place in range(left))
    everything = (1 << 4096) - 1
    assert len(pack(few, 4096)) == len(pack(everything ^ few, 4096)) == 1 + 2 * left


@given(st.binary(max_size=40), st.integers(1, 300))
def test_any_bytes_are_a_set_within_bounds_or_malformed(data, count):
    found = unpack(data, count)
    assert found is None or 0 <= found < 1 << count


# -- a table ---------------------------------------------------------------------------------------------------------

facts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 8) - 1)), max_size=12)


@given(facts, st.randoms())
def test_any_order_and_duplication_of_what_is_finished_gives_the_same(facts, random):
    shuffled = facts + facts[::2]
    random.shuffle(shuffled)
    one, two = (BlockTable(DataSet(bytes(16), "data", 8)) for _ in range(2))
    for table, words in ((one, facts), (two, shuffled)):
        for epoch, *finished in words:
            table.merge(epoch, finished)
        # What came before its epoch was known of is told again.
        for epoch, *finished in words:
            table.merge(epoch, finished)
    assert (one.epoch, one.finished) == (two.epoch, two.finished)


@given(facts)
def test_nothing_finished_is_ever_unfinished(facts):
    table = BlockTable(DataSet(bytes(16), "data", 8))
    done = set()
    for epoch, *finished in facts:
        table.merge(epoch, finished)
        assert all(table.is_finished(lease) for lease in done)
        done |= {Lease(e, b) for e in range(5) for b in range(8) if table.is_finished(Lease(e, b))}
