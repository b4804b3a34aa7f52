"""An independent count of the chunks in doubt, to compare the peers' own counts with.

It uses only deliveries and mixes, and looks into no peer. A peer learns that its partner's life is over. Then a chunk
of their exchange is in doubt if no message said whether the partner mixed it.

* Initiator: it sent codes of the chunk (an even turn from 2 on), and got neither a later turn nor a Void.
* Responder: it mixed the chunk and does not know that the initiator has. At most one window of chunks counts, because
  no more are open at once. One less counts if the chunk opened last is not mixed yet, because that takes a place in
  the window. None counts once the initiator sent End "settled" or a new offer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ExchangeStarted, MemberChanged
from gossipdp.protocol.wire.messages import (
    Accept,
    Ack,
    Ask,
    Data,
    End,
    Member,
    Message,
    Miss,
    Offer,
    Ranges,
    Refuse,
    Void,
)
from simulations.simulator.host import Host
from simulations.simulator.lives import Life
from simulations.simulator.network import Record

__all__ = ["DoubtOracle", "ExchangeId", "exchange_of"]

ExchangeId = tuple[int, int]
"""(index of the initiator's host, number of the exchange): two peers may use the same number"""


def exchange_of(message: Message, sender: int, target: int) -> ExchangeId:
    """The exchange that `message` belongs to; (-1, -1) for other messages."""
    match message:
        case Offer(exchange) | Ranges(exchange) | Ask(exchange):
            return sender, exchange
        case Accept(exchange) | Refuse(exchange) | Ack(exchange) | Void(exchange) | Miss(exchange):
            return target, exchange
        case Data(exchange, _, turn):
            return target if turn % 2 else sender, exchange
        case End(exchange, mine):
            return sender if mine else target, exchange
    return -1, -1


@dataclass
class _View:
    """What one life of a host knows of one exchange."""

    partner: Life
    initiator: bool
    window: int
    chunks: int
    first: int
    over: bool = False
    """the host has learnt that its partner's life ended; it ignores later messages"""
    settled: bool = False
    sent: dict[int, int] = field(default_factory=dict)
    """chunk -> last even turn it sent"""
    received: dict[int, int] = field(default_factory=dict)
    """chunk -> last odd turn it received"""
    void: set[int] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)
    opened: set[int] = field(default_factory=set)
    """chunks of which the initiator has sent anything; it opens them in order, from `first` on"""

    def doubts(self) -> int:
        if self.settled:
            return 0
        if self.initiator:
            asked = {chunk for chunk, turn in self.sent.items() if turn >= 2 and self.received.get(chunk, -1) < turn}
            return len(asked - self.void - self.mixed)
        latest = max(self.opened, key=lambda chunk: (chunk - self.first) % self.chunks, default=-1)
        return min(len(self.mixed), self.window - (latest not in self.mixed))


class DoubtOracle:
    """Follows the trace of a network and counts the chunks in doubt of each life.

    Args:
        hosts: all hosts of the network.
        window, chunks: window of an exchange, and chunks of the model.
    """

    def __init__(self, hosts: list[Host], window: int, chunks: int) -> None:
        self._hosts, self._window, self._chunks = hosts, window, chunks
        self._first: dict[ExchangeId, int] = {}
        self._views: dict[tuple[Life, ExchangeId], _View] = {}
        self._indices: dict[bytes, int] = {}

    def take(self, record: Record) -> None:
        """Take a record of the network's trace."""
        host, what = record.host, record.what
        if host is None:
            return
        match record.kind:
            case "sent" | "twice" | "lost" if isinstance(what, Data) and what.turn % 2 == 0:
                view = self._view(host, (host, what.exchange))
                if view is not None:
                    view.sent[what.chunk] = max(what.turn, view.sent.get(what.chunk, -1))
            case "got" if record.other is not None:
                self._got(record.other, host, what)
            case "did" if isinstance(what, jobs.DecodeAndMix | jobs.Mix) and record.result.mixed:
                view = self._view(host, (self._index(what.key.initiator), what.key.exchange))
                if view is not None:
                    view.mixed.add(what.key.chunk)
            case "said" if isinstance(what, ExchangeStarted):
                partner = self._index(what.partner)
                number = (host if what.initiator else partner, what.exchange)
                # The number of an exchange begins with its initiator's incarnation.
                incarnation = self._hosts[partner].incarnation if what.initiator else what.exchange >> 32
                self._views[self._life(host), number] = _View(
                    (partner, incarnation), what.initiator, self._window, self._chunks, self._first[number]
                )
            case "said" if isinstance(what, MemberChanged):
                self._changed(host, what.member)

    def _changed(self, host: int, member: Member) -> None:
        for (life, _), view in self._views.items():
            if life == self._life(host) and view.partner[0] == self._index(member.id):
                # A member that left may still be heard on another lane.
                view.over |= member.incarnation > view.partner[1]

    def _got(self, receiver: int, sender: int, message: Message) -> None:
        number = exchange_of(message, sender, receiver)
        if isinstance(message, Offer):
            self._first[number] = message.first
            # The same life makes a new offer only if it has nothing in doubt.
            for (life, other), held in self._views.items():
                if life == self._life(receiver) and held.partner == (sender, number[1] >> 32):
                    held.settled |= not held.initiator and other[1] < number[1]
        view = self._view(receiver, number)
        if view is None or view.over:
            return
        match message:
            case Data(_, chunk, turn) | Ack(_, chunk, turn) if view.initiator:
                view.received[chunk] = max(turn, view.received.get(chunk, -1))
            case Void(_, chunk):
                view.void.add(chunk)
            case Ranges(_, chunk) | Data(_, chunk) | Ask(_, chunk):
                view.opened.add(chunk)
            case End(_, True, reason):
                # A later life that answers "unwanted" knows nothing of what this life did.
                same = view.partner[1] == self._hosts[sender].incarnation
                view.settled |= reason == "settled" or (reason == "unwanted" and same)

    def check(self, counted: Counter[Life]) -> None:
        """Check that every running life has counted exactly what it cannot know."""
        owed: Counter[Life] = Counter()
        running = {self._life(host.index) for host in self._hosts if host.peer is not None}
        for (life, _), view in self._views.items():
            if view.over:
                owed[life] += view.doubts()
        for life in running:
            assert counted[life] == owed[life], f"I2 {life}: {counted[life]} counted, {owed[life]} cannot be known"

    def _view(self, host: int, number: ExchangeId) -> _View | None:
        return self._views.get((self._life(host), number))

    def _life(self, host: int) -> Life:
        return (host, self._hosts[host].incarnation)

    def _index(self, peer: bytes) -> int:
        if not self._indices:
            self._indices = {host.id: host.index for host in self._hosts}
        return self._indices[peer]
