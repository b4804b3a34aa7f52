"""Peers that can only dial out, and relays: they exchange with all members (protocol section 3)."""

import pytest

from gossipdp.protocol.events import ExchangeEnded, Finished, MemberChanged, RelaysChosen
from gossipdp.protocol.wire.messages import State, StateChunk, relay_of
from tests.protocol.finish_rig import MARK, Ending, distance
from tests.protocol.peer_rig import configured


class Relayed(Ending):
    """Peers of which the first `relays` can be dialled and carry. All others are hidden, and all train."""

    @classmethod
    def behind(cls, peers, relays=1, seconds=8.0, seed=1, trains=True):
        town = cls(0, seed=seed)
        add, options = town.net.add, configured(every=10, warmup_steps=20)
        town.hosts = [add(options, outbound=index >= relays, carries=index < relays) for index in range(peers)]
        for index in range(peers):
            town.start(index, found=index == 0)
            if trains or index == 0:
                town.train(index)
            town.run(0.1)
        town.run(seconds)
        return town

    @property
    def hidden(self):
        return [host for host in self.hosts if host.outbound]

    def exchanges(self):
        """Pairs of hosts and how many exchanges between them mixed something."""
        counts = {}
        for host in self.hosts:
            for event in self.of(host.index, ExchangeEnded):
                if event.chunks:
                    pair = frozenset((host.id, event.partner))
                    counts[pair] = counts.get(pair, 0) + 1
        return counts

    def changes(self):
        """Records that changed at any host."""
        return [event.member for host in self.hosts for event in self.of(host.index, MemberChanged)]


def test_all_pairs_of_hidden_peers_exchange_and_none_is_suspected():
    town = Relayed.behind(6)
    for host in town.hidden:
        view = host.peer.view
        assert view.relays == (town.hosts[0].id,) and relay_of(view.me.address) == town.hosts[0].id
        assert [member.state for member in view.alive] == [State.ALIVE] * 5
    pairs = town.exchanges()
    assert len(pairs) == 15 and town.hosts[0].carried.total() > 0
    assert {member.state for member in town.changes()} == {State.ALIVE}


def test_the_end_of_a_run_is_exact_with_hidden_peers():
    town = Relayed.behind(5, seconds=4.0)
    town.finish(*range(5), calls=True)
    reports = town.finished(*range(5))
    assert all(report.closeness.agrees for report in reports)
    assert distance(town.anchors(*range(5))) <= MARK * max(report.closeness.before for report in reports)


def test_relay_that_dies_is_replaced_and_nobody_behind_it_is_suspected():
    town = Relayed.behind(8, relays=3, seconds=6.0)
    behind = {
        relay.index: [host for host in town.hidden if relay.id in host.peer.view.relays] for relay in town.hosts[:3]
    }
    assert all(behind.values()) and sum(map(len, behind.values())) == 10, "they share the relays"
    lost = town.hosts[min(behind, key=lambda index: len(behind[index]))]
    town.net.stop(lost)
    town.events.clear()
    period = town.hosts[0].config.membership.probe_interval
    town.run(2.0 * period + 0.5)
    for host in behind[lost.index]:
        assert lost.id not in host.peer.view.relays and len(host.peer.view.me.addresses) == 2
    town.run(30.0)
    hidden = {host.id for host in town.hidden}
    changed = town.changes()
    assert not [member for member in changed if member.id in hidden and member.state is not State.ALIVE]
    assert {member.state for member in changed if member.id == lost.id} >= {State.FAILED}


def test_relay_that_was_restarted_carries_again():
    town = Relayed.behind(3, seconds=3.0)
    relay = town.hosts[0]
    town.net.stop(relay)
    town.run(8.0)
    assert [host.peer.view.me.address for host in town.hidden] == ["", ""]
    town.start(0)
    town.train(0)
    town.run(5.0)
    town.events.clear()
    town.run(5.0)
    assert len(town.exchanges()) == 3


def test_hidden_joiner_fetches_the_model_from_a_member_that_it_can_dial():
    """A relay would carry ten exchanges' worth of bytes otherwise."""
    town = Relayed.behind(7, relays=1, seconds=3.0)
    senders = []

    def trace(record):
        if record.kind == "sent" and isinstance(record.what, StateChunk):
            senders.append(record.host)

    town.net.trace = trace
    for index in range(7, 10):
        town.hosts.append(town.net.add(town.hosts[1].config, outbound=True))
        town.start(index)
        town.train(index)
        town.run(8.0)
        assert town.peer(index).view.ready
    assert set(senders) == {0} and town.hosts[0].offers > 0


def test_pairs_take_turns_within_the_budget_of_a_relay():
    town = Relayed.behind(4, relays=1, seconds=8.0, trains=False)
    relay, first, second, third = town.hosts
    relay.budget = 1000.0
    began, left = town.net.now, []

    def carry(sender, target, size, name):
        def leave(sent):
            left.append((name, round(sent - began, 3)))

        town.net._carry(relay, sender, target, size, leave)

    for number in range(3):
        carry(first, second, 500, f"first {number}")
    carry(third, second, 100, "third")
    carry(second, first, 200, "second")
    town.run(3.0)
    assert [name for name, _ in left] == ["first 0", "first 1", "third", "second", "first 2"]
    assert [at for _, at in left] == pytest.approx([0.5, 1.0, 1.1, 1.3, 1.8], abs=0.01)
    assert not relay.carrying and not relay.ways


def test_relay_carries_to_no_more_members_than_it_has_places(monkeypatch):
    monkeypatch.setattr("simulations.simulator.network.MOST_CARRIED", 2)
    town = Relayed.behind(5, relays=1, seconds=3.0)
    taken = [host for host in town.hidden if host.peer.view.me.address]
    assert len(taken) == 2 and town.hosts[0].attending == {host.id for host in taken}
    town.net.stop(taken[0])
    town.run(70.0)
    assert len(town.hosts[0].attending) == 2 and taken[0].id not in town.hosts[0].attending


def test_hidden_peers_without_a_relay_stay_outbound_only():
    town = Relayed.behind(4, relays=1)
    assert all(host.peer.view.me.address for host in town.hidden)
    plain = Relayed(0, seed=1)
    plain.hosts = [plain.net.add(configured(every=10), outbound=index > 0) for index in range(3)]
    for index in range(3):
        plain.start(index, found=index == 0)
    plain.run(5.0)
    assert [host.peer.view.me.address for host in plain.hosts[1:]] == ["", ""]
    assert not any(plain.of(host.index, RelaysChosen) for host in plain.hosts)


def test_peer_that_turns_out_dialable_needs_its_relays_no_more():
    town = Relayed.behind(3, seconds=3.0)
    host = town.hidden[0]
    host.outbound = False
    town.net.command(host, "advertise", lambda peer: peer.advertise([host.address], town.net.now))
    town.run(3.0)
    assert host.peer.view.relays == () and host.peer.view.me.addresses == (host.address,)
    assert host.relays == ()
    assert town.hosts[0].peer.view.members[host.id].address == host.address
    town.net.command(host, "advertise", lambda peer: peer.advertise((), town.net.now))
    host.outbound = True
    town.run(3.0)
    assert relay_of(host.peer.view.me.address) == town.hosts[0].id


def test_relay_that_says_no_is_asked_again_later():
    town = Relayed.behind(2, seconds=0.0)
    relay, host = town.hosts
    relay.carries = False  # it advertises that it does, and its budget is given away
    town.run(20.0)
    assert host.peer.view.me.address == "" and host.peer.view.relays == ()
    relay.carries = True
    town.run(60.0)
    assert relay_of(host.peer.view.me.address) == relay.id


@pytest.fixture
def bare():
    """A relay without a model, and four hidden peers. The first founds the network, and knows the relay alone."""
    town = Relayed(0, seed=1)
    options = configured(every=10, warmup_steps=20)
    town.hosts = [town.net.add(options, outbound=index > 0, carries=index == 0) for index in range(5)]
    relay, founder, *others = town.hosts
    relay.only_carries = True
    town.net.start(relay, seeds=[])
    town.net.start(founder, seeds=[relay], found=True)
    town.train(1)
    town.run(1.0)
    for host in others:
        town.net.start(host, seeds=[relay])
        town.train(host.index)
        town.run(0.2)
    town.run(8.0)
    return town


def test_relay_without_a_model_carries__and_counts_nowhere_else(bare):
    relay, *hidden = bare.hosts
    assert not relay.peer.view.ready and relay.peer.view.me.state is State.ALIVE
    assert len(bare.exchanges()) == 6, "every pair of the hidden peers"
    for host in hidden:
        view = host.peer.view
        assert view.ready and relay.id not in {member.id for member in view.alive}
        assert view.members[relay.id].state is State.ALIVE and view.relays == (relay.id,)
    bare.finish(*range(1, 5), calls=True)
    reports = bare.finished(*range(1, 5))
    assert all(report.closeness.agrees and len(report.closers) == 4 for report in reports)
    assert bare.net.now < 60.0, "nobody waits for the relay"
    assert not bare.of(0, Finished) and relay.peer is not None


@pytest.mark.parametrize("hidden", [3, 6])
def test_hidden_peers_make_as_many_exchanges_as_dialable_ones(hidden):
    """The mark is 0.8 of them."""
    counts = []
    for relayed in (True, False):
        town = Relayed(0, seed=3)
        peers = hidden + 1
        town.hosts = [
            town.net.add(configured(every=10, warmup_steps=20), outbound=relayed and index > 0, carries=index == 0)
            for index in range(peers)
        ]
        for index in range(peers):
            town.start(index, found=index == 0)
            town.train(index)
        town.run(3.0)
        town.events.clear()
        town.run(10.0)
        counts.append(sum(town.exchanges().values()))
    assert counts[0] >= 0.8 * counts[1]
