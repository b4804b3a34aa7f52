"""A join storm at reduced size (campaign T21), and the driver of many membership machines."""

import os
from dataclasses import replace

import pytest

from gossipdp.protocol.events import MemberChanged
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.wire.messages import State
from simulations.scenarios import scale
from simulations.scenarios.members import PACE, Members

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture(scope="module")
def outcome():
    return scale.run(4, 150)


@pytest.mark.long
def test_all_members_know_all_soon_after_a_join_storm(outcome):
    assert outcome.converged is not None and outcome.converged <= 15.0 and outcome.doubts == 0


@pytest.mark.long
def test_control_traffic_stays_below_six_kilobytes_a_second_in_the_storm(outcome):
    """Signatures take 2.6 of the storm's 5.5 kB/s."""
    assert 100.0 < outcome.quiet <= outcome.quiet_busiest < 2e3
    assert outcome.quiet < outcome.storm < 6e3
    assert sum(outcome.kinds.values()) == pytest.approx(outcome.storm) and min(outcome.kinds.values()) > 0.0
    assert set(outcome.kinds) == {"probes", "gossip", "view: asked", "view: lists", "view: records"}


@pytest.mark.long
def test_quiet_traffic_does_not_grow_with_the_network(outcome):
    assert outcome.quiet < 1.3 * scale.run(4, 40).quiet


def test_same_seed_comes_out_the_same():
    first, second = (replace(scale.run(1, 30), cpu=1.0) for _ in range(2))
    assert first == second and first.rate == first.events


def test_table_has_two_lines_a_run_and_shows_a_miss(capsys):
    assert scale.main(["--peers", "20", "--seeds", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert scale.main(["--peers", "20", "--within", "0", "--quiet", "0"]) == 1
    assert "never" in capsys.readouterr().out


def test_more_traffic_than_the_mark_is_a_miss(capsys, monkeypatch):
    monkeypatch.setattr(scale, "CONTROL", 100.0)
    assert scale.main(["--peers", "20", "--quiet", "2"]) == 1
    assert "more than 0.1 kB/s" in capsys.readouterr().out


def test_more_members_than_a_view_may_hold_are_refused(capsys):
    with pytest.raises(SystemExit) as exited:
        scale.main(["--peers", "20000"])
    assert exited.value.code == 2 and "at most 16384" in capsys.readouterr().err


@pytest.mark.campaign("T21")
@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_thousand_converge_in_half_a_minute_for_eight_kilobytes_a_second(seed, record_property):
    """7.4 kB/s, of which 3.4 are signatures: each member receives 999 records of 130 bytes."""
    outcome = scale.run(seed, 1000, settling=0.0, quiet=0.0)
    record_property("events", outcome.events)
    record_property("virtual seconds until a thousand knew each other", outcome.converged)
    record_property("kB/s a peer meanwhile", outcome.storm / 1e3)
    record_property("kB/s of the busiest", outcome.storm_busiest / 1e3)
    assert outcome.converged is not None and outcome.converged <= 30.0 and outcome.doubts == 0
    assert outcome.storm <= 8e3 and outcome.storm_busiest <= 36e3, "the busiest are the seeds"


@pytest.mark.campaign("T21")
@pytest.mark.long
@pytest.mark.skipif(MEMORY < 20e9, reason="ten thousand members hold a hundred million records, more than 10 GB")
def test_ten_thousand_converge_for_eight_kilobytes_a_second(record_property):
    """Each receives 1.3 MB, which takes more than half a minute."""
    outcome = scale.run(0, 10_000, within=400.0, settling=0.0, quiet=0.0)
    record_property("events", outcome.events)
    record_property("virtual seconds until ten thousand knew each other", outcome.converged)
    record_property("kB/s a peer of ten thousand", outcome.storm / 1e3)
    assert outcome.converged is not None and outcome.storm <= 8e3


# -- the driver ------------------------------------------------------------------------------------------------------


def network_of(peers, **options):
    events = []
    network = Members(
        1, LAN, peers, listen=lambda host, event: events.append((network.now, host.index, event)), **options
    )
    for host in network.hosts:
        network.start(host, network.hosts[:1])
    return network, events


def failures(events):
    return [(at, by, event.member.name) for at, by, event in events if _failure(event)]


def _failure(event):
    return isinstance(event, MemberChanged) and event.member.state == State.FAILED


def test_killed_host_is_silent_and_all_others_believe_it_failed():
    network, events = network_of(4)
    network.run(5.0)
    network.kill(network.hosts[2])
    network.run(30.0)
    assert {(by, name) for _, by, name in failures(events)} == {(0, "p2"), (1, "p2"), (3, "p2")}
    assert not [at for at, by, _ in events if by == 2 and at > 5.0]


def test_blocked_host_handles_its_timer_first_then_one_message_after_another():
    network, events = network_of(4)
    network.run(5.0)
    host = network.hosts[1]
    membership, handled = host.membership, []
    receive, handle_timer = membership.receive, membership.handle_timer

    def received(message, source, now):
        handled.append(("message", now))
        receive(message, source, now)

    def timed(now):
        handled.append(("timer", now))
        handle_timer(now)

    membership.receive, membership.handle_timer = received, timed
    network.block(host, 10.0)
    network.run(14.99)
    assert not handled and len(host.backlog) > 5
    network.run(15.2)
    assert handled[:2] == [("timer", 15.0), ("message", 15.0)]
    times = [at for kind, at in handled if kind == "message"]
    assert times[5] == pytest.approx(15.0 + 5 * PACE) and not host.backlog
    network.run(60.0)
    assert {name for _, _, name in failures(events)} <= {"p1"}
    assert all(len(other.membership.alive()) == 3 for other in network.hosts)


def test_every_byte_sent_is_counted_as_encoded():
    network, _ = network_of(2)
    network.run(20.0)
    assert network.bytes == sum(host.sent for host in network.hosts) > 20 * 2 * 100


def test_lost_messages_count_as_sent_and_do_not_arrive():
    network, events = network_of(2, loss=1.0)
    network.run(5.0)
    assert network.bytes > 0 and not events
