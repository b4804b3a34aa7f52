"""The responder of an exchange: it accepted the offer, answers, mixes first, and logs what it mixed (see `exchange`).

`offers` decides whether an offer is accepted. The responder's only timer is for the partner's silence, and it never
asks. This module uses no vector, socket or clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Ending, Objection, Outcome
from gossipdp.protocol.events import ChunksInDoubt
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.exchange import MAX_TURNS, Deadlines, OpenChunk, Side, Terms
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_BUFFER, Accept, Ack, Ask, Data, End, Message, Miss, Offer, Ranges, Void

__all__ = ["Responder"]


@dataclass(slots=True)
class _Mixed:
    """The log entry of a mixed chunk: its acknowledgement, byte for byte."""

    turn: int
    message: Ack
    buffers: tuple[Buffer, ...] = field(default=())


class Responder(Side):
    """The responder's state machine.

    Once `ended`, it opens and mixes no more chunks. It is then kept as the log, and answers the initiator's questions.

    Args:
        accept: the answer to the offer; sent at once.
        now: seconds.
    """

    initiator = False

    def __init__(self, terms: Terms, accept: Accept, outputs: Outputs, deadlines: Deadlines, *, now: float) -> None:
        super().__init__(terms, outputs, now)
        self._accept, self._deadlines = accept, deadlines
        self._open: dict[int, OpenChunk] = {}
        self._mixed: dict[int, _Mixed] = {}
        self._void: set[int] = set()
        self._opened = 0
        """chunks that the initiator must have opened, judged by the latest one seen"""
        self._met = False
        """the initiator has answered to this peer's present incarnation"""
        self._settled = False
        self._over = False
        self._counted = 0
        self._give_up_at = math.inf
        self._send(accept)

    @property
    def settled(self) -> bool:
        """The initiator asks nothing more, and no job of this exchange runs."""
        return self._settled and self.ended and not self._open

    @property
    def working(self) -> bool:
        """A job of this exchange runs."""
        return any(chunk.working for chunk in self._open.values())

    @property
    def mixing(self) -> bool:
        """A job runs that may mix a chunk, and cannot be cancelled."""
        return any(chunk.working and chunk.turn > 0 for chunk in self._open.values())

    def offered_again(self, offer: Offer) -> None:
        """The same offer has arrived again: the Accept was lost, or the offer was duplicated."""
        if not self.ended and not self._open and not self._mixed:
            self._send(self._accept)

    def receive(self, message: Message, buffers: list[Buffer], size: int, now: float) -> None:
        """A message of this exchange from the initiator. size: bytes of all its frames."""
        if isinstance(message, Ranges):
            if message.incarnation != self._accept.incarnation:
                return None if self._met else self._disown(now)
            self._met = True
        self.heard_at = now
        self.tally.received += size
        if isinstance(message, (Ranges, Data, Ask)):
            if message.chunk >= self.terms.chunks:
                return
            if not self._over:
                # A question about a chunk shows that the initiator opened it, even if its Ranges never arrived.
                self._opened = max(self._opened, (message.chunk - self.terms.first) % self.terms.chunks + 1)
        match message:
            case Ranges(_, number, _):
                self._open_chunk(number, buffers[0])
            case Data(_, number, turn, bound):
                self._take_turn(number, turn, tuple(buffers), bound)
            case Ask(_, number, turn):
                self._answer(number, turn)
            case End(_, _, reason):
                self._ended_by_partner(reason, now)

    def _open_chunk(self, number: int, ranges: Buffer) -> None:
        if number in self._open or number in self._mixed or number in self._void:
            return self._answer(number, 0)
        if self.ended:
            return self._send(Void(self.terms.exchange, number))
        if len(self._open) >= 2 * self.terms.window:
            # An initiator has at most one window open. It must have dropped the older chunks.
            oldest = next((other for other, chunk in self._open.items() if not chunk.working), None)
            if oldest is None:
                return None
            self._make_void([oldest])
        self._outputs.ask(jobs.Answer(key=self._key(number), coding=self.terms.coding, ranges=ranges))
        self._open[number] = OpenChunk()

    def _take_turn(self, number: int, turn: int, buffers: tuple[Buffer, ...], bound: float) -> None:
        chunk = self._open.get(number)
        if chunk is None or chunk.working or turn != chunk.turn + 1:
            if chunk is None or turn < chunk.turn:
                self._answer(number, turn)
            return
        key, mixing = self._key(number), self.terms.mixing
        self._outputs.ask(jobs.DecodeAndMix(key=key, buffers=buffers, bound=bound, mixing=mixing))
        chunk.working = True

    def _answer(self, number: int, turn: int) -> None:
        """Repeat the answer to `turn`, or say that it never arrived (Miss) or that this peer never mixes it (Void)."""
        if turn and not self._met:
            return self._disown(self.heard_at)
        mixed, chunk = self._mixed.get(number), self._open.get(number)
        if mixed is not None:
            if turn == mixed.turn - 1:
                self._send(mixed.message, mixed.buffers)
        elif chunk is not None:
            if chunk.working:
                return
            if turn == chunk.turn - 1 and chunk.message is not None:
                self._send(chunk.message, chunk.buffers)
            elif turn > chunk.turn:
                self._send(Miss(self.terms.exchange, number, turn))
        elif self.ended or number in self._void:
            self._send(Void(self.terms.exchange, number))
        else:
            self._send(Miss(self.terms.exchange, number, 0) if turn == 0 else Void(self.terms.exchange, number))
            if turn:
                self._void.add(number)

    def _disown(self, now: float) -> None:
        """The message concerns an earlier incarnation of this peer. This one cannot know what that one mixed."""
        self._settled = True
        self.close(Outcome.LOST, now)
        self._send(End(self.terms.exchange, False, Ending.UNKNOWN))

    def job_done(self, job: jobs.Job[object], turn: jobs.Turn, now: float) -> None:
        """The result of an Answer or DecodeAndMix of this exchange."""
        assert isinstance(job, (jobs.Answer, jobs.DecodeAndMix))
        number = job.key.chunk
        chunk = self._open.get(number)
        if chunk is None:
            return
        self.heard_at = now
        said = 1 if isinstance(job, jobs.Answer) else chunk.turn + 2
        if turn.refused:
            self._refused(turn.refused)
            self._make_void([number])
            self._send(Void(self.terms.exchange, number))
        elif turn.mixed:
            del self._open[number]
            self.tally.mixed(turn, now)
            acknowledgement = Ack(self.terms.exchange, number, said, turn.share)
            self._mixed[number] = _Mixed(said, acknowledgement, turn.buffers)
            self._send(acknowledgement, turn.buffers)
            if self._over:
                self._count_doubts()
            if len(self._mixed) == self.terms.chunks and not self.ended:
                # All chunks are mixed. Do not wait for the End, which may be lost.
                self._end(Outcome.DONE, now)
        elif self.ended or said > MAX_TURNS or not turn.buffers:
            self._make_void([number])
            self._send(Void(self.terms.exchange, number))
        else:
            chunk.working, chunk.turn = False, said
            chunk.message = Data(self.terms.exchange, number, said, turn.bound)
            chunk.buffers = turn.buffers
            self._send(chunk.message, turn.buffers)

    def timer(self) -> float | None:
        """When `handle_timer` is to be called next, or None."""
        if self.ended:
            return None if self._settled or math.isinf(self._give_up_at) else self._give_up_at
        return self._silent_at()

    def handle_timer(self, now: float) -> None:
        """End the exchange if the initiator is silent. Give up the log if its time is over."""
        if not self.ended and now >= self._silent_at():
            self.close(Outcome.LOST, now)
        if now >= self._give_up_at and not self._settled:
            self.give_up(now)

    def _silent_at(self) -> float:
        # At a low rate the initiator may rightly be silent for as long as its largest message takes.
        return self.heard_at + self._deadlines.silence + MAX_BUFFER / self.terms.rate

    def close(self, result: Outcome, now: float, reason: Ending | Objection | None = None) -> None:
        """Mix no more chunks. A chunk whose mixing job runs still counts.

        Args:
            result: for the event.
            reason: sent to the partner; None: send nothing.
        """
        if self.ended:
            return
        idle = [number for number, chunk in self._open.items() if not chunk.working]
        self._make_void(idle)
        if reason:
            self._send(End(self.terms.exchange, False, reason))
            for number in idle:
                self._send(Void(self.terms.exchange, number))
        self._end(result, now)

    def part(self, now: float) -> None:
        """The initiator has left the network.

        A peer that leaves has usually settled, but its End may arrive after the news, on another lane. Without an End,
        the acknowledgements that it may have missed are counted soon.
        """
        self.close(Outcome.CUT, now)
        self._give_up_at = min(self._give_up_at, now + self._deadlines.doubt)

    def give_up(self, now: float) -> None:
        """The initiator's incarnation is over. Count the acknowledgements that it may have missed.

        A chunk whose job still runs is counted once it turns out to be mixed.
        """
        self.close(Outcome.LOST, now)
        if not self._settled:
            self._settled = self._over = True
            self._count_doubts()

    def _count_doubts(self) -> None:
        new = self._in_doubt() - self._counted
        if new > 0:
            self._counted += new
            self._outputs.emit(ChunksInDoubt(self.terms.partner, new))

    def _in_doubt(self) -> int:
        """Mixed chunks whose acknowledgement the initiator may have missed: at most one window.

        No more were open when it opened its latest chunk, and that chunk took one place of the window itself.
        """
        latest = (self.terms.first + self._opened - 1) % self.terms.chunks
        return min(len(self._mixed), self.terms.window - (latest not in self._mixed))

    def forget(self) -> None:
        """This log is deleted. Drop its open chunks, so that no job state of theirs remains."""
        if self._open:
            self._outputs.ask(jobs.Drop(tuple(self._key(number) for number in self._open)))
            self._open.clear()

    def supersede(self, now: float) -> None:
        """The initiator has made a new offer. It does so only when nothing of this exchange is in doubt."""
        self._ended_by_partner(Ending.SETTLED, now)

    def _ended_by_partner(self, reason: Ending | str, now: float) -> None:
        self._settled = self._settled or reason in (Ending.SETTLED, Ending.UNWANTED)
        whole = Outcome.DONE if self.tally.chunks == self.terms.chunks else Outcome.CUT
        self.close(Outcome.LOST if reason == Ending.LOST else whole, now)

    def _make_void(self, numbers: list[int]) -> None:
        if numbers:
            self._outputs.ask(jobs.Drop(tuple(self._key(number) for number in numbers)))
            for number in numbers:
                self._open.pop(number, None)
                self._void.add(number)
