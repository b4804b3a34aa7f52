"""Membership in virtual time: a small deterministic network of real Membership machines, no clock, no socket.

SWIM is Das et al. 2002, Lifeguard is Dadgar et al. 2018; I8, I9 and I12 are the invariants of the safety page.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace as derive
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import Event, Joined, MemberChanged, Notice
from gossipdp.protocol.membership import view as module
from gossipdp.protocol.membership.membership import LAN, LOCAL, WAN, Membership, MembershipConfig
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.view import LEAP
from gossipdp.protocol.outputs import Envelope, Outputs
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    MAX_RECORDS,
    Member,
    Message,
    Nack,
    Ping,
    PingRequest,
    Pong,
    Progress,
    PushPull,
    State,
)
from tests.protocol.membership.trusting import TRUSTING


def peer_id(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(4, "big"), digest_size=32).digest()


def record(
    number: int,
    *,
    incarnation: int = 1,
    refutation: int = 0,
    state: State = State.ALIVE,
    accusers: tuple[int, ...] = (),
) -> Member:
    member = Member(peer_id(number), f"p{number}", f"10.0.0.{number}:4710", incarnation, refutation, state)
    return replace(member, accusers=tuple(map(peer_id, accusers)))


class Peer:
    """One Membership with its outputs; for tests of one machine alone."""

    def __init__(self, me: Member, config: MembershipConfig = LAN, *, seed: object = 0, now: float = 0.0) -> None:
        self.outputs = Outputs()
        self.board = ProgressBoard(me.id)
        random = Random(f"{seed}/{me.name}/{me.incarnation}")
        self.membership = Membership(
            config,
            me,
            random=random,
            outputs=self.outputs,
            emit=self.outputs.emit,
            now=now,
            progress=self.board,
            signer=TRUSTING,
        )
        self.events: list[tuple[float, Event]] = []

    def hear(self, message: Message, source: int, now: float) -> list[Envelope]:
        self.membership.receive(message, peer_id(source), now)  # type: ignore[arg-type]
        return self.sent()

    def run_to(self, now: float) -> list[Envelope]:
        sent = []
        while (due := self.membership.timer()) is not None and due <= now:
            self.membership.handle_timer(due)
            sent += self.sent()
        return sent

    def sent(self) -> list[Envelope]:
        sent = list(self.outputs.messages)
        self.outputs.messages.clear()
        return sent

    def state_of(self, number: int) -> State:
        return self.membership.members[peer_id(number)].state

    def news(self) -> list[Event]:
        events = list(self.outputs.events)
        self.outputs.events.clear()
        return events


class Network:
    """Peers by number. Messages take `delay` (drawn per message), are lost with `loss`, and never cross a `cut`."""

    def __init__(
        self, config: MembershipConfig, *, seed: int = 0, delay: tuple[float, float] = (0.001, 0.02), loss: float = 0.0
    ) -> None:
        self.config, self.seed, self.delay, self.loss = config, seed, delay, loss
        self.random = Random(f"network {seed}")
        self.now = 0.0
        self.peers: dict[int, Peer] = {}
        self.paused: dict[int, float] = {}
        self.cut: Callable[[int, int], bool] = lambda a, b: False
        self.sent = 0
        self.log = hashlib.blake2b()
        self._numbers: dict[bytes, int] = {}
        self._addresses: dict[str, int] = {}
        self._queue: list[tuple[float, int, int, bytes, wire.Buffer | None]] = []
        self._counter = 0
        self._armed: dict[int, float | None] = {}

    def start(self, number: int, seeds: Iterable[int] = (), *, incarnation: int = 1) -> Peer:
        me = record(number, incarnation=incarnation)
        peer = self.peers[number] = Peer(me, self.config, seed=self.seed, now=self.now)
        self._numbers[me.id], self._addresses[me.address] = number, number
        self._armed[number] = None
        peer.membership.join([record(seed).address for seed in seeds], self.now)
        self._drain(number)
        return peer

    def crash(self, number: int) -> Peer:
        return self.peers.pop(number)

    def leave(self, number: int) -> None:
        self.peers[number].membership.leave(self.now)
        self._drain(number)

    def pause(self, number: int, seconds: float) -> None:
        self.paused[number] = self.now + seconds

    def _push(self, at: float, number: int, source: bytes, frame: wire.Buffer | None) -> None:
        self._counter += 1
        heapq.heappush(self._queue, (at, self._counter, number, source, frame))

    def _drain(self, number: int) -> None:
        peer = self.peers[number]
        peer.events += [(self.now, event) for event in peer.news()]
        for envelope in peer.sent():
            self.sent += 1
            self.log.update(repr((self.now, number, envelope.to, envelope.address)).encode())
            self.log.update(bytes(envelope.frames[0]))
            to = self._numbers.get(envelope.to) if envelope.to else self._addresses.get(envelope.address)
            if to is not None and not self.cut(number, to) and self.random.random() >= self.loss:
                self._push(self.now + self.random.uniform(*self.delay), to, peer.membership.me.id, envelope.frames[0])
        due = peer.membership.timer()
        if due is not None and self._armed[number] != due:
            self._armed[number] = due
            self._push(max(due, self.now), number, b"", None)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> float:
        """Steps events for `seconds`, or until `until` holds; the time it took."""
        began, end = self.now, self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            at, _, number, source, frame = heapq.heappop(self._queue)
            peer = self.peers.get(number)
            if peer is None:
                continue
            if self.paused.get(number, 0.0) > at:
                self._push(self.paused[number], number, source, frame)
                continue
            self.now = at
            if frame is None:
                if self._armed[number] is not None and self._armed[number] <= at:
                    self._armed[number] = None
                peer.membership.handle_timer(at)
            elif not self.cut(self._numbers[source], number):
                message, _ = wire.decode([frame])
                peer.membership.receive(message, source, at)  # type: ignore[arg-type]
            self._drain(number)
            if until is not None and until():
                return self.now - began
        self.now = end
        return seconds

    def views(self, number: int) -> list[State | None]:
        """What all the others think of `number`."""
        others = [peer.membership.members for peer in self.peers.values() if peer.membership.me.id != peer_id(number)]
        return [None if (member := view.get(peer_id(number))) is None else member.state for view in others]

    def all_think(self, number: int, state: State) -> bool:
        return set(self.views(number)) == {state}

    def agreed(self) -> bool:
        """Whether every running peer knows all other running peers as alive."""
        return all(self.all_think(number, State.ALIVE) for number in self.peers)

    def verdicts(self, state: State) -> list[tuple[float, str, int]]:
        """(time, member, believer) of each time that a peer came to believe `state` of a member."""
        return [
            (at, event.member.name, number)
            for number, peer in self.peers.items()
            for at, event in peer.events
            if isinstance(event, MemberChanged) and event.member.state == state
        ]


def joined(size: int, config: MembershipConfig, **options: object) -> Network:
    network = Network(config, **options)  # type: ignore[arg-type]
    for number in range(size):
        network.start(number, [0])
    network.run(30.0, network.agreed)
    assert network.agreed()
    return network


# -- joining -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
def test_strangers_with_one_seed_in_common_find_each_other_within_two_seconds(size: int) -> None:
    network = Network(LAN, seed=size)
    for number in range(size):
        network.start(number, [0])
    took = network.run(10.0, network.agreed)
    assert network.agreed() and took < 2.0
    network.run(20.0)
    for peer in network.peers.values():
        assert [type(event) for _, event in peer.events].count(Joined) == 1
    assert not network.verdicts(State.SUSPECT)


def test_a_seed_is_dialled_for_ever_quickly_at_first_and_every_ten_seconds_later() -> None:
    peer = Peer(record(1))
    peer.membership.join(["10.0.0.9:4710"], 0.0)
    dials = [0.0] * len(peer.sent())
    while (due := peer.membership.timer()) is not None and due < 600.0:
        peer.membership.handle_timer(due)
        for envelope in peer.sent():
            assert (envelope.to, envelope.address) == (b"", "10.0.0.9:4710")
            assert isinstance(envelope.message, PushPull) and envelope.message.reply
            dials.append(due)
    pauses = [later - earlier for earlier, later in pairwise(dials)]
    assert pauses[0] <= 0.5 and max(pauses) <= LAN.join_longest and min(pauses[6:]) >= 7.5 and len(dials) > 55


def test_a_seed_that_nobody_is_known_at_is_dialled_soon_again_and_then_every_minute() -> None:
    """Where first dials are lost, some join by one seed and others by another: they need not wait a minute."""
    peer = Peer(record(1))
    peer.membership.join(["10.0.0.9:4710"], 0.0)
    peer.hear(Pong(0, (record(2),)), 2, 0.2)
    dials = [0.0]
    while (due := peer.membership.timer()) is not None and due < 400.0:
        peer.hear(Pong(0, (record(2),)), 2, due)
        peer.membership.handle_timer(due)
        dials += [due for envelope in peer.sent() if envelope.address == "10.0.0.9:4710"]
    pauses = [later - earlier for earlier, later in pairwise(dials)]
    assert sum(pauses[:4]) < 10.0 and max(pauses) <= 60.0 and min(pauses[7:]) >= 45.0


def test_one_live_seed_among_dead_ones_is_enough_even_if_it_starts_late() -> None:
    network = Network(LAN)
    network.start(1, [7, 8, 0])
    network.run(45.0)
    network.start(0)
    assert network.run(15.0, network.agreed) <= 11.0 and network.agreed()


def test_members_remembered_from_disk_serve_as_seeds_and_are_believed_only_when_they_answer() -> None:
    network = Network(LAN)
    network.start(0)
    peer = network.peers[1] = Peer(record(1), LAN)
    network._numbers[peer_id(1)] = 1
    network._armed[1] = None
    peer.membership.remember([record(1), record(9), record(0)])
    assert list(peer.membership.members) == [peer_id(1)]
    peer.membership.join([], 0.0)
    network._drain(1)
    assert network.run(5.0, network.agreed) < 1.0 and network.agreed()
    assert peer_id(9) not in peer.membership.members and peer.membership.address_of(peer_id(9)) == "10.0.0.9:4710"


def test_seeds_nobody_is_known_at_join_two_islands_that_started_apart() -> None:
    network = Network(LAN)
    network.cut = lambda a, b: {a, b} == {0, 1}
    network.start(0, [1])
    network.start(1, [0])
    network.start(2, [0])
    network.start(3, [1])
    network.run(30.0)
    assert set(network.peers[0].membership.members) == {peer_id(0), peer_id(2)}
    network.cut = lambda a, b: False
    network.run(120.0, network.agreed)
    assert network.agreed()


def test_peer_behind_a_nat_that_hears_of_nobody_but_others_behind_one_dials_its_seeds_again() -> None:
    peer = Peer(replace(record(1), address=""), LAN)
    peer.membership.join([record(2).address], 0.0)
    behind = replace(record(3), address="")
    peer.hear(PushPull(False, (record(2), behind)), 2, 0.1)
    peer.run_to(0.2)
    peer.hear(PushPull(False, (record(2, state=State.LEFT), behind)), 2, 0.2)
    dialled = [message.address for message in peer.run_to(0.2 + 2 * LAN.join_interval)]
    assert record(2).address in dialled and peer.state_of(3) == State.ALIVE


def test_own_address_among_the_seeds_is_not_dialled() -> None:
    peer = Peer(record(1))
    peer.membership.join([record(1).address], 0.0)
    assert peer.sent() == []


# -- failures: SWIM 3.1 and 4.2 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "bound"), [(LOCAL, 5.0), (LAN, 15.0), (WAN, 15.0)], ids=["local", "lan", "wan"])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_crashed_peer_is_failed_everywhere_within_the_presets_bound(
    config: MembershipConfig, bound: float, size: int
) -> None:
    for seed in range(3):
        network = joined(size, config, seed=seed)
        network.run(seed * 0.37)
        network.crash(size - 1)
        took = network.run(bound, lambda: network.all_think(size - 1, State.FAILED))  # noqa: B023
        assert network.all_think(size - 1, State.FAILED), f"seed {seed}: {network.views(size - 1)} after {took:.1f} s"
        assert {name for _, name, _ in network.verdicts(State.FAILED)} == {f"p{size - 1}"}


def test_half_of_the_peers_crash_and_only_they_are_failed() -> None:
    network = joined(8, LOCAL)
    for number in range(4, 8):
        network.crash(number)
    network.run(12.0)
    assert all(network.all_think(number, State.FAILED) for number in range(4, 8))
    assert network.agreed() and {name for _, name, _ in network.verdicts(State.FAILED)} == {"p4", "p5", "p6", "p7"}


@pytest.mark.parametrize("seed", range(4))
def test_thirty_percent_loss_fails_no_member_in_a_minute(seed: int) -> None:
    network = joined(8, LAN, seed=seed)
    network.loss = 0.3
    network.run(60.0)
    assert network.verdicts(State.FAILED) == []
    network.loss = 0.0
    network.run(15.0, network.agreed)
    assert network.agreed()


def test_crash_under_thirty_percent_loss_is_still_found() -> None:
    network = joined(8, LAN, seed=5)
    network.loss = 0.3
    network.crash(3)
    network.run(20.0, lambda: network.all_think(3, State.FAILED))
    assert network.all_think(3, State.FAILED)


def test_member_that_one_peer_cannot_reach_is_vouched_for_by_indirect_probes() -> None:
    """SWIM 3.1: the indirect probe goes around a broken path."""
    network = joined(4, LAN)
    network.cut = lambda a, b: {a, b} == {0, 1}
    network.run(60.0)
    assert network.verdicts(State.SUSPECT) == [] and network.agreed()


def test_path_slower_than_the_timeout_is_learned_and_no_member_fails() -> None:
    network = Network(LAN, delay=(0.7, 0.9))
    for number in range(4):
        network.start(number, [0])
    network.run(120.0)
    assert network.verdicts(State.FAILED) == []
    rtt = network.peers[0].membership.rtt(peer_id(1))
    assert rtt is not None and 1.4 <= rtt <= 1.8
    late = [at for at, _, _ in network.verdicts(State.SUSPECT) if at > 60.0]
    assert late == []


def test_starved_peer_blames_itself_and_fails_no_member() -> None:
    """Lifeguard I: a peer that did not run must not accuse those it did not hear."""
    network = joined(8, LAN, seed=2)
    network.pause(3, 30.0)
    network.run(29.9)
    assert network.all_think(3, State.FAILED)
    network.run(0.2)
    assert network.peers[3].membership.health.multiplier > 1
    network.run(4.0, network.agreed)
    assert network.agreed()
    assert {name for _, name, by in network.verdicts(State.SUSPECT) + network.verdicts(State.FAILED)} == {"p3"}


# -- leaving -----------------------------------------------------------------------------------------------------


def test_leaving_peer_is_left_everywhere_and_never_suspected() -> None:
    for size in (2, 5, 16):
        network = joined(size, LAN, seed=size)
        network.leave(1)
        network.run(0.1)
        gone = network.crash(1)
        network.run(3.0, lambda: network.all_think(1, State.LEFT))  # noqa: B023
        assert network.all_think(1, State.LEFT)
        network.run(30.0)
        assert network.all_think(1, State.LEFT) and gone.membership.me.state == State.LEFT
        assert not network.verdicts(State.SUSPECT) and not network.verdicts(State.FAILED)


def test_left_member_is_neither_dialled_nor_kept_for_ever() -> None:
    network = joined(3, derive(LOCAL, forget_after=60.0))
    network.leave(2)
    network.run(1.0)
    network.crash(2)
    watched = network.peers[0]
    network.run(40.0)
    assert watched.state_of(2) == State.LEFT
    network._numbers.pop(peer_id(2))
    network.run(60.0)
    assert all(peer_id(2) not in peer.membership.members for peer in network.peers.values())
    network.run(60.0)
    assert all(peer_id(2) not in peer.membership.members for peer in network.peers.values())


def test_leaving_peer_stops_asking_for_timers_once_its_goodbye_is_spread() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.membership.leave(0.5)
    goodbyes = peer.sent()
    assert [envelope.to for envelope in goodbyes] == [peer_id(1)]
    assert goodbyes[0].message.members[0].state == State.LEFT  # type: ignore[attr-defined]
    peer.run_to(30.0)
    assert peer.membership.timer() is None


def test_peer_that_left_while_it_dialled_tells_the_member_that_answers() -> None:
    peer, seed = Peer(record(0)), Peer(record(1))
    peer.membership.join([record(1).address], 0.0)
    [hello] = peer.sent()
    peer.membership.leave(0.1)
    assert peer.sent() == []
    answers = [envelope for envelope in seed.hear(hello.message, 0, 0.2) if envelope.to == peer_id(0)]
    assert answers and seed.state_of(0) == State.ALIVE
    for envelope in [e for answer in answers for e in peer.hear(answer.message, 1, 0.3)]:
        seed.hear(envelope.message, 0, 0.4)
    assert seed.state_of(0) == State.LEFT


def test_leaving_peer_told_that_it_is_suspect_does_not_refute() -> None:
    peer = Peer(record(0))
    peer.membership.leave(0.0)
    peer.hear(Ping(1, (record(1), record(0, refutation=5, state=State.SUSPECT))), 1, 0.1)
    assert (peer.membership.me.state, peer.membership.me.refutation) == (State.LEFT, 1)


# -- coming back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "minority"), [(2, 1), (4, 2), (8, 4), (10, 1), (16, 8)])
def test_healed_partition_has_all_alive_again_within_two_probe_periods(size: int, minority: int) -> None:
    """I8."""
    for seed in range(2):
        network = joined(size, LAN, seed=seed)
        network.cut = lambda a, b: (a < minority) != (b < minority)

        def parted(minority: int = minority, network: Network = network) -> bool:
            return all(
                peer.state_of(other) == State.FAILED
                for number, peer in network.peers.items()
                for other in network.peers
                if (number < minority) != (other < minority)
            )

        network.run(120.0, parted)
        assert parted()
        network.run(5.0)
        network.cut = lambda a, b: False
        took = network.run(10.0, network.agreed)
        assert network.agreed() and took <= 2.0 * LAN.probe_interval, f"seed {seed}: {took:.1f} s"
        network.run(20.0)
        assert network.agreed()


def test_isolated_peer_comes_back_after_being_failed_by_all() -> None:
    network = joined(5, LOCAL, seed=1)
    network.cut = lambda a, b: 4 in (a, b)
    network.run(10.0)
    assert network.all_think(4, State.FAILED) and len(network.peers[4].membership.alive()) == 0
    network.cut = lambda a, b: False
    assert network.run(5.0, network.agreed) <= 2.0 * LOCAL.probe_interval


def test_sides_that_have_forgotten_each_other_meet_though_the_seed_of_all_is_gone() -> None:
    network = joined(6, derive(LOCAL, forget_after=30.0))
    network.cut = lambda a, b: (a < 3) != (b < 3)
    network.run(60.0)
    assert all(len(peer.membership.members) == 3 for peer in network.peers.values())
    network.crash(0)
    network.cut = lambda a, b: False
    network.run(180.0, network.agreed)
    assert network.agreed()


def test_flapping_link_leaves_no_scar() -> None:
    network = joined(6, LAN, seed=3)
    for turn in range(12):
        network.cut = (lambda a, b: (a < 3) != (b < 3)) if turn % 2 else (lambda a, b: False)
        network.run(4.0)
    network.cut = lambda a, b: False
    network.run(10.0, network.agreed)
    assert network.agreed()


def test_restart_with_a_higher_incarnation_goes_from_failed_to_alive_at_once() -> None:
    network = joined(4, LOCAL)
    network.crash(2)
    network.run(6.0)
    assert network.all_think(2, State.FAILED)
    network.start(2, [0], incarnation=2)
    assert network.run(3.0, network.agreed) < 1.5
    for number in (0, 1, 3):
        assert network.peers[number].membership.members[peer_id(2)].incarnation == 2
        changes = [event for _, event in network.peers[number].events if isinstance(event, MemberChanged)]
        last = [change for change in changes if change.member.id == peer_id(2)][-1]
        assert (last.before, last.member.state) == (State.FAILED, State.ALIVE)


def test_restart_quicker_than_detection_is_an_event_of_its_own() -> None:
    network = joined(3, LAN)
    network.crash(1)
    network.start(1, [0], incarnation=2)
    network.run(1.0)
    changes = [event for _, event in network.peers[0].events if isinstance(event, MemberChanged)]
    assert (changes[-1].before, changes[-1].member.incarnation) == (State.ALIVE, 2)
    network.run(20.0)
    assert network.agreed() and not network.verdicts(State.FAILED)


def test_old_gossip_resurrects_no_member() -> None:
    """I8: whatever was said of a member before it failed changes nothing when said again."""
    network = joined(4, LOCAL)
    network.crash(3)
    network.run(6.0)
    before = record(3)
    for number in (0, 1, 2):
        peer = network.peers[number]
        for message in (Ping(9, (record(1), before)), PushPull(False, (record(1), before))):
            peer.membership.receive(message, peer_id(1 if number != 1 else 0), network.now)
        assert peer.state_of(3) == State.FAILED
    network.run(30.0)
    assert network.all_think(3, State.FAILED)


def test_peer_frozen_during_a_failure_does_not_bring_the_dead_back() -> None:
    network = joined(5, LOCAL)
    network.crash(4)
    network.pause(0, 10.0)
    network.run(9.0)
    assert all(network.peers[number].state_of(4) == State.FAILED for number in (1, 2, 3))
    marks = {number: len(network.peers[number].events) for number in (1, 2, 3)}
    network.run(25.0)
    assert network.all_think(4, State.FAILED)
    for number, mark in marks.items():
        later = [event for _, event in network.peers[number].events[mark:] if isinstance(event, MemberChanged)]
        assert not [event for event in later if event.member.id == peer_id(4)]


# -- one machine: state x record x result (SWIM 4.2) ---------------------------------------------------------------

A, S, F, L = State.ALIVE, State.SUSPECT, State.FAILED, State.LEFT


@pytest.mark.parametrize(
    ("known", "told", "believed"),
    [
        ((1, 0, A), (1, 0, S), (1, 0, S)),
        ((1, 0, A), (1, 0, F), (1, 0, F)),
        ((1, 0, S), (1, 0, F), (1, 0, F)),
        ((1, 0, F), (1, 0, L), (1, 0, L)),
        ((1, 0, S), (1, 0, A), (1, 0, S)),
        ((1, 0, F), (1, 0, S), (1, 0, F)),
        ((1, 0, F), (1, 0, A), (1, 0, F)),
        ((1, 0, L), (1, 0, F), (1, 0, L)),
        ((1, 0, F), (1, 1, A), (1, 1, A)),
        ((1, 0, S), (1, 1, A), (1, 1, A)),
        ((1, 3, L), (2, 0, A), (2, 0, A)),
        ((1, 9, A), (2, 0, S), (2, 0, S)),
        ((2, 0, A), (1, 9, F), (2, 0, A)),
        ((2, 2, S), (2, 1, A), (2, 2, S)),
        ((1, 0, A), (1, 1, L), (1, 1, L)),
    ],
)
def test_record_of_another_overrides_by_pair_then_by_state(
    known: tuple[int, int, State], told: tuple[int, int, State], believed: tuple[int, int, State]
) -> None:
    def made(row: tuple[int, int, State]) -> Member:
        return record(5, incarnation=row[0], refutation=row[1], state=row[2])

    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), made(known))), 1, 0.0)
    peer.hear(Ping(2, (record(1), made(told))), 1, 0.1)
    assert peer.membership.members[peer_id(5)] == made(believed)


@pytest.mark.parametrize(
    ("told", "refutation"),
    [((1, 2, S), 3), ((1, 2, F), 3), ((1, 2, L), 3), ((1, 7, S), 8), ((1, 2, A), 2), ((1, 1, F), 2), ((0, 9, F), 2)],
)
def test_record_of_myself_is_refuted_if_it_is_not_older_and_not_good(
    told: tuple[int, int, State], refutation: int
) -> None:
    peer = Peer(record(0, refutation=2))
    rumour = record(0, incarnation=told[0], refutation=told[1], state=told[2])
    answers = peer.hear(Ping(1, (record(1), rumour)), 1, 0.0)
    me = peer.membership.me
    assert (me.incarnation, me.refutation, me.state) == (1, refutation, State.ALIVE)
    assert peer.membership.members[me.id] is me
    assert all(envelope.message.members[0] == me for envelope in answers)  # type: ignore[attr-defined]
    assert peer.membership.health.multiplier == (2 if refutation != 2 else 1)


def test_higher_incarnation_of_myself_is_told_once_and_not_adopted() -> None:
    peer = Peer(record(0, incarnation=3))
    clone = replace(record(0, incarnation=4), address="192.0.2.1:4710")
    for sequence in range(3):
        peer.hear(Ping(sequence, (record(1), clone)), 1, float(sequence))
    notices = [event for event in peer.news() if isinstance(event, Notice)]
    assert [notice.code for notice in notices] == ["GD-205"] and "192.0.2.1:4710" in notices[0].text
    assert peer.membership.me.incarnation == 3


@pytest.mark.parametrize(("address", "refutation"), [("10.0.0.9:4710", 1), ("1.0.0.1:4710", 0)])
def test_same_pair_at_another_address_is_a_clone_too(address: str, refutation: int) -> None:
    """Refuted if others would believe it."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), replace(record(0), address=address))), 1, 0.0)
    assert [event.code for event in peer.news() if isinstance(event, Notice)] == ["GD-205"]
    assert peer.membership.me == record(0, refutation=refutation)


@pytest.mark.parametrize("incarnation", [2, 3, 4])
def test_where_its_own_identity_is_said_to_be_live_it_asks__once_a_minute(incarnation: int) -> None:
    peer = Peer(record(0, incarnation=3))
    clone = replace(record(0, incarnation=incarnation), address="1.0.0.1:4710")

    def asked(now: float) -> list[str]:
        said = peer.hear(Ping(int(now), (record(1), clone)), 1, now)
        return [envelope.address for envelope in said if isinstance(envelope.message, PushPull) and not envelope.to]

    assert [asked(now) for now in (0.0, 30.0, 61.0)] == [["1.0.0.1:4710"], [], ["1.0.0.1:4710"]]


def test_no_copy_is_sought_at_a_former_own_address_nor_at_an_outbound_only_peer() -> None:
    peer = Peer(record(0))
    peer.membership.advertise("192.0.2.7:4710", 0.0)
    for rumour in (record(0), replace(record(0, incarnation=2), address="")):
        said = peer.hear(Ping(1, (record(1), rumour)), 1, 1.0)
        assert not any(isinstance(envelope.message, PushPull) and not envelope.to for envelope in said)


def test_copies_that_cannot_ask_each_other_refute_each_other_now_and_then_only() -> None:
    peer = Peer(record(0))
    for turn in range(100):
        refutation = peer.membership.me.refutation
        rumour = replace(record(0, refutation=refutation + 1), address="192.0.2.1:4710")
        peer.hear(Ping(turn, (record(1), rumour)), 1, 0.1 * turn)
    assert 4 <= peer.membership.me.refutation <= 6


def test_copies_are_sought_at_eight_addresses_a_minute_at_most() -> None:
    peer, asked = Peer(record(0, incarnation=3)), []
    for turn in range(100):
        clone = replace(record(0, incarnation=2), address=f"1.0.0.{turn}:4710")
        said = peer.hear(Ping(turn, (record(1), clone)), 1, 0.1 * turn)
        asked += [each.address for each in said if isinstance(each.message, PushPull) and not each.to]
    assert asked == [f"1.0.0.{turn}:4710" for turn in range(8)]


@pytest.mark.parametrize(
    ("incarnation", "address", "told"), [(2, "10.0.0.9:4710", True), (2, "10.0.0.5:4710", False), (2, "", True)]
)
def test_member_restarted_at_another_address_is_told_the_former_one(incarnation: int, address: str, told: bool) -> None:
    """A copy of a live peer looks so: it asks there, and meets the first."""
    hub = Peer(record(0))
    hub.hear(Ping(1, (record(5),)), 5, 0.0)
    again = replace(record(5, incarnation=incarnation), address=address)
    said = [each.message for each in hub.hear(Ping(2, (again,)), 5, 1.0) if isinstance(each.message, PushPull)]
    assert [record(5) in message.members for message in said] == [True] * told
    assert hub.membership.members[peer_id(5)] == again


def test_two_daemons_of_one_identity_and_start_that_met_others__hear_of_each_other() -> None:
    """As hosts of one machine image that boot together: each is linked where the other is not."""
    network = Network(LAN)
    hub = network.start(1)
    network.start(2, [1])
    network.run(10.0)
    first, second = record(5), replace(record(5), address="10.0.0.6:4710")
    hub.hear(Ping(1, (first,)), 5, network.now)
    network.peers[2].hear(Ping(1, (second,)), 5, network.now)
    network.run(2.0)
    assert [network.peers[number].membership.members[first.id].address for number in (1, 2)] == [second.address] * 2
    said = [envelope.message for envelope in hub.hear(Ping(2, (first,)), 5, network.now)]
    told = [member for message in said for member in message.members]  # type: ignore[attr-defined]
    assert (first.id, second.address) in [(member.id, member.address) for member in told]


def test_whole_view_that_says_failed_makes_suspect_and_asks_the_member_itself() -> None:
    """As memberlist: a view may come from across a healed partition; only gossip of a verdict is a verdict."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    sent = peer.hear(PushPull(False, (record(1), record(2, state=F))), 1, 0.1)
    assert peer.state_of(2) == State.SUSPECT
    asked = [envelope.message for envelope in sent if envelope.to == peer_id(2)]
    assert len(asked) == 1 and isinstance(asked[0], Ping) and record(2, state=S, accusers=(1,)) in asked[0].members


def test_ping_of_a_member_thought_failed_is_answered_with_the_verdict() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=F))), 1, 0.0)
    sent = peer.hear(Ping(7, (record(2),)), 2, 1.0)
    pong = next(envelope.message for envelope in sent if isinstance(envelope.message, Pong))
    assert pong.sequence == 7 and record(2, state=F) in pong.members and peer.state_of(2) == State.FAILED
    peer.hear(Pong(0, (record(2, refutation=1),)), 2, 1.1)
    assert peer.state_of(2) == State.ALIVE


def test_any_message_of_a_suspect_makes_it_be_told_at_most_once_per_probe_timeout() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=S))), 1, 0.0)
    for tick in range(20):
        peer.membership.contact(peer_id(2), 1.0 + tick * 0.05)
    told = [envelope for envelope in peer.sent() if envelope.to == peer_id(2)]
    assert len(told) == 2 and all(record(2, state=S) in envelope.message.members for envelope in told)  # type: ignore[attr-defined]
    assert peer.state_of(2) == State.SUSPECT


def test_ping_of_a_stranger_is_answered_and_teaches_its_record() -> None:
    peer = Peer(record(0))
    sent = peer.hear(Ping(3), 1, 0.0)
    assert [(envelope.to, type(envelope.message)) for envelope in sent] == [(peer_id(1), Pong)]
    assert sent[0].message.members == (record(0),)  # type: ignore[attr-defined]
    assert list(peer.membership.members) == [peer_id(0)]
    peer.hear(Ping(4, (record(1),)), 1, 0.1)
    assert peer.state_of(1) == State.ALIVE
    assert [type(event) for event in peer.news()] == [MemberChanged, Joined]


def test_message_under_my_own_id_changes_nothing() -> None:
    peer = Peer(record(0))
    assert peer.hear(Ping(1, (record(5),)), 0, 0.0) == [] and list(peer.membership.members) == [peer_id(0)]


# -- probes (SWIM 3.1, Lifeguard IV.A) -----------------------------------------------------------------------------


def probing(peer: Peer, target: int) -> tuple[Ping, float]:
    """Run `peer` until it probes `target`. Members probed before that answer."""
    while True:
        due = peer.membership.timer()
        assert due is not None and due < 100.0
        peer.membership.handle_timer(due)
        for envelope in peer.sent():
            if not isinstance(envelope.message, Ping):
                continue
            if envelope.to == peer_id(target):
                return envelope.message, due
            other = next(number for number in range(100) if peer_id(number) == envelope.to)
            peer.hear(Pong(envelope.message.sequence, (record(other),)), other, due)


def test_answered_probe_measures_the_round_trip_and_improves_health() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.membership.health.worse(3)
    ping, at = probing(peer, 1)
    peer.hear(Pong(ping.sequence, (record(1),)), 1, at + 0.08)
    assert peer.membership.rtt(peer_id(1)) == pytest.approx(0.08)
    assert peer.membership.health.multiplier == 3


def test_silent_probe_goes_through_k_relays_then_suspects_tells_the_suspect_and_costs_health() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, tuple(record(number) for number in range(1, 7))), 1, 0.0)
    peer.run_to(0.0)
    peer.membership.contact(peer_id(5), 0.0)
    ping, at = probing(peer, 5)
    direct = peer.run_to(at + LAN.probe_timeout - 0.001)
    assert not [envelope for envelope in direct if isinstance(envelope.message, PingRequest)]
    sent = peer.run_to(at + LAN.probe_timeout)
    requests = [envelope for envelope in sent if isinstance(envelope.message, PingRequest)]
    assert len({envelope.to for envelope in requests}) == 3
    assert {envelope.message for envelope in requests} == {PingRequest(ping.sequence, peer_id(5), record(5).address)}
    assert [envelope.to for envelope in sent if isinstance(envelope.message, Ping)] == [peer_id(5)]
    before = peer.membership.health.multiplier
    verdict = peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(5) == State.SUSPECT and peer.membership.health.multiplier == before + 2
    told = [envelope.message for envelope in verdict if envelope.to == peer_id(5)]
    assert any(
        isinstance(message, Ping) and message.members[1] == record(5, state=S, accusers=(0,)) for message in told
    )


def test_nacks_of_all_relays_say_that_the_silence_is_not_mine() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2), record(3))), 1, 0.0)
    peer.membership.contact(peer_id(3), 0.0)
    ping, at = probing(peer, 3)
    relays = [e.to for e in peer.run_to(at + LAN.probe_timeout) if isinstance(e.message, PingRequest)]
    assert set(relays) == {peer_id(1), peer_id(2)}
    for number in (1, 2):
        peer.hear(Nack(ping.sequence), number, at + 0.7)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(3) == State.SUSPECT and peer.membership.health.multiplier == 2


def test_pong_through_a_relay_clears_the_probe_but_measures_nothing() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2), record(3))), 1, 0.0)
    ping, at = probing(peer, 3)
    peer.run_to(at + LAN.probe_timeout)
    peer.hear(Pong(ping.sequence, (record(2),)), 2, at + 0.8)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(3) == State.ALIVE and peer.membership.rtt(peer_id(3)) is None


def test_pong_of_an_unasked_member_clears_nothing() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    ping, at = probing(peer, 2)
    peer.hear(Pong(ping.sequence, (record(1),)), 1, at + 0.1)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(2) == State.SUSPECT


def test_member_heard_from_during_its_probe_is_not_suspected_though_its_answer_is_missed() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    _, at = probing(peer, 1)
    peer.membership.contact(peer_id(1), at + 0.9)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(1) == State.ALIVE and peer.membership.health.multiplier == 2


def test_suspect_that_keeps_sending_is_failed_only_after_an_equal_silence() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=S))), 1, 0.0)
    peer.run_to(3.0)
    peer.membership.contact(peer_id(2), 3.0)
    peer.run_to(6.9)
    assert peer.state_of(2) == State.SUSPECT
    peer.run_to(7.0)
    assert peer.state_of(2) == State.FAILED


def test_relay_passes_an_answer_on_and_says_nack_when_there_is_none() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    sent = peer.hear(PingRequest(77, peer_id(2), record(2).address), 1, 0.1)
    ping = sent[0].message
    assert sent[0].to == peer_id(2) and isinstance(ping, Ping)
    passed = [e for e in peer.hear(Pong(ping.sequence, (record(2),)), 2, 0.15) if e.to == peer_id(1)]
    assert isinstance(passed[0].message, Pong) and passed[0].message.sequence == 77
    peer.hear(PingRequest(78, peer_id(9), "10.0.0.9:4710"), 1, 0.2)
    nacks = [e.message for e in peer.run_to(0.2 + LAN.probe_timeout) if e.to == peer_id(1)]
    assert Nack(78) in nacks and Nack(77) not in nacks


def test_timers_that_ran_late_void_the_probe_and_prolong_suspicions() -> None:
    """Lifeguard I: slow processing of messages must not look like the death of others."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2), record(3, state=S))), 1, 0.0)
    _, at = probing(peer, 2)
    peer.membership.handle_timer(at + 20.0)
    assert [peer.state_of(number) for number in (1, 2, 3)] == [A, A, S]
    assert peer.membership.health.multiplier == 2
    peer.membership.handle_timer(at + 20.01)
    assert peer.state_of(3) == State.SUSPECT


def test_health_scales_probe_interval_and_timeout_up_to_its_maximum() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.membership.health.worse(99)
    assert peer.membership.health.multiplier == LAN.awareness_max
    _, at = probing(peer, 1)
    peer.run_to(at + 7.99)
    assert peer.state_of(1) == State.ALIVE
    peer.run_to(at + 8.0)
    assert peer.state_of(1) == State.SUSPECT


def test_lost_link_brings_the_probe_of_that_peer_forward() -> None:
    """SWIM 4.3: the order is a shuffled round-robin. A hint only changes which member is next."""
    peer = Peer(record(0))
    peer.hear(Ping(1, tuple(record(number) for number in range(1, 12))), 1, 0.0)
    peer.membership.link_down(peer_id(8), "reset", 0.0)
    peer.membership.link_down(peer_id(99), "reset", 0.0)
    assert peer.state_of(8) == State.ALIVE
    pinged = [e.to for e in peer.run_to(LAN.probe_interval) if isinstance(e.message, Ping)]
    assert pinged[0] == peer_id(8)


def test_every_member_is_probed_once_before_any_is_probed_twice() -> None:
    peer = Peer(record(0))
    numbers = range(1, 9)
    peer.hear(Ping(1, tuple(record(number) for number in numbers)), 1, 0.0)
    order = []
    for _ in range(3 * len(numbers)):
        while True:
            due = peer.membership.timer()
            assert due is not None
            peer.membership.handle_timer(due)
            pings = [e for e in peer.sent() if isinstance(e.message, Ping)]
            if pings:
                break
        order.append(pings[0].to)
        number = next(number for number in numbers if peer_id(number) == pings[0].to)
        peer.hear(Pong(pings[0].message.sequence, (record(number),)), number, due + 0.01)
    for turn in range(3):
        assert len(set(order[turn * 8 : turn * 8 + 8])) == 8


def test_members_that_come_and_go_do_not_keep_the_others_from_being_probed() -> None:
    """SWIM 4.3: the time to the first probe of each member is bounded by the size of the network."""
    peer = Peer(record(0))
    numbers = range(1, 13)
    peer.hear(Ping(1, tuple(record(number) for number in numbers)[:11]), 1, 0.0)
    peer.hear(Ping(2, (record(12),)), 12, 0.0)
    probed: dict[bytes, float] = dict.fromkeys(map(peer_id, numbers), 0.0)
    waited: list[float] = []
    refutation = 0
    while (due := peer.membership.timer()) is not None and due < 60.0:
        peer.membership.handle_timer(due)
        if due > 2.0 * refutation:
            refutation += 1
            for number in (1, 2, 3, 4):
                peer.hear(Ping(1, (record(number, refutation=refutation - 1, state=F),)), 5, due)
                peer.hear(Ping(2, (record(number, refutation=refutation),)), number, due)
        for envelope in peer.sent():
            if isinstance(envelope.message, Ping):
                number = next(number for number in numbers if peer_id(number) == envelope.to)
                if number > 4:
                    waited.append(due - probed[envelope.to])
                    probed[envelope.to] = due
                said = record(number, refutation=refutation if number <= 4 else 0)
                peer.hear(Pong(envelope.message.sequence, (said,)), number, due)
    assert max(waited) <= 2 * 12 * LAN.probe_interval and max(60.0 - probed[peer_id(n)] for n in range(5, 13)) <= 24.0


# -- records that were forged ---------------------------------------------------------------------------------------

TOP = 0xFFFF_FFFF


def test_member_that_another_calls_dead_in_a_life_it_never_had_lives_again_once_it_is_asked() -> None:
    for pair in ((TOP, 0), (2, 0), (1, TOP), (1, LEAP + 1)):
        for state in (A, S, F, L):
            peer, forged = Peer(record(0)), record(2, incarnation=pair[0], refutation=pair[1], state=state)
            peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
            peer.hear(Ping(2, (record(1), forged)), 1, 1.0)
            assert peer.state_of(2) == state
            asked = [e.message for e in peer.hear(Ping(3, (record(2),)), 2, 2.0) if isinstance(e.message, Ping)]
            if state == A:
                asked = [e.message for e in peer.run_to(20.0) if isinstance(e.message, Ping) and e.to == peer_id(2)]
            peer.hear(Pong(asked[-1].sequence, (record(2),)), 2, 20.0)
            assert peer.membership.members[peer_id(2)] == record(2), "it says so itself, by now"
            peer.hear(Ping(4, (record(1), forged)), 1, 20.5)
            assert peer.membership.members[peer_id(2)] == record(2)


def test_many_forged_records_of_oneself_in_one_message_are_answered_once() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    forged = tuple(record(0, refutation=number, state=S) for number in range(1, 20))
    sent = [e.message for e in peer.hear(Ping(2, (record(1), *forged)), 1, 1.0) if e.to == peer_id(1)]
    assert [type(message) for message in sent] == [PushPull, Pong], "one to what was said, and the ping's answer"
    assert peer.membership.me.refutation == 2
    peer.run_to(1.0 + LAN.probe_timeout)
    assert peer.membership.me.refutation == 2 + LEAP + 1


def test_answers_to_one_member_wait_for_a_probe_timeout_and_are_never_dropped() -> None:
    peer = Peer(record(0))
    others = range(2, 62)
    for number in others:
        peer.hear(Ping(1, (record(number, refutation=5),)), number, 0.0)
    sent = []
    for turn, number in enumerate(others):
        old = record(number, refutation=turn % 5)
        sent += [e for e in peer.hear(Pong(0, (record(1), old)), 1, 1.0 + 0.004 * turn) if e.to == peer_id(1)]
    answers = [envelope.message for envelope in sent]
    assert answers == [PushPull(False, (record(0), record(2, refutation=5)))]
    answers += [e.message for e in peer.run_to(6.0) if e.to == peer_id(1) and isinstance(e.message, PushPull)]
    assert len(answers) <= 6 and all(not answer.digest for answer in answers)
    told = {member.id for answer in answers for member in answer.members}
    assert told >= {peer_id(number) for number in others}


def test_doubts_in_quick_succession_are_denied_once_a_probe_timeout() -> None:
    peer = Peer(record(0))
    denials = set()
    for turn in range(100):
        me = peer.membership.me
        peer.hear(Ping(turn, (record(1), replace(me, state=S))), 1, 1.0 + 0.01 * turn)
        peer.run_to(1.0 + 0.01 * turn)
        denials.add(peer.membership.me.refutation)
    assert denials == {1, 2}
    peer.run_to(1.0 + 2.0 * LAN.probe_timeout)
    assert peer.membership.me.refutation == 3


def test_overdrawn_control_budget_thins_messages_and_delays_news_by_a_probe_interval_at_most() -> None:
    peer = Peer(record(0))
    for number in range(1, 10):
        peer.hear(Ping(1, (record(number, refutation=1),)), number, 0.0)
    peer.board.merge([Progress(peer_id(number), 1, 1, 1, 1) for number in range(1, 10)])
    peer.membership._dissemination.control.spend(1e9, 1.0)
    [pong] = [e.message for e in peer.hear(Ping(7, (record(1, refutation=1),)), 1, 1.0) if isinstance(e.message, Pong)]
    assert pong.sequence == 7 and pong.members == (record(0),) and len(pong.progress) <= 1
    doubted = [record(number, refutation=1, state=S) for number in (2, 3)]
    peer.hear(Pong(0, (record(1, refutation=1), *doubted)), 1, 1.0)
    times = []
    while (due := peer.membership.timer()) is not None and due < 4.0:
        peer.membership._dissemination.control.spend(1e9, due)
        peer.membership.handle_timer(due)
        times += [due for e in peer.sent() if isinstance(e.message, Pong) and len(e.message.members) > 2]
    assert len(set(times)) >= 2 and times[0] <= 1.0 + LAN.probe_interval


def disabused(forged: Member) -> Peer:
    """A peer that has believed this of member 2, until that one answered."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    peer.hear(Ping(2, (record(1), forged)), 1, 1.0)
    [asked] = [e.message for e in peer.hear(Ping(3, (record(2),)), 2, 2.0) if isinstance(e.message, Ping)]
    peer.hear(Pong(asked.sequence, (record(2),)), 2, 2.1)
    return peer


def test_suspicions_and_their_answers_are_heard_of_though_later_ones_were_forged_before() -> None:
    peer = disabused(record(2, refutation=TOP, state=F))
    peer.hear(Ping(4, (record(2, state=S, accusers=(1,)),)), 1, 3.0)
    assert peer.state_of(2) == S
    peer.hear(Ping(5, (record(2, refutation=1),)), 1, 4.0)
    assert peer.membership.members[peer_id(2)] == record(2, refutation=1)


def test_later_life_is_believed_though_later_ones_were_forged_before() -> None:
    peer = disabused(record(2, incarnation=TOP, state=L))
    peer.hear(Ping(4, (record(2, incarnation=2),)), 2, 3.0)
    assert peer.membership.members[peer_id(2)] == record(2, incarnation=2)
    peer.hear(Ping(5, (record(1), record(2, incarnation=2, state=F))), 1, 4.0)
    assert peer.state_of(2) == F, "what others say of this life counts"


def test_late_answer_of_an_earlier_life_disproves_nothing() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    [asked] = [e.message for e in peer.run_to(3.0) if isinstance(e.message, Ping) and e.to == peer_id(2)][:1]
    peer.hear(Ping(2, (record(1), record(2, incarnation=2))), 1, 3.1)
    peer.hear(Pong(asked.sequence, (record(2),)), 2, 3.2)
    assert peer.membership.members[peer_id(2)] == record(2, incarnation=2)


def test_answer_to_a_ping_of_an_earlier_life_disproves_nothing() -> None:
    """T1 seed 3978: recorded messages, repeated to the next life of their receiver."""
    earlier, later = Peer(record(0)), Peer(record(0, incarnation=2))
    for peer in earlier, later:
        peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    answers = [Pong(e.message.sequence, (record(2),)) for e in earlier.run_to(20.0) if isinstance(e.message, Ping)]
    later.hear(Ping(2, (record(2, refutation=1),)), 1, 0.1)
    asked = [e for e in later.run_to(20.0) if isinstance(e.message, Ping) and e.to == peer_id(2)]
    for answer in answers:
        later.hear(answer, 2, 20.0)
    assert asked and later.membership.members[peer_id(2)].refutation == 1


def test_answer_that_comes_after_any_probe_has_ended_is_no_round_trip() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    [asked, *_] = [e.message for e in peer.run_to(3.0) if isinstance(e.message, Ping)]
    peer.hear(Pong(asked.sequence, (record(1),)), 1, 900.0)
    assert peer.membership.rtt(peer_id(1)) is None


@pytest.mark.parametrize("pair", [(TOP, 0), (1, TOP)])
def test_forged_death_is_told_everywhere_and_the_victim_lives_on_everywhere(pair: tuple[int, int]) -> None:
    network = Network(LAN, seed=5)
    for number in range(6):
        network.start(number, [0] if number else [])
    network.run(20.0)
    forged = record(2, incarnation=pair[0], refutation=pair[1], state=L if pair[0] > 1 else F)
    for number in (0, 1, 3, 4, 5):
        network.peers[number].hear(Ping(9, (record(1), forged)), 1, network.now)
        network._drain(number)
    network.run(40.0)
    for number, peer in network.peers.items():
        victim = peer.membership.members[peer_id(2)]
        assert (victim.state, victim.incarnation) == (A, 1) and victim.refutation < TOP, number


# -- bounds and determinism (I9, I12) ------------------------------------------------------------------------------


def test_member_table_is_bounded_and_the_dead_make_room_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 6)
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=F), *(record(number) for number in range(3, 6)))), 1, 0.0)
    peer.hear(Ping(2, (record(1), record(6, state=F))), 1, 0.1)
    assert len(peer.membership.members) == 6 and peer.membership.refused == 1
    peer.hear(Ping(3, (record(1), record(7))), 1, 0.2)
    assert peer_id(2) not in peer.membership.members and peer.state_of(7) == State.ALIVE
    peer.hear(Ping(4, (record(1), record(8))), 1, 0.3)
    assert len(peer.membership.members) == 6 and peer.membership.refused == 2


def test_flood_of_member_messages_leaves_bounded_tables() -> None:
    peer = Peer(record(0))
    random = Random(4)
    for number in range(1000):
        now = number * 0.001
        peer.hear(Ping(number, (record(1), record(number + 2))), 1, now)
        peer.hear(PingRequest(number, random.randbytes(32), "10.9.9.9:1"), 1, now)
        peer.hear(Pong(number, (record(1),)), number + 2, now)
    membership = peer.membership
    assert len(membership.members) <= module.MAX_MEMBERS
    assert len(membership._prober.sent) <= 256 and len(membership._prober.nack_at) <= 64
    assert len(membership._dissemination.broadcasts) <= len(membership.members)
    assert len(membership._prober.order) <= len(membership.members)


def test_members_that_take_each_others_place_leave_the_probing_order_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 6)
    peer = Peer(record(0))
    for number in range(2, 10_002):
        now = number * 1e-6
        peer.hear(Ping(number, (record(1), record(number))), 1, now)
        peer.hear(Ping(number, (record(1), record(number, state=L))), 1, now)
        assert len(peer.membership._prober.order) <= 2 * len(peer.membership.members) + 1


def test_whole_view_travels_in_pages_that_fit_and_ask_for_one_answer() -> None:
    peer = Peer(record(0))
    for number in range(1, 100):
        peer.hear(Pong(0, (record(number),)), number, 0.0)
    pages = [e.message for e in peer.hear(PushPull(True, (record(1),)), 1, 5.0) if isinstance(e.message, PushPull)]
    assert len(pages) == 5 and not any(page.reply for page in pages)
    assert all(len(page.members) <= MAX_RECORDS and page.members[0].id == peer_id(0) for page in pages)
    assert {member.id for page in pages for member in page.members} | {peer_id(1)} == set(peer.membership.members)
    again = [e.message for e in peer.hear(PushPull(True, (record(1),)), 1, 5.1) if isinstance(e.message, PushPull)]
    assert len(again) == 1


def test_longest_names_and_addresses_still_fit_a_header() -> None:
    def wide(number: int) -> Member:
        return Member(
            peer_id(number), "\u00e9" * 48, "\U0001f310" * 60, 2**32 - 1, 2**32 - 1, State.ALIVE, 255, "s" * 16
        )

    peer = Peer(wide(0))
    peer.board.merge([Progress(peer_id(number), 2**63 - 1, 2**63 - 1, 2**63 - 1, 2**32 - 1) for number in range(9)])
    for number in range(1, 20):
        for envelope in peer.hear(PushPull(True, (wide(number),)), number, float(number)):
            message, _ = wire.decode(envelope.frames)
            assert message == envelope.message


def test_same_seed_same_inputs_same_bytes() -> None:
    def digest(seed: int) -> str:
        network = joined(6, LOCAL, seed=seed, loss=0.1)
        network.crash(5)
        network.run(8.0)
        network.start(5, [0], incarnation=2)
        network.run(4.0)
        return network.log.hexdigest()

    assert digest(1) == digest(1) != digest(2)


def test_quiet_network_costs_few_messages() -> None:
    network = joined(8, LAN)
    network.run(10.0)
    network.sent = 0
    network.run(60.0)
    assert network.sent / 8 / 60.0 < 3.0


def test_progress_rides_on_pings_until_all_have_the_networks_clock() -> None:
    network = joined(5, LAN)
    network.peers[3].board.report(clock=120, steps=120, samples=960, rounds=6)
    network.run(10.0, lambda: all(peer.board.clock() == 120 for peer in network.peers.values()))
    assert [peer.board.samples() for peer in network.peers.values()] == [960] * 5


def test_sender_of_an_outdated_record_is_given_the_newer_one() -> None:
    """A peer that missed a refutation must not fail a member that all others know alive."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, refutation=4))), 1, 0.0)
    sent = peer.hear(Ping(2, (record(1), record(2, refutation=3, state=F))), 1, 0.1)
    corrections = [e.message for e in sent if isinstance(e.message, PushPull)]
    assert corrections == [PushPull(False, (record(0), record(2, refutation=4)))]
    assert peer.state_of(2) == State.ALIVE


def test_simultaneous_joiners_under_the_slowest_preset_all_know_each_other_soon() -> None:
    for seed in (5, 12):
        network = Network(WAN, seed=seed)
        for number in range(16):
            network.start(number, [0])
        assert network.run(30.0, network.agreed) < 15.0
