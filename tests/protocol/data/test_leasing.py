"""Leases without a coordinator: which block a peer takes next."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol.data import leasing as module
from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import Lease
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
