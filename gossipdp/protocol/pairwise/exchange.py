"""One pairwise exchange: two peers average their anchors chunk by chunk, and each chunk takes effect exactly once.

A chunk is a dialogue of numbered turns. The initiator sends the even ones, the responder the odd ones:

    0 RANGES ->    1 <- DATA (ranges, codes)    2 DATA (codes, escalation) ->    [3 <- DATA    4 DATA ->]*    n <- ACK

The responder mixes first, logs, and acknowledges. The initiator mixes when the acknowledgement arrives. It asks
for an answer that does not arrive (ASK). It repeats its own message only if the responder says that this never arrived
(MISS). Each side recognises a duplicate by its turn. So:

* Before the responder has mixed, an abort costs nothing. It answers VOID and never mixes that chunk.
* Afterwards its log answers each ASK with the same ACK, for as long as the initiator may ask.
* Only a crash leaves a chunk in doubt. Such chunks are counted.

Chunks are independent. Up to `window` are open at once, and the exchange may end at any chunk boundary. `initiator` and
`responder` are the two state machines, one exchange each. This module holds what they share. `offers` finds partners.
Vectors are changed by jobs only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Fault, Outcome
from gossipdp.protocol.events import ExchangeEnded, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.block_layout import Named
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Accept, Message, Offer

__all__ = ["MAX_TURNS", "Deadlines", "OpenChunk", "Side", "Tally", "Terms", "keeps_to"]

MAX_TURNS = 12
"""turns of one chunk, at most: ranges, four stages and an acknowledgement need fewer"""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When to ask again, and when to give up. Seconds."""

    ask: float = 1.0
    """shortest wait for an answer before asking again (see `timing`); doubled at each question about the same turn, at
    most to 8 times"""
    silence: float = 15.0
    """without a message of this exchange from the partner, after which the exchange ends"""
    doubt: float = 5.0
    """between questions about chunks in doubt after an exchange was lost"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What both sides agreed on for one exchange, and what both know of the model."""

    partner: bytes
    incarnation: int
    """of the partner, as far as known when the exchange began"""
    initiator: bytes
    """the peer that made the offer"""
    exchange: int
    chunks: int
    """of the model"""
    size: int
    """trainable parameters of the model"""
    first: int = 0
    """the chunk to begin with"""
    coding: jobs.Coding
    mixing: jobs.Mixing
    window: int
    """open chunks, at most"""
    rate: float = math.inf
    """bytes a second, each way; the initiator opens chunks no faster"""


def keeps_to(accept: Accept, offer: Offer, fineness: Mapping[str, int]) -> bool:
    """Whether the answer claims no more than was offered, with the same blocks and a codec at least as fine."""
    answered, offered = Named.of(accept.codec), Named.of(offer.codec)
    return (
        answered[1:] == offered[1:]
        and answered.codec in fineness
        and fineness[answered.codec] >= fineness[offered.codec]
        and accept.weight <= offer.weight
        and accept.pull <= offer.pull
        and accept.window <= offer.window
        and accept.rate <= offer.rate
    )


@dataclass
class Tally:
    """Counts of one exchange, for its event."""

    started: float
    chunks: int = 0
    parameters2: float = 0.0
    mixed2: float = 0.0
    """as `parameters2`, of what clipping left"""
    clipped: int = 0
    beyond: int = 0
    """chunks whose difference was beyond a bound of the closing"""
    unseen: int = 0
    """chunks whose grid was too coarse to show a usual difference"""
    blocks: int = 0
    escalated: int = 0
    escalation_bytes: int = 0
    sent: int = 0
    received: int = 0
    mixing: float = 0.0
    """seconds from the start until the last chunk was mixed, so that the silence of a lost partner does not count"""

    def mixed(self, turn: jobs.Turn, now: float) -> None:
        """Count one mixed chunk."""
        self.chunks += 1
        self.mixing = now - self.started
        self.parameters2 += turn.distance2
        self.mixed2 += turn.share**2 * turn.distance2
        self.clipped += turn.share < 1.0
        self.unseen += not turn.seen
        self.beyond += turn.share == 0.0
        self.blocks += turn.blocks
        self.escalated += turn.escalated
        self.escalation_bytes += turn.escalation_bytes


@dataclass(slots=True)
class OpenChunk:
    """The dialogue about one chunk."""

    turn: int = -1
    """the last turn that this side sent, or -1"""
    message: Message | None = None
    """of that turn"""
    buffers: tuple[Buffer, ...] = ()
    working: bool = True
    """a job of this chunk runs"""
    said_at: float = math.inf
    ask_at: float = math.inf
    asked: int = 0
    doubtful: bool = False
    """whether the partner has mixed it is unknown"""
    mixing: bool = False
    """the job that mixes it here runs, and cannot be cancelled"""
    void: bool = False
    """the partner will never mix it; drop it when its job is done"""


class Side:
    """What both state machines share: sending, counting, and the event at the end. now: seconds."""

    initiator: bool

    def __init__(self, terms: Terms, outputs: Outputs, now: float) -> None:
        self.terms, self._outputs = terms, outputs
        self.tally = Tally(now)
        self.round = 0
        """this peer's round in which the exchange began"""
        self.heard_at = now
        self.ended = False

    def _send(self, message: Message, buffers: tuple[Buffer, ...] = ()) -> None:
        self.tally.sent += self._outputs.send(self.terms.partner, message, buffers)

    def slept(self, seconds: float) -> None:
        """This peer did not run for `seconds`. They do not count as time of the exchange."""
        self.tally.started += seconds

    def owed(self, rate: float) -> float:
        """Seconds that the bytes of this exchange take at `rate` bytes a second."""
        return max(self.tally.sent, self.tally.received) / rate

    def length(self) -> float:
        """Seconds that all chunks would take, judged by the mixed ones. 0 if too few were mixed to judge.

        The first window of chunks says little. It arrives at once, after the time that the start takes.
        """
        enough = min(self.terms.chunks, 2 * self.terms.window)
        return self.tally.mixing * self.terms.chunks / self.tally.chunks if self.tally.chunks >= enough else 0.0

    def distance(self) -> float:
        """RMS of a_i - a_j over all parameters. NaN unless all chunks were mixed, and their grids showed it."""
        return self._rms() if self.tally.chunks == self.terms.chunks else math.nan

    def moved(self) -> float:
        """RMS of what was mixed over all parameters."""
        return math.sqrt(self.tally.mixed2 / max(1, self.terms.size))

    def _rms(self) -> float:
        """RMS difference of the mixed parameters. Exact if all chunks were mixed, else an estimate.

        NaN where a grid was too coarse to show it.
        """
        if self.tally.unseen:
            return math.nan
        return math.sqrt(self.tally.parameters2 / max(1.0, self.terms.size * self.tally.chunks / self.terms.chunks))

    def _end(self, result: Outcome, now: float) -> None:
        self.ended = True
        tally, terms = self.tally, self.terms
        self._outputs.emit(
            ExchangeEnded(
                partner=terms.partner,
                exchange=terms.exchange,
                initiator=self.initiator,
                result=result,
                codec=terms.coding.codec,
                chunks=tally.chunks,
                of=terms.chunks,
                distance=self._rms(),
                clipped=tally.clipped,
                blocks=tally.blocks,
                escalated=tally.escalated,
                escalation_bytes=tally.escalation_bytes,
                sent=tally.sent,
                received=tally.received,
                duration=now - tally.started,
            )
        )

    def _refused(self, fault: Fault) -> None:
        self._outputs.emit(UpdateRefused(self.terms.partner, fault))

    def _key(self, chunk: int) -> jobs.ChunkKey:
        return jobs.ChunkKey(self.terms.initiator, self.terms.exchange, chunk)
