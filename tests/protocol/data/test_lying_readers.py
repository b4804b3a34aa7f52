"""Members that lie about data do bounded harm."""

import pytest

from gossipdp.protocol.data import coverage
from gossipdp.protocol.data import leasing as module
from gossipdp.protocol.data.blocks import pack
from gossipdp.protocol.wire.messages import Coverage, Reader
from tests.protocol.data.world import BLOCKS, DATA, Host, World, peer, word


def test_member_that_asks_without_end_is_answered_at_intervals_and_delays_nothing():
    world = World(30)
    world.run(20.0)
    host, liar = world[0], world[1]
    host.take(world.now)
    due = host.leasing.timer()
    for _ in range(100):
        host.leasing.receive(*word(reply=True), liar.id, world.now)
    assert len(host.outputs.messages) <= coverage.MOST_ANSWERS and host.leasing.timer() == due
    host.leasing.handle_timer(due)
    assert host.leasing.timer() <= due + coverage.LATEST
    # Somebody else is answered, and so is a question that is repeated.
    for source, now in ((world[2].id, world.now), (liar.id, world.now + module.ASK_WITHIN / 2)):
        host.outputs.messages.clear()
        host.leasing.receive(*word(reply=True), source, now)
        assert host.outputs.messages


def test_a_member_that_never_catches_up_gets_every_other_message_at_most():
    world = World(4)
    world.run(10.0)
    host, liar, slow = (world[number] for number in range(3))
    host.table.merge(3, [0, 0])
    world.cut = {host.id}
    world.deliver()
    for turn in range(40):
        if turn == 10:
            host.leasing.receive(*word(), slow.id, world.now)
        host.leasing.receive(*word(), liar.id, world.now)
        world.now = max(world.now, host.leasing.timer())
        host.leasing.handle_timer(world.now)
    whole = [env.to for env in host.outputs.messages if env.message.epoch == 3]
    ring = [env for env in host.outputs.messages if env.to != liar.id]
    assert len(whole) == 40 and len(ring) >= 40 // 3 and slow.id in whole[10:13]


@pytest.mark.parametrize("sequence", [5000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
@pytest.mark.parametrize("reads", [False, True])
def test_own_report_holds_against_reports_by_others(sequence, reads):
    world = World(4)
    world.run(10.0)
    victim, other, liar = world[0], world[1], world[3]
    lease = victim.take(world.now)
    forged = Reader(victim.id[:8], 1, sequence, reads, (9,))
    other.leasing.receive(*word(0, forged), liar.id, world.now)
    world.run(10.0)
    known = other.table.readers[victim.id[:8]]
    assert known.reads and known.leases == (lease.code,) and victim.id[:8] in other.table.owners
    # What it says from then on is heard as well.
    victim.finish(lease, world.now)
    world.run(10.0)
    assert all(host.table.readers[victim.id[:8]].leases == () for host in world.hosts.values())


def test_false_report_that_a_peer_reads_is_soon_contradicted():
    world = World(3)
    world[0].leasing.close(DATA.digest, world.now)
    world.run(10.0)
    del world[0].table.readers[world[0].id[:8]]
    world[1].leasing.receive(*word(0, Reader(world[0].id[:8], 1, 700, True, ())), world[2].id, world.now)
    world.run(10.0)
    assert world[0].id[:8] not in world[1].table.owners


def test_unknown_incarnation_is_believed_only_from_the_peer_itself():
    one, two = Host(0), Host(1)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)
    later = Reader(two.id[:8], 2, 1, True, ())
    one.leasing.receive(*word(0, later), peer(5), 0.0)
    assert two.id[:8] not in one.table.readers
    one.leasing.receive(*word(0, later), two.id, 0.0)
    assert one.table.readers[two.id[:8]] == later


def test_report_of_an_incarnation_that_never_began_is_forgotten():
    one, two = Host(0), Host(1)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)
    one.table.readers[two.id[:8]] = Reader(two.id[:8], 10, 1 << 31, False, ())
    own = Reader(two.id[:8], two.me.incarnation, 57, True, ())
    one.leasing.receive(*word(0, own), two.id, 0.0)
    assert one.table.readers[two.id[:8]] == own and one.leasing.readers(DATA.digest) == 2


def test_newcomer_believes_any_epoch_of_the_members_it_asked():
    world = World(2)
    world.run(10.0)
    late = Host(9)
    late.sees(world[0].me)
    late.leasing.open(DATA, 0.0)
    late.leasing.receive(*word((1 << 30) + 9), peer(5), 0.1)
    assert late.table.epoch == 0
    late.leasing.receive(*word((1 << 30) + 9), world[0].id, 0.1)
    assert late.table.epoch == (1 << 30) + 9


@pytest.mark.parametrize("epoch", [(1 << 30) - 2, (1 << 30) - 1, 1 << 30])
def test_any_epoch_that_a_peer_believes_is_believed_by_others(epoch):
    world = World(3)
    world.run(10.0)
    everything = (1 << BLOCKS) - 1
    world[0].leasing.receive(*word(epoch, finished=everything), world[2].id, world.now)
    world.run(10.0)
    assert len({host.table.epoch for host in world.hosts.values()}) == 1
    # And reading goes on.
    for _ in range(2 * BLOCKS):
        lease = world[0].take(world.now, must=True)
        assert lease is not None
        world[0].finish(lease, world.now)
    world.run(10.0)
    assert len({host.table.epoch for host in world.hosts.values()}) == 1


def test_invented_data_sets_do_not_take_the_place_of_what_was_restored():
    before, host = World(1)[0], Host(1)
    before.finish(before.take(0.0), 0.0)
    host.leasing.restore(before.leasing.state())
    for number in range(2 * module.MAX_DATA):
        digest = number.to_bytes(16, "big")
        host.leasing.receive(Coverage(digest, "data", 8, 0, False, ()), [pack(1, 8)] * 2, peer(5), 0.0)
    assert host.table.finished == before.table.finished


def test_block_table_is_bounded_whatever_it_is_told():
    world = World(3)
    world.run(10.0)
    host, other = world[0], world[1].id[:8]
    sizes = []
    for turn in range(2000):
        flipped = Reader(other, 1, 1000 + turn, bool(turn % 2), ())
        host.leasing.receive(*word(0, flipped), world[1].id, world.now + 0.01 * turn)
        sizes.append(sum(len(each) for each in vars(host.table).values() if hasattr(each, "__len__")))
    assert max(sizes[1000:]) <= max(sizes[200:1000])
