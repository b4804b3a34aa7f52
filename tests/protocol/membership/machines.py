"""Membership in virtual time: single machines, and a small deterministic network of them. No clock and no socket.

SWIM is Das et al. 2002, Lifeguard is Dadgar et al. 2018; I8, I9 and I12 are invariants of the safety page.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable
from random import Random

from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.events import Event, MemberChanged
from gossipdp.protocol.membership.config import LAN, MembershipConfig
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Envelope, Outputs
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.strikes import QuarantineConfig, Strikes
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import UNSIGNED, Member, Message, State

A, S, F, L = State.ALIVE, State.SUSPECT, State.FAILED, State.LEFT
TOP = 0xFFFF_FFFF
"""largest incarnation and refutation"""

TRUSTING = Signer(lambda data: UNSIGNED, lambda peer, data, signature: True)
"""for tests that are not about signatures: signs nothing, and takes every record for genuine"""


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


def membership_of(
    me: Member,
    random: Random,
    outputs: Outputs,
    *,
    config: MembershipConfig = LAN,
    board: ProgressBoard | None = None,
    signer: Signer = TRUSTING,
    now: float = 0.0,
) -> Membership:
    """The Membership of a peer that does not train, on a host without an operator."""
    admission = Admission(me.id)
    return Membership(
        config,
        me,
        random=random,
        outputs=outputs,
        admission=admission,
        strikes=Strikes(QuarantineConfig(), me.id, admission),
        progress=ProgressBoard(me.id, signer) if board is None else board,
        speed=Speed(),
        signer=signer,
        now=now,
    )


class Peer:
    """One Membership with its outputs; for tests of one machine alone."""

    def __init__(self, me: Member, config: MembershipConfig = LAN, *, seed: object = 0, now: float = 0.0) -> None:
        self.outputs = Outputs()
        self.board = ProgressBoard(me.id, TRUSTING)
        random = Random(f"{seed}/{me.name}/{me.incarnation}")
        self.membership = membership_of(me, random, self.outputs, config=config, board=self.board, now=now)
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
        events = list(self.membership.events)
        self.membership.events.clear()
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
