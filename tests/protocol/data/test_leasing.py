"""Leases without a coordinator: owners by highest random weight, finished blocks by union, and help."""

from __future__ import annotations

import hashlib
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol.data import coverage
from gossipdp.protocol.data import leasing as module
from gossipdp.protocol.data.blocks import DataSet, Lease, pack, unpack
from gossipdp.protocol.data.leasing import Leasing
from gossipdp.protocol.data.ledger import Ledger
from gossipdp.protocol.data.rendezvous import Owners, elements, weights
from gossipdp.protocol.events import DataCovered, DataKnown, Notice
from gossipdp.protocol.membership.membership import LAN, Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import MAX_BLOCKS, MAX_LEASES, Coverage, Member, Ping, Reader, State
from tests.protocol.membership.trusting import TRUSTING


def peer(number: int) -> bytes:
    return hashlib.blake2b(bytes([number]), digest_size=32).digest()


@cache
def weight(member: bytes, block: int, blocks: int) -> int:
    bits = [str(part >> block & 1) for part in weights(member, blocks)]
    return int("".join(bits), 2)


names = st.sets(st.integers(0, 40).map(lambda number: peer(number)[:8]), max_size=8)


# -- highest random weight (Thaler and Ravishankar 1998) --------------------------------------------------------------


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


# -- a ledger ---------------------------------------------------------------------------------------------------------

BLOCKS = 60
facts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 8) - 1)), max_size=12)


@given(facts, st.randoms())
def test_any_order_and_duplication_of_what_is_finished_gives_the_same(facts, random):
    shuffled = facts + facts[::2]
    random.shuffle(shuffled)
    one, two = (Ledger(DataSet(bytes(16), "data", 8)) for _ in range(2))
    for ledger, words in ((one, facts), (two, shuffled)):
        for epoch, *finished in words:
            ledger.merge(epoch, finished)
        # What came before its epoch was known of is told again.
        for epoch, *finished in words:
            ledger.merge(epoch, finished)
    assert (one.epoch, one.finished) == (two.epoch, two.finished)


@given(facts)
def test_nothing_finished_is_ever_unfinished(facts):
    ledger = Ledger(DataSet(bytes(16), "data", 8))
    done = set()
    for epoch, *finished in facts:
        ledger.merge(epoch, finished)
        assert all(ledger.is_finished(lease) for lease in done)
        done |= {Lease(e, b) for e in range(5) for b in range(8) if ledger.is_finished(Lease(e, b))}


# -- machines ---------------------------------------------------------------------------------------------------------

DATA = DataSet(b"what is read now"[:16], "data", BLOCKS)


class Host:
    def __init__(self, number: int, incarnation: int = 1) -> None:
        self.id, self.outputs, self.news = peer(number), Outputs(), Outputs()
        self.me = Member(self.id, f"p{number}", f"10.0.0.{number}:1", incarnation, 0, State.ALIVE)
        random = Random(number)
        self.membership = Membership(
            LAN,
            self.me,
            random=random,
            outputs=self.news,
            emit=self.news.emit,
            now=0.0,
            progress=ProgressBoard(self.id),
            signer=TRUSTING,
        )
        self.leasing = Leasing(
            self.membership,
            incarnation=incarnation,
            random=random,
            outputs=self.outputs,
            now=0.0,
        )
        self.used: list[Lease] = []

    def sees(self, member: Member) -> None:
        self.membership.receive(Ping(1, (member,)), member.id, 0.0)
        self.leasing.member_changed(0.0)

    def take(self, now: float, **options) -> Lease | None:
        return self.leasing.lease(DATA.digest, now, **options)

    def finish(self, lease: Lease, now: float) -> None:
        self.used.append(lease)
        self.leasing.finish(DATA.digest, lease, now)

    @property
    def ledger(self) -> Ledger:
        ledger = self.leasing.ledger(DATA.digest)
        assert ledger is not None
        return ledger

    def events(self, kind):
        return [event for event in self.outputs.events if isinstance(event, kind)]


class World:
    """Hosts whose messages arrive at once. The test sets their time."""

    def __init__(self, hosts: int) -> None:
        self.now = 0.0
        self.hosts = {peer(number): Host(number) for number in range(hosts)}
        self.cut: set[bytes] = set()
        self.bytes = 0
        for one in self.hosts.values():
            for other in self.hosts.values():
                if one is not other:
                    one.sees(other.me)
        for host in self.hosts.values():
            assert host.leasing.open(DATA, 0.0)
        self.deliver()

    def __getitem__(self, number: int) -> Host:
        return self.hosts[peer(number)]

    def deliver(self) -> None:
        while any(host.outputs.messages for host in self.hosts.values()):
            for host in self.hosts.values():
                while host.outputs.messages:
                    envelope = host.outputs.messages.popleft()
                    message, buffers = wire.decode([bytes(frame) for frame in envelope.frames])
                    self.bytes += sum(len(bytes(frame)) for frame in envelope.frames)
                    target = self.hosts.get(envelope.to)
                    if target is not None and not self.cut & {host.id, envelope.to}:
                        target.leasing.receive(message, buffers, host.id, self.now)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = min(timer for host in self.hosts.values() if (timer := host.leasing.timer()) is not None)
            if due >= until:
                break
            self.now = max(self.now, due)
            for host in self.hosts.values():
                timer = host.leasing.timer()
                if timer is not None and timer <= self.now:
                    host.leasing.handle_timer(self.now)
            self.deliver()
        self.now = until

    def join(self, number: int) -> Host:
        late = Host(number)
        for host in self.hosts.values():
            late.sees(host.me)
            host.sees(late.me)
        self.hosts[late.id] = late
        late.leasing.open(DATA, self.now)
        self.deliver()
        return late

    def kill(self, number: int) -> None:
        lost = self.hosts.pop(peer(number)).me
        for host in self.hosts.values():
            failed = Member(lost.id, lost.name, lost.address, lost.incarnation, 0, State.FAILED)
            host.membership.receive(Ping(1, (host.me, failed)), next(iter(self.hosts)), self.now)
            host.membership.receive(Ping(1, (failed,)), bytes(32), self.now)
            host.leasing.member_changed(self.now)


def test_alone_leases_are_given_at_once_and_epochs_follow_each_other():
    world = World(1)
    host = world[0]
    assert host.events(DataKnown) == [DataKnown(DATA.digest)]
    for turn in range(3 * BLOCKS):
        lease = host.take(float(turn))
        assert lease is not None and lease.epoch == turn // BLOCKS
        host.finish(lease, turn + 0.5)
    assert len(set(host.used)) == 3 * BLOCKS and (host.ledger.epoch, host.ledger.duplicates) == (3, 0)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 6), st.randoms(use_true_random=False), st.lists(st.integers(1, 8), min_size=6, max_size=6))
def test_peers_of_agreeing_views_share_an_epoch_without_a_duplicate(hosts, random, speeds):
    world = World(hosts)
    world.run(10.0)
    busy: dict[bytes, tuple[float, Lease]] = {}
    while any(host.ledger.epoch == 0 for host in world.hosts.values()):
        for place, (name, host) in enumerate(world.hosts.items()):
            if name in busy and busy[name][0] <= world.now:
                host.finish(busy.pop(name)[1], world.now)
            if name not in busy and host.ledger.epoch == 0 and (lease := host.take(world.now, latest=0)) is not None:
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
    theirs = one.ledger.owners.of(two.id[:8])
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
    assert all(code in world[number].ledger.readers[peer(2)[:8]].leases for number in (0, 1))
    world.kill(2)
    found = {world[number].take(world.now, latest=0) for number in (0, 1) for _ in range(BLOCKS)}
    assert {Lease(0, block) for block in range(BLOCKS)} - found == set() and lease in found


def test_member_that_stops_reading_leaves_its_blocks_to_others():
    world = World(2)
    world.run(10.0)
    lease = world[1].take(world.now)
    world[1].leasing.close(DATA.digest, world.now)
    world.run(10.0)
    assert list(world[0].ledger.owners) == [peer(0)[:8]]
    assert lease in {world[0].take(world.now, latest=0) for _ in range(BLOCKS)}


def test_gained_blocks_wait_for_news_of_their_former_owner():
    world = World(3)
    world.run(10.0)
    host = world[0]
    before = host.ledger.owners.of(host.id[:8])
    world.kill(2)
    inherited = host.ledger.owners.of(host.id[:8]) & ~before
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
    own = late.ledger.owners.of(late.id[:8])
    weights = {block: max(weight(owner, block, BLOCKS) for owner in owners) for block in elements(own)}
    taken = [late.take(world.now, latest=0) for _ in range(3)]
    assert [lease.block for lease in taken if lease] == sorted(weights, key=weights.__getitem__)[:3]
    # Once it is known to all it goes by its own weights.
    world.run(10.0)
    heaviest = max(elements(own & ~late.ledger._held(0)), key=lambda block: weight(late.id[:8], block, BLOCKS))
    assert late.take(world.now) == Lease(0, heaviest)


def test_newcomer_is_told_of_all_readers():
    world = World(30)
    world.run(20.0)
    late = world.join(50)
    assert len(late.ledger.readers) == late.leasing.readers(DATA.digest) == 31
    assert all(
        late.ledger.owners.of(host.id[:8]) == host.ledger.owners.of(host.id[:8]) & ~late.ledger.owners.of(late.id[:8])
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
    mine = late.ledger.owners.of(late.id[:8])
    assert late.leasing.known(DATA.digest) and late.leasing.readers(DATA.digest) == 1
    assert 0 < mine.bit_count() < BLOCKS / 2
    taken = [late.take(module.ASK_WITHIN) for _ in range(mine.bit_count())]
    assert {lease.block for lease in taken if lease} == set(elements(mine))
    # They do not read, it seems.
    now = module.ASK_WITHIN + late.leasing._gossip.spreading()
    assert late.take(now) is not None and late.ledger.owners.of(late.id[:8]) == (1 << BLOCKS) - 1


def test_question_about_a_finished_epoch_tells_no_readers():
    late = unanswered()
    late.ledger.merge(1, [0, 0])
    mine = late.ledger.owners.of(late.id[:8])
    assert late.take(module.ASK_WITHIN, latest=0) is None
    assert len(late.ledger.presumed) == 5 and late.ledger.owners.of(late.id[:8]) == mine


def test_members_with_hardly_any_blocks_left_share_in_helping():
    ledger, kept = Ledger(DATA), 3
    ledger.reads = True
    one, two, slow = (peer(number)[:8] for number in range(3))
    ledger.follow(one, {one, two, slow}, set(), 0.0)
    theirs = sorted(elements(ledger.owners.of(two)), key=lambda block: weight(two, block, BLOCKS))
    nearly = ledger.owners.of(one) | sum(1 << block for block in theirs[kept:])
    ledger.merge(0, [nearly, 0])
    helped = set()
    while (block := ledger.choose(one, 0, -1, kept)) is not None:
        helped.add(block)
        ledger.merge(0, [1 << block, 0])
    assert helped and all(weight(one, block, BLOCKS) > weight(two, block, BLOCKS) for block in helped)
    # It is not yet to help itself.
    assert ledger.choose(two, 0, -1, kept) == theirs[kept - 1]


def test_more_is_left_to_owners_the_longer_news_takes():
    def left(hosts: int) -> int:
        world = World(hosts)
        world.run(10.0)
        host = world[0]
        host.finish(host.take(world.now, latest=0), world.now + 0.2)
        while host.take(world.now, latest=0) is not None:
            pass
        other = world[1].id[:8]
        return (host.ledger._free(host.id[:8], 0) & host.ledger.owners.of(other)).bit_count() * hosts

    assert left(2) > 2 * (module.KEPT + 1)
    small, large = World(2), World(16)
    for world in (small, large):
        world.run(10.0)
    assert 0.0 < small[0].leasing._gossip.spreading() < large[0].leasing._gossip.spreading() / 2


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
    assert late.leasing.known(DATA.digest) and late.ledger.epoch == world[0].ledger.epoch >= 4
    assert late.take(world.now).epoch in (late.ledger.epoch, late.ledger.epoch + 1)


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
    assert (stolen is not None and stolen in others.ledger.mine) or stolen in [Lease(0, b) for b in range(BLOCKS)]


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
    assert (world[0].ledger.duplicates, world[1].ledger.duplicates) == (1, 0)
    assert world[0].events(DataCovered)[-1].duplicates == 1


def test_a_lease_not_finished_for_long_is_given_up():
    world = World(1)
    lease = world[0].take(0.0)
    world.run(module.LEASE_LASTS + 2 * coverage.LATEST)
    assert world[0].ledger.mine == {} and world[0].events(DataCovered)[-1].open == 0
    assert world[0].take(world.now) == lease


def test_where_blocks_last_long_they_are_not_given_up():
    world = World(2)
    leases = []
    for _ in range(3):
        leases = [host.take(world.now) for host in world.hosts.values()]
        world.run(1.5 * module.LEASE_LASTS)
        told = [world[1 - number].ledger.readers[peer(number)[:8]].leases for number in range(2)]
        for host, lease in zip(world.hosts.values(), leases, strict=True):
            host.finish(lease, world.now)
    assert told == [(lease.code,) for lease in leases] and world[0].ledger.usual > module.LEASE_LASTS


def test_state_survives_a_restart_but_for_what_was_open():
    world = World(1)
    host = world[0]
    for _ in range(BLOCKS + 5):
        host.finish(host.take(0.0), 0.0)
    open_ = host.take(0.0)
    again = Host(0, 2)
    again.leasing.restore(host.leasing.state())
    again.leasing.open(DATA, 1.0)
    assert (again.ledger.epoch, again.ledger.finished) == (host.ledger.epoch, host.ledger.finished)
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
        return one.ledger.readers[two.id[:8]].leases

    assert say(incarnation=1, sequence=5, leases=(1,)) == (1,)
    assert say(incarnation=1, sequence=4, leases=(2,)) == (1,)
    assert say(incarnation=2, sequence=1, leases=(3,)) == (3,)


def test_report_of_an_earlier_life_makes_no_reader():
    one, two = Host(0), Host(1, incarnation=2)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)
    reader = Reader(two.id[:8], 1, 5, True, ())
    one.leasing.receive(Coverage(DATA.digest, "data", BLOCKS, 0, False, (reader,)), [pack(0, BLOCKS)] * 2, two.id, 0.0)
    assert list(one.ledger.owners) == [one.id[:8]]


@pytest.mark.parametrize(
    ("blocks", "epoch", "buffers"),
    [
        (BLOCKS + 1, 0, None),
        (BLOCKS, (1 << 30) + 1, None),
        (BLOCKS, 0, [b"", b"\0"]),
        (BLOCKS, 0, [b"\0" + b"\xff" * 8, b"\1"]),
        (BLOCKS, 0, [b"\1\xff\xff", b"\1"]),
        (BLOCKS, 0, [b"\7\0\0", b"\1"]),
    ],
)
def test_malformed_messages_are_dropped_and_counted(blocks, epoch, buffers):
    host = World(1)[0]
    message = Coverage(DATA.digest, "data", blocks, epoch, False, ())
    host.leasing.receive(message, buffers or [pack(1, blocks)] * 2, peer(5), 0.0)
    assert host.leasing.dropped == 1 and host.ledger.finished == [0, 0] and host.ledger.epoch == 0


def test_data_sets_are_bounded_and_those_read_stay():
    host = World(1)[0]
    for number in range(3 * module.MAX_DATA):
        digest = number.to_bytes(16, "big")
        host.leasing.receive(Coverage(digest, "data", 8, 0, False, ()), [pack(1, 8)] * 2, peer(5), 0.0)
    assert host.leasing.ledger(DATA.digest) is not None and host.leasing.timer() is not None
    known = [number for number in range(99) if host.leasing.ledger(number.to_bytes(16, "big")) is not None]
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
            for lease in list(host.ledger.mine):
                host.finish(lease, world.now)
            host.take(world.now)
        world.run(1.0)
    assert world.bytes / 64 / (world.now - began) < 1.1 * coverage.RATE
    for host in world.hosts.values():
        for lease in list(host.ledger.mine):
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


# -- members that lie -------------------------------------------------------------------------------------------------


def word(epoch: int = 0, *readers: Reader, reply: bool = False, finished: int = 0):
    message = Coverage(DATA.digest, "data", BLOCKS, epoch, reply, readers)
    return message, [pack(finished, BLOCKS)] * 2


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
    host.ledger.merge(3, [0, 0])
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
    known = other.ledger.readers[victim.id[:8]]
    assert known.reads and known.leases == (lease.code,) and victim.id[:8] in other.ledger.owners
    # What it says from then on is heard as well.
    victim.finish(lease, world.now)
    world.run(10.0)
    assert all(host.ledger.readers[victim.id[:8]].leases == () for host in world.hosts.values())


def test_false_report_that_a_peer_reads_is_soon_contradicted():
    world = World(3)
    world[0].leasing.close(DATA.digest, world.now)
    world.run(10.0)
    del world[0].ledger.readers[world[0].id[:8]]
    world[1].leasing.receive(*word(0, Reader(world[0].id[:8], 1, 700, True, ())), world[2].id, world.now)
    world.run(10.0)
    assert world[0].id[:8] not in world[1].ledger.owners


def test_unknown_incarnation_is_believed_only_from_the_peer_itself():
    one, two = Host(0), Host(1)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)
    later = Reader(two.id[:8], 2, 1, True, ())
    one.leasing.receive(*word(0, later), peer(5), 0.0)
    assert two.id[:8] not in one.ledger.readers
    one.leasing.receive(*word(0, later), two.id, 0.0)
    assert one.ledger.readers[two.id[:8]] == later


def test_report_of_an_incarnation_that_never_began_is_forgotten():
    one, two = Host(0), Host(1)
    one.sees(two.me)
    one.leasing.open(DATA, 0.0)
    one.ledger.readers[two.id[:8]] = Reader(two.id[:8], 10, 1 << 31, False, ())
    own = Reader(two.id[:8], two.me.incarnation, 57, True, ())
    one.leasing.receive(*word(0, own), two.id, 0.0)
    assert one.ledger.readers[two.id[:8]] == own and one.leasing.readers(DATA.digest) == 2


def test_newcomer_believes_any_epoch_of_the_members_it_asked():
    world = World(2)
    world.run(10.0)
    late = Host(9)
    late.sees(world[0].me)
    late.leasing.open(DATA, 0.0)
    late.leasing.receive(*word((1 << 30) + 9), peer(5), 0.1)
    assert late.ledger.epoch == 0
    late.leasing.receive(*word((1 << 30) + 9), world[0].id, 0.1)
    assert late.ledger.epoch == (1 << 30) + 9


@pytest.mark.parametrize("epoch", [(1 << 30) - 2, (1 << 30) - 1, 1 << 30])
def test_any_epoch_that_a_peer_believes_is_believed_by_others(epoch):
    world = World(3)
    world.run(10.0)
    everything = (1 << BLOCKS) - 1
    world[0].leasing.receive(*word(epoch, finished=everything), world[2].id, world.now)
    world.run(10.0)
    assert len({host.ledger.epoch for host in world.hosts.values()}) == 1
    # And reading goes on.
    for _ in range(2 * BLOCKS):
        lease = world[0].take(world.now, must=True)
        assert lease is not None
        world[0].finish(lease, world.now)
    world.run(10.0)
    assert len({host.ledger.epoch for host in world.hosts.values()}) == 1


def test_invented_data_sets_do_not_take_the_place_of_what_was_restored():
    before, host = World(1)[0], Host(1)
    before.finish(before.take(0.0), 0.0)
    host.leasing.restore(before.leasing.state())
    for number in range(2 * module.MAX_DATA):
        digest = number.to_bytes(16, "big")
        host.leasing.receive(Coverage(digest, "data", 8, 0, False, ()), [pack(1, 8)] * 2, peer(5), 0.0)
    assert host.ledger.finished == before.ledger.finished


def test_ledger_is_bounded_whatever_it_is_told():
    world = World(3)
    world.run(10.0)
    host, other = world[0], world[1].id[:8]
    sizes = []
    for turn in range(2000):
        flipped = Reader(other, 1, 1000 + turn, bool(turn % 2), ())
        host.leasing.receive(*word(0, flipped), world[1].id, world.now + 0.01 * turn)
        sizes.append(sum(len(each) for each in vars(host.ledger).values() if hasattr(each, "__len__")))
    assert max(sizes[1000:]) <= max(sizes[200:1000])


# -- costs ------------------------------------------------------------------------------------------------------------


def test_peer_that_reads_nothing_gets_no_lease():
    ledger, (me, other) = Ledger(DATA), (peer(number)[:8] for number in range(2))
    ledger.reads = True
    ledger.follow(other, {other}, set(), 0.0)
    assert ledger.choose(me, 0, -1, 2) is None and ledger.take_over(me, 0) is None and ledger.inherit(me, 0, -1) is None
    host = World(2)[0]
    host.leasing.close(DATA.digest, 0.0)
    assert host.take(0.0) is None and host.take(0.0, must=True) is None


def test_owners_are_not_computed_for_data_that_a_peer_does_not_read():
    world = World(3)
    world[0].leasing.close(DATA.digest, world.now)
    world.run(10.0)
    assert len(world[0].ledger.owners) == 0 and world[0].leasing.readers(DATA.digest) == 2
    world[0].leasing.open(DATA, world.now)
    world.run(10.0)
    assert list(world[0].ledger.owners) == list(world[1].ledger.owners) and len(world[0].ledger.owners) == 3


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
