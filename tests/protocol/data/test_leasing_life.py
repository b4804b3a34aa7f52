"""Leases over time: late peers, restarts, limits, warnings and traffic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipdp.protocol.data import coverage
from gossipdp.protocol.data import leasing as module
from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import DataSet, Lease, pack
from gossipdp.protocol.events import DataCovered, DataKnown, MessageDropped, Notice
from gossipdp.protocol.wire.messages import MAX_BLOCKS, MAX_LEASES, Coverage, Reader
from tests.protocol.data.world import BLOCKS, DATA, Host, World, peer, word


def test_a_late_peer_begins_where_the_network_is():
    world = World(2)
    world.run(5.0)
    for _ in range(5 * BLOCKS + 7):
        lease = world[0].take(world.now, must=True)
        assert lease is not None
        world[0].finish(lease, world.now)
    world.run(20.0)
    late = Host(9)
    for host in list(world.hosts.values()):
        late.sees(host.me)
        host.sees(late.me)
    world.hosts[late.id] = late
    late.leasing.open(DATA, world.now)
    assert not late.leasing.known(DATA.digest)
    world.deliver()
    assert late.leasing.known(DATA.digest) and late.table.epoch == world[0].table.epoch >= 4
    assert late.take(world.now).epoch in (late.table.epoch, late.table.epoch + 1)


def test_without_answers_leases_begin_after_the_question_was_repeated():
    world = World(2)
    third = Host(7)
    third.sees(world[0].me)
    third.leasing.open(DATA, 100.0)
    asked = [envelope.message for envelope in third.outputs.messages]
    assert [message.reply for message in asked] == [True] and third.events(DataKnown) == []
    third.leasing.handle_timer(100.0 + module.ASK_WITHIN / 2)
    assert [envelope.message.reply for envelope in third.outputs.messages].count(True) == 2
    third.leasing.handle_timer(100.0 + module.ASK_WITHIN)
    assert third.events(DataKnown) == [DataKnown(DATA.digest)]


def test_when_all_of_two_epochs_is_open_one_must_or_must_not():
    world = World(1)
    host = world[0]
    taken = {host.take(0.0) for _ in range(2 * BLOCKS)}
    assert len(taken) == 2 * BLOCKS and host.take(0.0) is None and host.take(0.0, must=True) is None
    world = World(2)
    world.run(5.0)
    others = world[1]
    while world[1].take(world.now) is not None:
        pass
    while world[0].take(world.now) is not None:
        pass
    world.run(20.0)
    stolen = world[0].take(world.now, must=True)
    assert (stolen is not None and stolen in others.table.mine) or stolen in [Lease(0, b) for b in range(BLOCKS)]


def test_in_order_the_next_number_is_taken():
    host = World(1)[0]
    first = host.take(0.0, first=BLOCKS - 2)
    assert [first, *(host.take(0.0, first=lease + 1) for lease in (BLOCKS - 2, BLOCKS - 1))] == [
        Lease(0, BLOCKS - 2),
        Lease(0, BLOCKS - 1),
        Lease(0, 0),
    ]


def test_a_block_that_another_finished_first_counts_as_a_duplicate():
    world = World(2)
    lease = world[0].take(0.0)
    world[1].leasing.finish(DATA.digest, lease, 0.0)
    world.run(10.0)
    world[0].finish(lease, world.now)
    world.run(5.0)
    assert (world[0].table.duplicates, world[1].table.duplicates) == (1, 0)
    assert world[0].events(DataCovered)[-1].duplicates == 1


def test_a_lease_not_finished_for_long_is_given_up():
    world = World(1)
    lease = world[0].take(0.0)
    world.run(module.LEASE_LASTS + 2 * coverage.LATEST)
    assert world[0].table.mine == {} and world[0].events(DataCovered)[-1].open == 0
    assert world[0].take(world.now) == lease


def test_where_blocks_last_long_they_are_not_given_up():
    world = World(2)
    leases = []
    for _ in range(3):
        leases = [host.take(world.now) for host in world.hosts.values()]
        world.run(1.5 * module.LEASE_LASTS)
        told = [world[1 - number].table.readers[peer(number)[:8]].leases for number in range(2)]
        for host, lease in zip(world.hosts.values(), leases, strict=True):
            host.finish(lease, world.now)
    assert told == [(lease.code,) for lease in leases] and world[0].table.usual > module.LEASE_LASTS


def test_state_survives_a_restart_but_for_what_was_open():
    world = World(1)
    host = world[0]
    for _ in range(BLOCKS + 5):
        host.finish(host.take(0.0), 0.0)
    open_ = host.take(0.0)
    again = Host(0, 2)
    again.leasing.restore(host.leasing.state())
    again.leasing.open(DATA, 1.0)
    assert (again.table.epoch, again.table.finished) == (host.table.epoch, host.table.finished)
    assert again.take(1.0) == open_


@given(st.binary(max_size=60))
def test_no_bytes_for_a_state_do_harm(state):
    host = Host(0)
    host.leasing.restore(state)
    assert host.leasing.open(DATA, 0.0)


def test_report_of_a_restarted_peer_overrides_that_of_its_earlier_life():
    one, two = Host(0), Host(1)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)

    def say(*, incarnation, sequence, leases):
        reader = Reader(two.id[:8], incarnation, sequence, True, leases)
        message = Coverage(DATA.digest, "data", BLOCKS, 0, False, (reader,))
        one.leasing.receive(message, [pack(0, BLOCKS)] * 2, two.id, 0.0)
        return one.table.readers[two.id[:8]].leases

    assert say(incarnation=1, sequence=5, leases=(1,)) == (1,)
    assert say(incarnation=1, sequence=4, leases=(2,)) == (1,)
    assert say(incarnation=2, sequence=1, leases=(3,)) == (3,)


def test_report_of_an_earlier_life_makes_no_reader():
    one, two = Host(0), Host(1, incarnation=2)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)
    reader = Reader(two.id[:8], 1, 5, True, ())
    one.leasing.receive(Coverage(DATA.digest, "data", BLOCKS, 0, False, (reader,)), [pack(0, BLOCKS)] * 2, two.id, 0.0)
    assert list(one.table.owners) == [one.id[:8]]


@pytest.mark.parametrize(
    "buffers",
    [
        [b"", b"\0"],
        [b"\0" + b"\xff" * 8, b"\1"],
        [b"\1\xff\xff", b"\1"],
        [b"\7\0\0", b"\1"],
    ],
)
def test_malformed_sets_are_dropped_and_told(buffers):
    host = World(1)[0]
    host.leasing.receive(Coverage(DATA.digest, "data", BLOCKS, 0, False, ()), buffers, peer(5), 0.0)
    assert host.events(MessageDropped) == [MessageDropped(peer(5), "malformed set of blocks")]
    assert host.table.finished == [0, 0] and host.table.epoch == 0


@pytest.mark.parametrize(("blocks", "epoch"), [(BLOCKS + 1, 0), (BLOCKS, (1 << 30) + 1)])
def test_epochs_and_sizes_that_cannot_be_are_not_taken(blocks, epoch):
    host = World(1)[0]
    host.leasing.receive(Coverage(DATA.digest, "data", blocks, epoch, False, ()), [pack(1, blocks)] * 2, peer(5), 0.0)
    assert host.leasing.dropped == 1 and host.table.finished == [0, 0] and host.table.epoch == 0


def test_data_sets_are_bounded_and_those_read_stay():
    host = World(1)[0]
    for number in range(3 * module.MAX_DATA):
        digest = number.to_bytes(16, "big")
        host.leasing.receive(Coverage(digest, "data", 8, 0, False, ()), [pack(1, 8)] * 2, peer(5), 0.0)
    assert host.leasing.table(DATA.digest) is not None and host.leasing.timer() is not None
    known = [number for number in range(99) if host.leasing.table(number.to_bytes(16, "big")) is not None]
    assert len(known) == module.MAX_DATA - 1
    own = [DataSet(bytes([1, number]) + bytes(14), "mine", 8) for number in range(module.MAX_DATA)]
    assert [host.leasing.open(data, 0.0) for data in own].count(False) == 1
    assert not host.leasing.open(DATA._replace(blocks=9), 0.0)


def test_readers_of_different_data_with_one_name_are_told_once():
    host = World(1)[0]
    reader = Reader(peer(1)[:8], 1, 1, True, ())
    for _ in range(3):
        message = Coverage(bytes(16), "data", 8, 0, False, (reader,))
        host.leasing.receive(message, [pack(1, 8)] * 2, peer(1), 0.0)
    notices = host.events(Notice)
    assert [notice.code for notice in notices] == ["GD-309"] and "60" in notices[0].text and "8" in notices[0].text


def test_largest_report_of_one_peer_fits_a_message():
    host = World(1)[0]
    big = DataSet(b"b" * 16, "n" * 48, MAX_BLOCKS)
    host.leasing.open(big, 0.0)
    for _ in range(2 * MAX_LEASES):
        host.leasing.lease(big.digest, 0.0)
    host.sees(Host(1).me)
    for turn in range(4):
        host.leasing.handle_timer(10.0 + 10.0 * turn)
    # Its leases alone are past what a message may hold of others': the own record goes all the same.
    envelope = next(envelope for envelope in host.outputs.messages if envelope.message.data == big.digest)
    assert len(envelope.message.readers[0].leases) == MAX_LEASES and len(envelope.frames[0]) <= 4096


def test_traffic_stays_within_its_rate_and_falls_when_nothing_is_new():
    world = World(64)
    world.run(5.0)
    for host in world.hosts.values():
        host.take(world.now)
    world.bytes, began = 0, world.now
    for _ in range(5):
        for host in world.hosts.values():
            for lease in list(host.table.mine):
                host.finish(lease, world.now)
            host.take(world.now)
        world.run(1.0)
    assert world.bytes / 64 / (world.now - began) < 1.1 * coverage.RATE
    for host in world.hosts.values():
        for lease in list(host.table.mine):
            host.finish(lease, world.now)
    world.run(30.0)
    world.bytes, began = 0, world.now
    world.run(30.0)
    assert world.bytes / 64 / (world.now - began) < 100.0


def test_same_seed_and_inputs_give_the_same_bytes():
    def play():
        world = World(3)
        for _ in range(20):
            for host in world.hosts.values():
                lease = host.take(world.now)
                if lease is not None:
                    host.finish(lease, world.now)
            world.run(0.7)
        return world.bytes, [host.used for host in world.hosts.values()]

    assert play() == play()


# -- costs ------------------------------------------------------------------------------------------------------------


def test_peer_that_reads_nothing_gets_no_lease():
    table, (me, other) = BlockTable(DATA), (peer(number)[:8] for number in range(2))
    table.reads = True
    table.follow(other, {other}, set(), 0.0)
    assert table.choose(me, 0, -1, 2) is None and table.take_over(me, 0) is None and table.inherit(me, 0, -1) is None
    host = World(2)[0]
    host.leasing.close(DATA.digest, 0.0)
    assert host.take(0.0) is None and host.take(0.0, must=True) is None


def test_owners_are_not_computed_for_data_that_a_peer_does_not_read():
    world = World(3)
    world[0].leasing.close(DATA.digest, world.now)
    world.run(10.0)
    assert len(world[0].table.owners) == 0 and world[0].leasing.readers(DATA.digest) == 2
    world[0].leasing.open(DATA, world.now)
    world.run(10.0)
    assert list(world[0].table.owners) == list(world[1].table.owners) and len(world[0].table.owners) == 3


def test_live_members_are_looked_up_once_a_message(monkeypatch):
    host = Host(0)
    host.leasing.open(DATA, 0.0)
    looks = []
    alive = host.membership.alive
    monkeypatch.setattr(host.membership, "alive", lambda: looks.append(1) or alive())
    readers = (Reader(peer(number)[:8], 1, 1, True, ()) for number in range(1, 20))
    host.leasing.receive(*word(0, *readers), peer(1), 0.0)
    assert len(looks) == 1


def test_news_takes_longer_where_several_data_sets_share_a_peers_messages():
    world = World(3)
    world.run(60.0)
    host = world[0]
    alone = host.leasing._gossip.spreading()
    others = [DataSet(bytes([number]) * 16, f"data {number}", 8) for number in (1, 2)]
    for data in others:
        host.leasing.open(data, world.now)
    host.take(world.now)
    assert host.leasing._gossip.spreading() > 2.5 * alone
    # None waits for the news of another to be over.
    host.outputs.messages.clear()
    for _ in range(9):
        host.take(world.now)
        host.leasing.handle_timer(host.leasing.timer())
    about = [envelope.message.data for envelope in host.outputs.messages]
    assert all(about.count(data.digest) >= 2 for data in (DATA, *others))
