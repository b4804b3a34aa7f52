"""Networks of machines in virtual time: every live peer gets every increment once, cheaply, and all epochs agree."""

from __future__ import annotations

from random import Random

import pytest

from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.events import RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.signing import digest_name, make, name_of
from gossipdp.protocol.events import EpochSettled
from gossipdp.protocol.wire.epidemic_messages import (
    MAX_PARTS,
    NO_RUN,
    EpochDigest,
    EpochMark,
    Got,
    Graft,
    IHave,
    Prune,
    Rumour,
    RumourPart,
    Stage,
    Want,
)
from tests.protocol.epidemic.broadcast_network import Net, peer, signature


def agreed(net):
    """No two hosts have settled an epoch differently."""
    return all(len(digests) == 1 for digests in net.digests().values())


# -- costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_payload_crosses_few_more_links_than_there_are_peers(count):
    net = Net(count, 1)
    for _ in range(3):
        net.round()
        net.tick(100)
    assert net.wrong() == [] and net.redundancy() <= 1.05
    assert net.counts()["payload"] == 3 * count * (count - 1) * 120


def test_sixty_four_peers_hear_of_each_other():
    net = Net(64, 2)
    net.run(1.0)
    for _ in range(2):
        for host in list(net.hosts.values())[::8]:
            net.publish(host, parts=2)
        net.run(5.0)
    assert net.wrong() == [] and net.redundancy() <= 1.02


def test_payload_goes_on_part_by_part_while_the_rest_is_coming():
    """20 parts of one second each over a chain of links. Store and forward would multiply the time by the links."""
    net = Net(16, 3, delay=(0.01, 0.02), rate=10_000, again=30.0, patience=30.0)
    host = next(iter(net.hosts.values()))
    net.publish(host, parts=20, size=2_000)
    whole = 20 * 2_000 / 10_000
    net.run(2.5 * whole)
    assert net.wrong() == []


def test_links_that_need_eight_seconds_for_a_part_carry_few_parts_twice():
    """A part sent again for a late answer would lengthen the queue, and delay the next answer further."""
    usual = BroadcastConfig()
    net = Net(6, 1, rate=65_536 / 8.4, again=usual.again, patience=usual.patience, wait=usual.wait, sync=usual.sync)
    net.run(3.0)
    for _ in range(2):
        for host in list(net.hosts.values()):
            net.publish(host, parts=6, size=65_536)
        net.run(150.0)
        assert net.wrong() == []
    assert net.redundancy() <= 1.2


def test_parts_under_way_to_a_neighbour_never_exceed_its_window():
    net = Net(6, 4, window=3, delay=(0.2, 0.4))
    under_way, most = {}, [0]

    def tap(source, to, message):
        if isinstance(message, RumourPart):
            under_way.setdefault((source, to), set()).add((message.name, message.part))
            most[0] = max(most[0], len(under_way[source, to]))
        elif isinstance(message, Got):
            waiting = under_way.setdefault((to, source), set())
            waiting -= {(message.name, part) for part in range(MAX_PARTS) if message.have >> part & 1}

    net.taps.append(tap)
    net.round(parts=8, seconds=30.0)
    assert net.wrong() == [] and 2 <= most[0] <= 3


def test_slow_neighbour_delays_no_other():
    net = Net(10, 5)
    slow = list(net.hosts)[-1]
    carry = net.carry
    net.carry = lambda source, to, message, buffers, size: (
        net.at(net.now + 40.0, lambda: net.deliver(source, to, message, buffers))
        if slow in (source, to)
        else carry(source, to, message, buffers, size)
    )
    for host in list(net.hosts.values())[:-1]:
        net.publish(host)
    net.run(8.0)
    assert {found[0] for found in net.wrong()} == {slow.hex()[:4]}


# -- faults -----------------------------------------------------------------------------------------------------------


def test_cut_network_hears_of_the_other_side_after_the_heal():
    net = Net(8, 6)
    net.round()
    net.cut({host: number % 2 for number, host in enumerate(net.hosts)})
    net.round()
    assert len(net.wrong()) == 8
    net.tick(100)
    net.cut({})
    net.run(10.0)
    assert net.wrong() == []
    net.settle()
    assert agreed(net) and net.diverged() == []


def test_cut_longer_than_the_grace_is_known_to_the_smaller_side_when_it_heals():
    net = Net(7, 7)
    sides = {host: number < 5 for number, host in enumerate(net.hosts)}
    net.cut(sides)
    for _ in range(6):
        net.round()
        net.tick(100)
    net.cut({})
    net.run(40.0)
    assert {host.id for host, _ in net.diverged()} == {host for host, large in sides.items() if not large}
    source = net.hosts[next(host for host, large in sides.items() if large)]
    for host in {host.id: host for host, _ in net.diverged()}.values():
        host.machine.hold()
        net.adopt(host, source)
    net.published = {name: origin for name, origin in net.published.items() if source.applied[name]}
    net.round()
    net.settle()
    assert net.wrong() == []


def test_increment_of_a_peer_that_dies_reaches_all_once_it_has_reached_one():
    net = Net(8, 8, delay=(0.05, 0.2))
    net.round()
    host = next(iter(net.hosts.values()))
    name = net.publish(host)
    while not any(other.applied[name] for other in net.hosts.values() if other is not host):
        net.run(0.05)
    net.crash(host)
    net.run(20.0)
    assert net.wrong() == []


def test_peer_that_signs_two_of_one_number_counts_nowhere():
    net = Net(8, 9)
    net.round()
    liar, *rest = net.hosts.values()
    versions = []
    for payload in (b"one", b"another"):
        draft = Rumour(liar.id, 1, 0, 9, 0.5, 0, 10, 1, 1, bytes(32), bytes(64))
        versions.append((*make(draft, [payload], NO_RUN, lambda data: signature(liar.id, data)), payload))
    for number, host in enumerate(rest):
        rumour, table, payload = versions[number % 2]
        host.machine.receive(rumour, [table], liar.id, net.now)
        host.machine.receive(RumourPart(name_of(rumour, NO_RUN), 0), [payload], liar.id, net.now)
        net.drain(host)
    net.run(10.0)
    honest = {name for name, origin in net.published.items() if origin != liar.id}
    assert net.wrong(honest) == [] and all(len(host.of(RumourVoided)) == 1 for host in net.hosts.values())
    net.settle()
    assert agreed(net) and net.diverged() == []


@pytest.mark.parametrize("seed", range(8))
def test_all_peers_void_two_versions_whichever_they_saw(seed):
    random = Random(seed)
    net = Net(random.randint(3, 7), seed, loss=random.choice([0.0, 0.1]), repeat=0.1, ordered=False)
    net.round()
    liar, *rest = net.hosts.values()
    for number in range(2):
        versions = []
        for _ in range(3):
            draft = Rumour(liar.id, 1, number, 9, 0.5, net.clock, 10, 1, 1, bytes(32), bytes(64))
            payload = random.randbytes(9)
            versions.append((*make(draft, [payload], NO_RUN, lambda data: signature(liar.id, data)), payload))
        net.cut({host: random.randrange(2) for host in net.hosts})
        for host in rest:
            rumour, table, payload = random.choice(versions[1:]) if host is not rest[0] else versions[0]
            host.machine.receive(rumour, [table], liar.id, net.now)
            host.machine.receive(RumourPart(name_of(rumour, NO_RUN), 0), [payload], liar.id, net.now)
            net.drain(host)
        net.run(5.0)
        net.cut({})
        net.run(5.0)
        net.tick(100)
        net.join(20 + number, random.choice(rest))
        net.round()
    net.settle(seconds=15.0)
    # Its honest increments in those epochs are void too.
    counted = {name for name in net.published if net.published[name] != liar.id}
    kept = [name for name in net.published if name not in counted and rest[0].applied[name]]
    assert net.wrong(counted | set(kept)) == [] and agreed(net) and net.diverged() == []
    assert len(kept) == 1 and len(rest[0].of(RumourVoided)) == 2


def test_in_the_long_run_nothing_grows_and_no_payload_travels_twice():
    net = Net(8, 12)
    for number in range(16):
        net.round(parts=2, seconds=3.0)
        net.tick(100)
        if number == 3:
            for host in net.hosts.values():
                host.machine.counts.clear()
        for machine in (host.machine for host in net.hosts.values()):
            # 8 increments of 80 bytes an epoch; GRACE + SETTLE epochs and the current one are live.
            assert machine._store.bytes == min(number + 1, 4) * 8 * 80 and len(machine._store) <= 4 * 8
            assert len(machine._epochs.live()) <= 4 and len(machine._epochs.settled()) <= 8
            assert len(machine._fetches) == 0 and len(list(machine._links)) <= 7
    assert net.wrong() == [] and net.redundancy() <= 1.01


def test_payloads_past_the_cap_are_dropped_everywhere_and_nothing_is_lost():
    net = Net(6, 10, retain=700)
    for _ in range(3):
        net.round()
        assert all(host.machine._store.bytes <= 700 for host in net.hosts.values())
    net.run(30.0)
    assert net.wrong() == [] and all(len(host.machine._store) < len(net.published) for host in net.hosts.values())


def test_same_seed_gives_the_same_messages_in_the_same_order():
    logs = []
    for _ in range(2):
        net, log = Net(6, 11, loss=0.2, repeat=0.1), []
        net.taps.append(lambda *each, log=log: log.append(each))
        net.round()
        net.tick(100)
        net.run(10.0)
        logs.append(log)
    assert logs[0] == logs[1] and len(logs[0]) > 300


@pytest.mark.parametrize(("count", "seed"), [(16, 1), (24, 2), (32, 3)])
def test_larger_network_is_repaired_after_cuts_a_join_and_a_crash(count, seed):
    random = Random(seed)
    net = Net(count, seed, delay=(0.01, 0.2), loss=0.02)
    for number in range(4):
        for host in random.sample(list(net.hosts.values()), 6):
            net.publish(host, parts=2)
        net.run(4.0)
        if number == 1:
            net.cut({host: random.randrange(3) for host in net.hosts})
        elif number == 2:
            net.cut({})
            net.join(100, random.choice(list(net.hosts.values())))
        elif number == 3:
            net.crash(random.choice(list(net.hosts.values())))
        net.tick(100)
    net.settle(seconds=10.0)
    assert net.wrong() == [] and agreed(net) and net.diverged() == [] and net.redundancy() <= 1.2


def play(seed):
    """A few rounds with every kind of fault, and then time to repair."""
    random = Random(seed)
    count = random.choice([2, 3, 4, 5, 6, 8])
    net = Net(
        count,
        seed,
        delay=(0.01, random.choice([0.05, 0.3, 1.0])),
        loss=random.choice([0.0, 0.05, 0.3]),
        repeat=0.1,
        ordered=random.random() < 0.5,
    )
    for number in range(2):
        net.round(parts=random.randint(1, 4))
        net.tick(100)
        what = random.random()
        if what < 0.4:
            net.cut({host: random.randrange(2) for host in net.hosts})
            net.round(parts=2)
            net.cut({})
        elif what < 0.6:
            net.join(count + number, random.choice(list(net.hosts.values())))
        elif what < 0.8 and len(net.hosts) > 2:
            net.run(random.uniform(0.0, 5.0))
            net.crash(random.choice(list(net.hosts.values())))
    net.settle(seconds=20.0)
    return net


def check(seed):
    net = play(seed)
    hosts = list(net.hosts.values())
    had = {name for host in hosts for name in host.applied if host.applied[name]}
    shown = {event.name for host in hosts for event in host.of(RumourReceived)}
    kept = {name for name in had if name in shown or net.published[name] in net.hosts}
    assert not net.refusals() and all(len(host.of(EpochSettled)) >= 2 for host in hosts), seed
    for host in hosts:
        assert host.machine._store.bytes == 0 and not len(host.machine._fetches), seed
    if any(host.applied[name] == 0 for host in hosts for name in had - kept):
        # It is inside a state that was taken over, and each peer that could send it has died: only a state helps.
        assert net.diverged(), seed
    else:
        assert net.wrong(had) == [] and agreed(net) and net.diverged() == [], seed


@pytest.mark.parametrize("tens", range(8))
def test_all_live_peers_apply_the_same_increments_once_under_faults(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("hundreds", range(10))
def test_all_live_peers_apply_the_same_increments_once_under_faults_in_many_networks(hundreds):
    for seed in range(1000 + 100 * hundreds, 1100 + 100 * hundreds):
        check(seed)


# -- a hostile member -------------------------------------------------------------------------------------------------


def garbage(random, net, liar):
    """A random message, with known and unknown names and ids."""
    names = [*net.published, random.randbytes(32)]
    draft = Rumour(
        random.choice([liar, peer(0), peer(1)]), random.randrange(9), random.randrange(4), random.randrange(16),
        random.random(), random.randrange(400), 1, 1, 1, bytes(32), bytes(64),
    )  # fmt: skip
    payload = [random.randbytes(5)] * random.randint(1, 3)
    rumour, table = make(draft, payload, NO_RUN, lambda data: signature(liar, data))
    digest = EpochDigest(
        random.randrange(4),
        tuple(
            EpochMark(random.randrange(9), Stage(random.randrange(3)), 1, random.randbytes(16))
            for _ in range(random.randrange(16))
        ),
        random.random() < 0.5,
        random.random() < 0.5,
    )
    return random.choice(
        [
            (rumour, random.choice([[], [table], [b"table"]])),
            (RumourPart(random.choice(names), random.randrange(MAX_PARTS)), [payload[0]]),
            (Got(random.choice(names), random.getrandbits(60)), []),
            (IHave(random.randrange(9), tuple(random.choices(names, k=9)), random.randint(1, 255)), []),
            (Graft(tuple(Want(random.choice(names), random.getrandbits(3)) for _ in range(9))), []),
            (Prune(tuple(random.choices(names, k=3)), random.random() < 0.9), []),
            (digest, [signature(liar, digest_name(digest, NO_RUN)) if random.random() < 0.9 else bytes(64)]),
        ]
    )


@pytest.mark.parametrize("seed", range(6))
def test_hostile_member_stops_no_peer_and_raises_nothing(seed):
    net, random = Net(6, seed, strict=seed % 2 == 1), Random(seed)
    liar, *rest = net.hosts.values()
    for number in range(3):
        for host in rest:
            for _ in range(25):
                net.deliver(liar.id, host.id, *garbage(random, net, liar.id))
        for host in rest:
            net.publish(host)
        net.run(10.0)
        if number < 2:
            net.tick(100)
    honest = {name for name, origin in net.published.items() if origin != liar.id}
    net.run(20.0)
    for host in rest:
        assert [name for name in honest if host.applied[name] != 1] == []
    del net.hosts[liar.id]
    net.tell()
    net.settle()
    assert agreed(net)
