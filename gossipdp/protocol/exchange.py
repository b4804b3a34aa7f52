"""One pairwise exchange: two peers average their anchors chunk by chunk, and each chunk exactly once in effect.

A chunk is a dialogue of numbered turns, even ones the initiator's, odd ones the responder's:

    0 RANGES ->    1 <- DATA (ranges, codes)    2 DATA (codes, escalation) ->    [3 <- DATA    4 DATA ->]*    n <- ACK

The responder mixes first, logs, and acknowledges; the initiator mixes when the acknowledgement comes. What is lost is
asked for again by the initiator (ASK), which sends it anew only if the responder says it never came (MISS). A
duplicate is recognised by its turn. So:

* before the responder has mixed, an abort costs nothing: it answers VOID and never mixes that chunk again;
* after, its log answers ASK with the same ACK for as long as the initiator may ask;
* only a crash leaves a chunk in doubt, and that is counted.

Chunks are independent: up to `window` are open at once, and the exchange may end at any chunk boundary. The two
machines here know one exchange each; who meets whom is `partners`' business. No vector is touched: jobs are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded, UpdateRefused
from gossipdp.protocol.messages import MAX_BUFFER, Accept, Ack, Ask, Data, End, Message, Miss, Offer, Ranges, Void
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire import Buffer

__all__ = ["Deadlines", "Initiator", "Responder", "Terms"]

MAX_TURNS = 12
MAX_ASKED = 8
"""askings of one turn, after which a partner that goes on answering beside the point is as good as silent"""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When to ask again, and when to give up. Seconds."""

    ask: float = 1.0
    """without an answer, ask again; doubled at each asking of the same turn, to 8 times"""
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
    unmet: bool
    lower: bool
    rate: float = math.inf
    """bytes a second, each way; the initiator opens chunks no faster"""


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

    def mixed(self, turn: jobs.Turn) -> None:
        self.chunks += 1
        self.parameters2 += turn.distance2
        self.clipped += turn.share < 1.0
        self.blocks += turn.blocks
        self.escalated += turn.escalated
        self.escalation_bytes += turn.escalation_bytes


@dataclass(slots=True)
class _Chunk:
    """One open dialogue. `turn` is the last one sent from here, or -1; `working` while a job of it runs."""

    turn: int = -1
    message: Message | None = None
    buffers: tuple[Buffer, ...] = ()
    working: bool = True
    ask_at: float = math.inf
    asked: int = 0
    doubtful: bool = False
    """the partner may have mixed it, or may not"""
    mixing: bool = False
    """the job that mixes it here is on its way and cannot be called back"""


class _Side:
    """What both machines share: sending, tallying, and the event at the end."""

    initiator: bool

    def __init__(self, terms: Terms, outputs: Outputs, of: int, chunk_parameters: int, now: float) -> None:
        self.terms, self._outputs, self._of, self._chunk_parameters = terms, outputs, of, chunk_parameters
        self.tally = Tally(now)
        self.round = 0
        """of this peer, when the exchange began"""
        self.heard_at = now
        self.ended = False

    def _send(self, message: Message, buffers: tuple[Buffer, ...] = ()) -> None:
        self.tally.sent += self._outputs.send(self.terms.partner, message, buffers)

    def _end(self, result: str, now: float) -> None:
        self.ended = True
        tally = self.tally
        parameters = max(1, tally.chunks * self._chunk_parameters)
        self._outputs.emit(
            ExchangeEnded(
                self.terms.partner,
                self.terms.exchange,
                self.initiator,
                result,
                self.terms.codec,
                tally.chunks,
                self._of,
                math.sqrt(tally.parameters2 / parameters),
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


class Initiator(_Side):
    """The side that made the offer: it opens chunks, keeps the timers, and settles.

    `ended` is True once no more chunks will be opened and none is open but those in doubt; then the peer is free
    for another exchange while this one is kept until `settled`.
    """

    initiator = True

    def __init__(
        self,
        terms: Terms,
        me: bytes,
        outputs: Outputs,
        deadlines: Deadlines,
        *,
        first: int,
        chunks: int,
        chunk_parameters: int,
        now: float,
    ) -> None:
        super().__init__(terms, outputs, chunks, chunk_parameters, now)
        self._me, self._deadlines = me, deadlines
        self._next: Iterator[int] = iter([(first + i) % chunks for i in range(chunks)])
        self.next_first = first
        self._open: dict[int, _Chunk] = {}
        self._result = "done"
        self._exhausted = False
        self._goodbye = False
        self.open_chunks(now)

    @property
    def settled(self) -> bool:
        return self.ended and not self._open

    @property
    def in_doubt(self) -> int:
        return sum(chunk.doubtful for chunk in self._open.values())

    def open_chunks(self, now: float) -> None:
        """Open as many chunks as the window and the rate allow."""
        while self._has_room() and now >= self._affordable_at():
            number = next(self._next, None)
            if number is None:
                self._exhausted = True
                break
            self.next_first = (number + 1) % self._of
            self._open[number] = _Chunk()
            self._outputs.ask(jobs.Begin(self._key(number), self.terms.codec, self.terms.lower))
        self._end_if_done(now)

    def _has_room(self) -> bool:
        return not self._exhausted and len(self._open) < self.terms.window

    def _affordable_at(self) -> float:
        """When what was sent so far has been paid for at the agreed rate."""
        return self.tally.started + self.tally.sent / self.terms.rate

    def finish_early(self, now: float) -> None:
        """End at the next chunk boundary: what is open is finished, nothing more is opened."""
        if not self._exhausted:
            self._exhausted, self._result = True, "cut"
            self._end_if_done(now)

    def receive(self, message: Message, buffers: list[Buffer], size: int, now: float) -> None:
        self.heard_at = now
        self.tally.received += size
        match message:
            case Data(_, number, turn, _):
                self._take_turn(number, turn, tuple(buffers), None, now)
            case Ack(_, number, turn, share):
                self._take_turn(number, turn, tuple(buffers), share, now)
            case Miss(_, number, turn):
                chunk = self._open.get(number)
                if chunk is not None and not chunk.working and chunk.turn == turn and chunk.message is not None:
                    self._send(chunk.message, chunk.buffers)
                    self._wait(chunk, now)
            case Void(_, number):
                self._forget(number, now)
            case End(_, _, reason):
                self._ended_by_partner(reason, now)

    def _take_turn(self, number: int, turn: int, buffers: tuple[Buffer, ...], share: float | None, now: float) -> None:
        chunk = self._open.get(number)
        if chunk is None or chunk.working or turn != chunk.turn + 1:
            return
        if share is not None and turn == 1:
            return  # nothing has been told that could have been mixed
        # Either answer ends the doubt: a Data says not mixed yet, an Ack says mixed.
        chunk.working, chunk.ask_at, chunk.doubtful, chunk.mixing = True, math.inf, False, share is not None
        key, terms = self._key(number), self.terms
        if share is None:
            self._outputs.ask(jobs.Decode(key, buffers, first=turn == 1))
        else:
            self._outputs.ask(jobs.Mix(key, buffers, share, terms.weight, terms.pull, terms.unmet))

    def job_done(self, job: jobs.Job, turn: jobs.Turn, now: float) -> None:
        """The result of a Begin, Decode or Mix of this exchange."""
        assert isinstance(job, jobs.Begin | jobs.Decode | jobs.Mix)
        number = job.key.chunk
        chunk = self._open.get(number)
        if chunk is None:
            return
        if all(other.working for other in self._open.values()):
            # Nothing was waited for until now: the partner's silence begins here.
            self.heard_at = now
        chunk.working = chunk.mixing = False
        if turn.refused:
            self._refused(turn.refused)
            self._forget(number, now)
        elif isinstance(job, jobs.Mix):
            self.tally.mixed(turn)
            del self._open[number]
            self.open_chunks(now)
        elif isinstance(job, jobs.Begin):
            self._say(chunk, 0, Ranges(self.terms.exchange, number), turn.buffers, now)
        elif chunk.turn + 2 > MAX_TURNS or not turn.buffers:
            self._forget(number, now)
        else:
            # From here on the responder may have mixed: the chunk is in doubt until it says.
            chunk.doubtful = True
            number_of_turn = chunk.turn + 2
            message = Data(self.terms.exchange, number, number_of_turn, turn.bound)
            self._say(chunk, number_of_turn, message, turn.buffers, now)

    def _say(self, chunk: _Chunk, turn: int, message: Message, buffers: tuple[Buffer, ...], now: float) -> None:
        chunk.turn, chunk.message, chunk.buffers, chunk.asked = turn, message, buffers, 0
        self._send(message, buffers)
        self._wait(chunk, now)

    def _wait(self, chunk: _Chunk, now: float) -> None:
        pause = self._deadlines.doubt if self.ended else self._deadlines.ask
        chunk.ask_at = now + pause * min(8, 2**chunk.asked)

    def timer(self) -> float | None:
        times = [chunk.ask_at for chunk in self._open.values()]
        if not self.ended and any(not chunk.working for chunk in self._open.values()):
            times.append(self.heard_at + self._deadlines.silence)
        if self._has_room():
            times.append(self._affordable_at())
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        waiting = any(not chunk.working for chunk in self._open.values())
        silent = waiting and now >= self.heard_at + self._deadlines.silence
        stuck = any(chunk.asked >= MAX_ASKED and chunk.ask_at <= now for chunk in self._open.values())
        if not self.ended and (silent or stuck):
            self.lose(now)
        for number, chunk in self._open.items():
            if chunk.ask_at <= now:
                chunk.asked += 1
                self._send(Ask(self.terms.exchange, number, chunk.turn))
                self._wait(chunk, now)
        self.open_chunks(now)

    def lose(self, now: float) -> None:
        """The partner is silent or gone: keep only the chunks in doubt, to be asked about later."""
        self._exhausted, self._result = True, "lost"
        certain = [number for number, chunk in self._open.items() if not (chunk.doubtful or chunk.mixing)]
        self._drop(certain)
        self._end_if_done(now)
        if not self.ended:
            self._send(End(self.terms.exchange, True, "lost"))
            self._end("lost", now)
        for chunk in self._open.values():
            if not chunk.working:
                self._wait(chunk, now)

    def give_up(self, now: float) -> None:
        """The partner's incarnation is over: what is in doubt stays so, and is counted."""
        if not self.ended:
            self.lose(now)
        doubts = self.in_doubt
        self._drop([number for number, chunk in self._open.items() if not chunk.mixing])
        if doubts:
            self._outputs.emit(ChunksInDoubt(self.terms.partner, doubts))

    def _ended_by_partner(self, reason: str, now: float) -> None:
        if reason == "unknown":
            self.give_up(now)
        elif not self.ended:
            self.finish_early(now)

    def _forget(self, number: int, now: float) -> None:
        chunk = self._open.get(number)
        if chunk is not None and not chunk.working:
            self._drop([number])
            self.open_chunks(now)

    def _drop(self, numbers: list[int]) -> None:
        if numbers:
            for number in numbers:
                del self._open[number]
            self._outputs.ask(jobs.Drop(tuple(self._key(number) for number in numbers)))

    def _end_if_done(self, now: float) -> None:
        if self._exhausted and not self._open and not self._goodbye:
            self._goodbye = True
            self._send(End(self.terms.exchange, True, "settled"))
            if not self.ended:
                self._end(self._result, now)

    def _key(self, chunk: int) -> jobs.ChunkKey:
        return jobs.ChunkKey(self._me, self.terms.exchange, chunk)


@dataclass(slots=True)
class _Mixed:
    """What the log keeps of a mixed chunk: the acknowledgement, word for word."""

    turn: int
    message: Ack
    buffers: tuple[Buffer, ...] = field(default=())


class Responder(_Side):
    """The side that accepted: it answers, mixes first, and remembers what it mixed.

    Once `ended`, it opens nothing and mixes nothing more; kept as the log, it goes on answering questions.
    """

    initiator = False

    def __init__(
        self,
        terms: Terms,
        accept: Accept,
        outputs: Outputs,
        deadlines: Deadlines,
        *,
        chunks: int,
        chunk_parameters: int,
        now: float,
    ) -> None:
        super().__init__(terms, outputs, chunks, chunk_parameters, now)
        self._accept, self._deadlines = accept, deadlines
        self._open: dict[int, _Chunk] = {}
        self._mixed: dict[int, _Mixed] = {}
        self._void: set[int] = set()
        self._settled = False
        self._send(accept)

    @property
    def settled(self) -> bool:
        """The initiator will ask for nothing any more, and no job of this exchange is out."""
        return self._settled and self.ended and not self._open

    @property
    def working(self) -> bool:
        """A chunk may be being mixed right now."""
        return any(chunk.working for chunk in self._open.values())

    def offered_again(self, offer: Offer) -> None:
        """The Accept was lost, or the offer doubled."""
        if not self.ended and not self._open and not self._mixed:
            self._send(self._accept)

    def receive(self, message: Message, buffers: list[Buffer], size: int, now: float) -> None:
        self.heard_at = now
        self.tally.received += size
        if isinstance(message, Ranges | Data | Ask) and message.chunk >= self._of:
            return
        match message:
            case Ranges(_, number):
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
            # An initiator has one window open at the most, so the older ones are those it has dropped.
            oldest = next((other for other, chunk in self._open.items() if not chunk.working), None)
            if oldest is None:
                return None
            self._make_void([oldest])
        self._open[number] = _Chunk()
        self._outputs.ask(jobs.Answer(self._key(number), self.terms.codec, self.terms.lower, ranges))

    def _take_turn(self, number: int, turn: int, buffers: tuple[Buffer, ...], bound: float) -> None:
        chunk = self._open.get(number)
        if chunk is None or chunk.working or turn != chunk.turn + 1:
            if chunk is None or turn < chunk.turn:
                self._answer(number, turn)
            return
        chunk.working = True
        terms = self.terms
        self._outputs.ask(jobs.DecodeAndMix(self._key(number), buffers, bound, terms.weight, terms.pull, terms.unmet))

    def _answer(self, number: int, turn: int) -> None:
        """Say again what was said after `turn`, or that it never came, or that it came to nothing."""
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

    def job_done(self, job: jobs.Job, turn: jobs.Turn, now: float) -> None:
        """The result of an Answer or DecodeAndMix of this exchange."""
        assert isinstance(job, jobs.Answer | jobs.DecodeAndMix)
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
            self.tally.mixed(turn)
            acknowledgement = Ack(self.terms.exchange, number, said, turn.share)
            self._mixed[number] = _Mixed(said, acknowledgement, turn.buffers)
            self._send(acknowledgement, turn.buffers)
            if len(self._mixed) == self._of and not self.ended:
                # Nothing can come but questions: do not wait for the End, which may be lost.
                self._end("done", now)
        elif self.ended or said > MAX_TURNS or not turn.buffers:
            self._make_void([number])
            self._send(Void(self.terms.exchange, number))
        else:
            chunk.working, chunk.turn = False, said
            chunk.message = Data(self.terms.exchange, number, said, turn.bound)
            chunk.buffers = turn.buffers
            self._send(chunk.message, turn.buffers)

    def timer(self) -> float | None:
        return None if self.ended else self._silent_at()

    def handle_timer(self, now: float) -> None:
        if not self.ended and now >= self._silent_at():
            self.close("lost", now)

    def _silent_at(self) -> float:
        # At a low rate the initiator may owe nothing for as long as its largest message takes.
        return self.heard_at + self._deadlines.silence + MAX_BUFFER / self.terms.rate

    def close(self, result: str, now: float, reason: str = "") -> None:
        """Mix nothing more; `reason` is told to the partner if given. A chunk being mixed right now still counts."""
        if self.ended:
            return
        idle = [number for number, chunk in self._open.items() if not chunk.working]
        self._make_void(idle)
        if reason:
            self._send(End(self.terms.exchange, False, reason))
            for number in idle:
                self._send(Void(self.terms.exchange, number))
        self._end(result, now)

    def give_up(self, now: float) -> None:
        """The initiator's incarnation is over: acknowledgements it may not have heard are counted, at most a window."""
        self.close("lost", now)
        mixing = sum(chunk.working and chunk.turn > 0 for chunk in self._open.values())
        doubts = min(len(self._mixed) + mixing, self.terms.window)
        if doubts and not self._settled:
            self._outputs.emit(ChunksInDoubt(self.terms.partner, doubts))
        self._settled = True

    def forget(self) -> None:
        """This log is being thrown away: nothing of it may stay open where the vectors are."""
        if self._open:
            self._outputs.ask(jobs.Drop(tuple(self._key(number) for number in self._open)))
            self._open.clear()

    def supersede(self, now: float) -> None:
        """The initiator has offered anew, which it does only when nothing of this exchange is in doubt."""
        self._ended_by_partner("settled", now)

    def _ended_by_partner(self, reason: str, now: float) -> None:
        self._settled = self._settled or reason in ("settled", "unwanted")
        self.close("lost" if reason == "lost" else "done" if self.tally.chunks == self._of else "cut", now)

    def _make_void(self, numbers: list[int]) -> None:
        if numbers:
            for number in numbers:
                self._open.pop(number, None)
                self._void.add(number)
            self._outputs.ask(jobs.Drop(tuple(self._key(number) for number in numbers)))

    def _key(self, chunk: int) -> jobs.ChunkKey:
        return jobs.ChunkKey(self.terms.partner, self.terms.exchange, chunk)
