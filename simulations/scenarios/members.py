"""Many `Membership` machines in virtual time, without the rest of a peer: for scenarios of a thousand members.

The machines are the daemon's own. `simulations.simulator.network` drives whole peers, and spends most of its time on
decoding, averaging and the hash of every frame. Here a message is encoded once, to count its bytes, and then delivered
as an object. Hosts can crash and can be starved of CPU. A starved host does nothing while it is blocked. Then its timer
fires at once, and it handles its backlog one message at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import TypeAlias

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.events import Event
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.dissemination import UNASKED
from gossipdp.protocol.membership.membership import Membership, MembershipMessage
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.strikes import QuarantineConfig, Strikes
from gossipdp.protocol.wire.messages import Member, Message, Pong, PushPull, State
from simulations.simulator.host import sign, verify

__all__ = ["Host", "Members"]

PACE = 0.002
"""seconds that each message of a backlog takes"""


class Host:
    """One machine that runs a Membership."""

    def __init__(self, index: int, seed: int) -> None:
        self.index, self.address = index, f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}:4710"
        self.id = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=32).digest()
        self.membership: Membership | None = None
        self.outputs = Outputs()
        self.blocked_until = 0.0
        self.backlog: deque[tuple[Host, MembershipMessage]] = deque()
        """messages that arrived while the host was blocked or busy"""
        self.wakes_at = float("inf")
        self.sent = 0
        """bytes"""

    @property
    def running(self) -> bool:
        return self.membership is not None


_Cause: TypeAlias = "Host | Callable[[], None] | None"
"""a message's sender, a scripted action, or None for a host's timer"""


class Members:
    """A network of Memberships.

    Args:
        latency: seconds one way; each message takes up to half as long again.
        loss: share of the messages that is lost.
        listen: receives every event of every host.
    """

    def __init__(
        self,
        seed: int,
        config: MembershipConfig,
        peers: int,
        *,
        latency: float = 0.02,
        loss: float = 0.0,
        listen: Callable[[Host, Event], None],
    ) -> None:
        self.seed, self.config, self.latency, self.loss = seed, config, latency, loss
        self.now, self.events, self.bytes = 0.0, 0, 0
        self.traffic: Counter[str] = Counter()
        """bytes by kind of message"""
        self.hosts = [Host(index, seed) for index in range(peers)]
        self._listen = listen
        self._links = self.random("links")
        self._heap: list[tuple[float, int, Host | None, _Cause, MembershipMessage | None]] = []
        self._scheduled = 0
        self._by_id = {host.id: host for host in self.hosts}
        self._by_address = {host.address: host for host in self.hosts}

    def random(self, purpose: str) -> Random:
        """A random source for one purpose. One more draw from it changes no other source."""
        return Random(f"{self.seed}/{purpose}")

    # -- hosts ------------------------------------------------------------------------------------------------

    def start(self, host: Host, seeds: Iterable[Host]) -> None:
        me = Member(host.id, f"p{host.index}", host.address, 1, 0, State.ALIVE, software="0.1.0")
        signer = Signer(partial(sign, host.id), verify)
        board, admission = ProgressBoard(host.id, signer), Admission(host.id)
        board.report(clock=100_000, steps=90_000, samples=3_000_000, rounds=900)
        host.membership = Membership(
            self.config,
            me,
            random=self.random(f"peer/{host.index}"),
            outputs=host.outputs,
            admission=admission,
            strikes=Strikes(QuarantineConfig(), host.id, admission),
            progress=board,
            speed=Speed(),
            signer=signer,
            now=self.now,
        )
        host.membership.join([seed.address for seed in seeds], self.now)
        self._drain(host)

    def kill(self, host: Host) -> None:
        host.membership = None

    def block(self, host: Host, seconds: float) -> None:
        """The host gets no CPU for `seconds`."""
        host.blocked_until = self.now + seconds
        self.at(host.blocked_until, lambda: self._resume(host))

    # -- virtual time -----------------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._push(when, None, action, None)

    def run(self, until: float) -> None:
        """Handle all events up to `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, host, other, message = heappop(heap)
            if host is None:
                assert callable(other)
                other()
            elif host.membership is not None:
                assert not callable(other)
                if other is None or message is None:
                    self._wake(host)
                elif self.now < host.blocked_until or host.backlog:
                    host.backlog.append((other, message))
                else:
                    self._deliver(host, other, message)
        self.now = until

    def _push(
        self,
        when: float,
        host: Host | None,
        other: _Cause,
        message: MembershipMessage | None,
    ) -> None:
        self._scheduled += 1
        heappush(self._heap, (when, self._scheduled, host, other, message))

    def _resume(self, host: Host) -> None:
        self._wake(host)
        self._catch_up(host)

    def _catch_up(self, host: Host) -> None:
        """Handle the first message of the backlog. It stays in front meanwhile, so later arrivals queue behind it."""
        if host.backlog and host.running and self.now >= host.blocked_until:
            self._deliver(host, *host.backlog[0])
            self.at(self.now + PACE, lambda: self._next(host))

    def _next(self, host: Host) -> None:
        host.backlog.popleft()
        self._catch_up(host)

    def _wake(self, host: Host) -> None:
        if host.membership is not None and host.wakes_at <= self.now >= host.blocked_until:
            self.events += 1
            host.wakes_at = float("inf")
            host.membership.handle_timer(self.now)
            self._drain(host)

    def _deliver(self, host: Host, sender: Host, message: MembershipMessage) -> None:
        assert host.membership is not None
        self.events += 1
        host.membership.receive(message, sender.id, self.now)
        self._drain(host)

    def _drain(self, host: Host) -> None:
        """Send the host's messages, pass on its events, and set its timer."""
        membership, outputs, links = host.membership, host.outputs, self._links
        assert membership is not None
        while outputs.messages:
            envelope = outputs.messages.popleft()
            size = len(envelope.frames[0])
            host.sent += size
            self.bytes += size
            self.traffic[_kind(envelope.message)] += size
            target = self._by_id.get(envelope.to) if envelope.to else self._by_address.get(envelope.address)
            if target is None or target is host or (self.loss and links.random() < self.loss):
                continue
            arrives = self.now + self.latency * (1.0 + 0.5 * links.random())
            self._push(arrives, target, host, envelope.message)  # type: ignore[arg-type]
        while membership.events:
            self._listen(host, membership.events.popleft())
        timer = membership.timer()
        if timer is not None and timer < host.wakes_at:
            host.wakes_at = max(timer, self.now)
            self._push(host.wakes_at, host, None, None)


def _kind(message: Message) -> str:
    """Gossip, probes, or a step of comparing views."""
    match message:
        case Pong(sequence):
            return "gossip" if sequence == UNASKED else "probes"
        case PushPull(reply):
            if message.listed:
                return "view: lists"
            return "view: asked" if reply else "view: records"
    return "probes"
