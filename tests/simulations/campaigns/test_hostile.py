"""Hostile members (campaign T12): honest peers go on, and set a member aside if there is proof against it."""

from dataclasses import replace
from functools import cache

import pytest

from gossipdp.protocol.events import ExchangeEnded, Struck, UpdateRefused
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.wire.messages import State
from simulations.campaigns import hostile
from simulations.campaigns.hostile import BEHAVIOURS, play
from simulations.campaigns.siege import Outcome, Siege
from simulations.simulator.invariants import Books

UNPROVABLE = [name for name, kind in BEHAVIOURS.items() if kind.excuse and name != "none"]
PROVABLE = [name for name, kind in BEHAVIOURS.items() if not kind.excuse]
WITHIN = 10
"""exchanges or increments of a member with proof against it, until it is set aside"""
EXCHANGES, USUALLY = 0.5, 0.8
"""least share of the exchanges without a culprit, in each network and in the mean of many. The culprit is one of four
peers: half of all pairs are honest"""
AWAY = {"equivocation": 0.1, "overclaim": 0.1}
"""largest squared distance to the optimum. It is 1.5 at the start and 0.005 at the end of a calm run. Without proof,
only clipping limits a behaviour that moves anchors (T13)"""


@cache
def calm(seed):
    return play(seed, "none")


def check(name, seed):
    outcome = play(seed, name)
    assert outcome.exchanges >= EXCHANGES * calm(seed).exchanges, f"seed {seed}"
    assert outcome.distance <= AWAY.get(name, 3.0 * calm(seed).distance), f"seed {seed}"
    assert outcome.believed_dead <= 2.1 * LOCAL.probe_interval, (
        f"seed {seed}: taken for dead for {outcome.believed_dead:.2f} s"
    )
    if name in ("storm", "ghosts"):
        assert outcome.control_rate <= LOCAL.control_rate, (
            f"seed {seed}: {outcome.control_rate:.0f} B/s of control traffic"
        )
    if name in PROVABLE:
        heard = range(3) if not BEHAVIOURS[name].answers else [host for host, met in outcome.met.items() if met > 5]
        assert set(outcome.aside) >= set(heard) and max(outcome.met.values(), default=0) <= WITHIN, (
            f"seed {seed}: {outcome}"
        )
    else:
        # A message that an honest peer may send too is no proof.
        assert not outcome.aside, f"seed {seed}: {outcome}"
    return outcome


@pytest.mark.campaign("T12")
@pytest.mark.parametrize(
    "name",
    [
        name if index % 3 == 0 or name == "extremes" else pytest.param(name, marks=pytest.mark.long)
        for index, name in enumerate([*UNPROVABLE, *PROVABLE])
    ],
)
def test_honest_peers_go_on_and_set_the_culprit_aside_if_it_is_proven(name, record_property):
    record_property("seeds", 1)
    check(name, 1)


@pytest.mark.long
@pytest.mark.campaign("T12")
@pytest.mark.parametrize("name", [*UNPROVABLE, *PROVABLE])
def test_honest_peers_go_on_in_a_hundred_networks(name, record_property):
    record_property("seeds", 100)
    kept = [check(name, seed).exchanges / calm(seed).exchanges for seed in range(100)]
    assert sum(kept) >= USUALLY * len(kept)


def test_without_a_culprit_nobody_is_struck():
    assert not calm(1).strikes and not calm(1).aside and calm(1).exchanges > 40


def test_who_is_set_aside_stays_a_member_and_is_averaged_with_again_when_its_pause_is_over():
    class Short(Siege):
        def _config(self):
            return replace(super()._config(), quarantine=QuarantineConfig(together=0.1, shortest=6.0))

    siege = Short(2, BEHAVIOURS["malformed"])
    siege.begin()
    assert len(siege.siege(10.0).aside) == 3
    for host in siege.honest:
        assert host.running.membership.members[siege.culprits[0].id].state == State.ALIVE
    siege.end_hostility()
    mixed, struck, begun = set(), [], siege.network.now

    def listen(host, event):
        if isinstance(event, ExchangeEnded) and event.partner == siege.culprits[0].id and event.chunks:
            mixed.add(host.index)
        if isinstance(event, Struck):
            struck.append(siege.network.now)

    siege.listeners.append(listen)
    siege.siege(25.0)
    assert mixed == {0, 1, 2}
    # Messages of its hostile time may still be on their way.
    assert all(at < begun + 3.0 for at in struck)


def test_books_let_no_honest_peer_be_struck():
    siege = Siege(3, BEHAVIOURS["none"])
    honest = siege.network.hosts[1]
    books = Books(siege.network.hosts, lambda: 0.0)
    for event in (Struck(honest.id, "payload", 1, 0.0), UpdateRefused(honest.id, "payload")):
        with pytest.raises(AssertionError, match="honest peer was found at fault"):
            books.heard(siege.network.hosts[0], event)
    books.expect_faults_of(honest.id)
    books.heard(siege.network.hosts[0], Struck(honest.id, "payload", 1, 0.0))


def test_table_has_a_line_a_behaviour(capsys, monkeypatch):
    monkeypatch.setattr(hostile, "play", lambda seed, name: Outcome(exchanges=9, distance=1.0))
    assert hostile.main(["--only", "flood", "garbage"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["flood", "1.00", "1.00"], ["garbage", "1.00", "1.00"]]
