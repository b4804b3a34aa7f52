"""One pairwise exchange: two peers average their anchors chunk by chunk, and each chunk exactly once in effect.

A chunk is a dialogue of numbered turns, even ones the initiator's, odd ones the responder's:

    0 RANGES ->    1 <- DATA (ranges, codes)    2 DATA (codes, escalation) ->    [3 <- DATA    4 DATA ->]*    n <- ACK

The responder mixes first, logs, and acknowledges; the initiator mixes when the acknowledgement comes. What is lost is
asked for again by the initiator (ASK), which sends it anew only if the responder says it never came (MISS). A
duplicate is recognised by its turn. So:

* before the responder has mixed, an abort costs nothing: it answers VOID and never mixes that chunk again;
* after, its log answers ASK with the same ACK for as long as the initiator may ask;
* only a crash leaves a chunk in doubt, and that is counted.

Chunks are independent: up to `window` are open at once, and the exchange may end at any chunk boundary. `initiator` and
`responder` are the two machines, one exchange each; here stands what they share. Who meets whom is `partners`'
business. No vector is touched: jobs are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ExchangeEnded, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Accept, Message, Offer

__all__ = ["MAX_TURNS", "Deadlines", "OpenChunk", "Side", "Tally", "Terms", "keeps_to"]

MAX_TURNS = 12
"""of one chunk: ranges, four stages and an acknowledgement, with room"""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When to ask again, and when to give up. Seconds."""

    ask: float = 1.0
    """without an answer, ask again, at the least (see `timing`); doubled at each asking of the same turn, to 8 times"""
    silence: float = 15.0
    """without any sign from the partner in this exchange, end it"""
    doubt: float = 5.0
    """between questions about chunks in doubt after an exchange was lost"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What both sides agreed on for one exchange."""

    partner: bytes
    incarnation: int
    """the partner's, as far as known when the exchange began"""
    exchange: int
    codec: str
    weight: float
    pull: float
    window: int
    lower: bool
    rate: float = math.inf
    """bytes a second, each way; the initiator opens chunks no faster"""


def keeps_to(accept: Accept, offer: Offer, fineness: Mapping[str, int]) -> bool:
    """Does the answer claim no more than was offered, and a codec at least as fine?"""
    return (
        accept.codec in fineness
        and fineness[accept.codec] >= fineness[offer.codec]
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
    clipped: int = 0
    blocks: int = 0
    escalated: int = 0
    escalation_bytes: int = 0
    sent: int = 0
    received: int = 0
    mixing: float = 0.0
    """seconds from the start until the last chunk was mixed: without the silence of a partner that is gone"""

    def mixed(self, turn: jobs.Turn, now: float) -> None:
        self.chunks += 1
        self.mixing = now - self.started
        self.parameters2 += turn.distance2
        self.clipped += turn.share < 1.0
        self.blocks += turn.blocks
        self.escalated += turn.escalated
        self.escalation_bytes += turn.escalation_bytes


@dataclass(slots=True)
class OpenChunk:
    """One open dialogue. `turn` is the last one sent from here, or -1; `working` while a job of it runs."""

    turn: int = -1
    message: Message | None = None
    buffers: tuple[Buffer, ...] = ()
    working: bool = True
    said_at: float = math.inf
    ask_at: float = math.inf
    asked: int = 0
    doubtful: bool = False
    """the partner may have mixed it, or may not"""
    mixing: bool = False
    """the job that mixes it here is on its way and cannot be called back"""
    void: bool = False
    """the partner will never mix it: drop it when its job is done"""


class Side:
    """What both machines share: sending, tallying, and the event at the end."""

    initiator: bool

    def __init__(self, terms: Terms, outputs: Outputs, of: int, size: int, now: float) -> None:
        self.terms, self._outputs, self._of, self._size = terms, outputs, of, size
        self.tally = Tally(now)
        self.round = 0
        """of this peer, when the exchange began"""
        self.heard_at = now
        self.ended = False

    def _send(self, message: Message, buffers: tuple[Buffer, ...] = ()) -> None:
        self.tally.sent += self._outputs.send(self.terms.partner, message, buffers)

    def slept(self, seconds: float) -> None:
        """This peer did not run for `seconds`: they are no part of the exchange."""
        self.tally.started += seconds

    def owed(self, rate: float) -> float:
        """Seconds that its bytes take at so many a second."""
        return max(self.tally.sent, self.tally.received) / rate

    def length(self) -> float:
        """Seconds that all chunks take, by those that were mixed; 0 if these are too few to tell it: the first window
        of them comes all at once, after what it takes to begin."""
        enough = min(self._of, 2 * self.terms.window)
        return self.tally.mixing * self._of / self.tally.chunks if self.tally.chunks >= enough else 0.0

    def distance(self) -> float:
        """RMS of a_i - a_j over all parameters; NaN if not all of them were mixed."""
        return self._rms() if self.tally.chunks == self._of else math.nan

    def _rms(self) -> float:
        """Of the parameters that were mixed: exact for all of them, near for some."""
        return math.sqrt(self.tally.parameters2 / max(1.0, self._size * self.tally.chunks / self._of))

    def _end(self, result: str, now: float) -> None:
        self.ended = True
        tally = self.tally
        self._outputs.emit(
            ExchangeEnded(
                self.terms.partner,
                self.terms.exchange,
                self.initiator,
                result,
                self.terms.codec,
                tally.chunks,
                self._of,
                self._rms(),
                tally.clipped,
                tally.blocks,
                tally.escalated,
                tally.escalation_bytes,
                tally.sent,
                tally.received,
                now - tally.started,
            )
        )

    def _refused(self, reason: str) -> None:
        self._outputs.emit(UpdateRefused(self.terms.partner, reason))
