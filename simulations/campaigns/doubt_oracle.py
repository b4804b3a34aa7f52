"""Who can know what of a chunk: an outside reckoning of the chunks in doubt, to hold the peers' own counting against.

From what was handed over and what was mixed alone, without a look into any peer: when a peer has learnt that its
partner's life is over, a chunk of their exchange is in doubt for it if nothing it was told says whether the partner has
mixed it.

    the initiator   has sent codes of the chunk (an even turn from 2 on) and got neither a later turn nor a Void
    the responder   has mixed the chunk and does not know that the initiator has: never more than one window, for no
                    more are open at once; one less if the chunk opened last is not yet mixed, for it takes up a place
                    in the window itself; and none once the initiator said End "settled", or offered anew

Nothing of the protocol's own accounts may be read here.
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
from simulations.simulator.invariants import Life
from simulations.simulator.network import Record

__all__ = ["Knowledge", "Named", "named"]

Named = tuple[int, int]
"""(number of the initiator's host, number of the exchange): two peers may use the same number"""


def named(message: Message, sender: int, target: int) -> Named:
    """Whose exchange `message` is of, and which."""
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
    """What one life knows of one exchange."""

    partner: Life
    initiator: bool
    window: int
    chunks: int
    first: int
    over: bool = False
    """it has learnt that the partner's life has ended; what comes later is not listened to"""
    settled: bool = False
    told: dict[int, int] = field(default_factory=dict)
    """chunk -> last even turn sent"""
    heard: dict[int, int] = field(default_factory=dict)
    """chunk -> last odd turn got"""
    void: set[int] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)
    opened: set[int] = field(default_factory=set)
    """chunks of which anything came from the initiator; it opens them in order, beginning with `first`"""

    def doubts(self) -> int:
        if self.settled:
            return 0
        if self.initiator:
            asked = {chunk for chunk, turn in self.told.items() if turn >= 2 and self.heard.get(chunk, -1) < turn}
            return len(asked - self.void - self.mixed)
        latest = max(self.opened, key=lambda chunk: (chunk - self.first) % self.chunks, default=-1)
        return min(len(self.mixed), self.window - (latest not in self.mixed))


class Knowledge:
    def __init__(self, hosts: list[Host], window: int, chunks: int) -> None:
        self._hosts, self._window, self._chunks = hosts, window, chunks
        self._first: dict[Named, int] = {}
        self._views: dict[tuple[Life, Named], _View] = {}
        self._indices: dict[bytes, int] = {}

    def told(self, record: Record) -> None:
        """All that happens, as the network traces it."""
        host, what = record.host, record.what
        if host is None:
            return
        match record.kind:
            case "sent" | "twice" | "lost" if isinstance(what, Data) and what.turn % 2 == 0:
                view = self._view(host, (host, what.exchange))
                if view is not None:
                    view.told[what.chunk] = max(what.turn, view.told.get(what.chunk, -1))
            case "got" if record.other is not None:
                self._got(record.other, host, what)
            case "did" if isinstance(what, jobs.DecodeAndMix | jobs.Mix) and record.result.mixed:
                view = self._view(host, (self._index(what.key.initiator), what.key.exchange))
                if view is not None:
                    view.mixed.add(what.key.chunk)
            case "said" if isinstance(what, ExchangeStarted):
                partner = self._index(what.partner)
                number = (host if what.initiator else partner, what.exchange)
                # An exchange's number begins with its initiator's incarnation.
                incarnation = self._hosts[partner].incarnation if what.initiator else what.exchange >> 32
                self._views[self._life(host), number] = _View(
                    (partner, incarnation), what.initiator, self._window, self._chunks, self._first[number]
                )
            case "said" if isinstance(what, MemberChanged):
                self._changed(host, what.member)

    def _changed(self, host: int, member: Member) -> None:
        for (life, _), view in self._views.items():
            if life == self._life(host) and view.partner[0] == self._index(member.id):
                # Who has left may still be heard, on another lane.
                view.over |= member.incarnation > view.partner[1]

    def _got(self, receiver: int, sender: int, message: Message) -> None:
        number = named(message, sender, receiver)
        if isinstance(message, Offer):
            self._first[number] = message.first
            # The same life offers anew only when nothing is in doubt.
            for (life, other), held in self._views.items():
                if life == self._life(receiver) and held.partner == (sender, number[1] >> 32):
                    held.settled |= not held.initiator and other[1] < number[1]
        view = self._view(receiver, number)
        if view is None or view.over:
            return
        match message:
            case Data(_, chunk, turn) | Ack(_, chunk, turn) if view.initiator:
                view.heard[chunk] = max(turn, view.heard.get(chunk, -1))
            case Void(_, chunk):
                view.void.add(chunk)
            case Ranges(_, chunk) | Data(_, chunk) | Ask(_, chunk):
                view.opened.add(chunk)
            case End(_, True, reason):
                # A later life that says "unwanted" knows nothing of what this one did.
                same = view.partner[1] == self._hosts[sender].incarnation
                view.settled |= reason == "settled" or (reason == "unwanted" and same)

    def at_rest(self, counted: Counter[Life]) -> None:
        """Every life that still runs has counted exactly what it cannot know."""
        owed: Counter[Life] = Counter()
        running = {self._life(host.index) for host in self._hosts if host.peer is not None}
        for (life, _), view in self._views.items():
            if view.over:
                owed[life] += view.doubts()
        for life in running:
            assert counted[life] == owed[life], f"I2 {life}: {counted[life]} counted, {owed[life]} cannot be known"

    def _view(self, host: int, number: Named) -> _View | None:
        return self._views.get((self._life(host), number))

    def _life(self, host: int) -> Life:
        return (host, self._hosts[host].incarnation)

    def _index(self, peer: bytes) -> int:
        if not self._indices:
            self._indices = {host.id: host.index for host in self._hosts}
        return self._indices[peer]
