"""The initiator of an exchange: it made the offer, opens chunks, keeps the timers, and settles (see `exchange`).

`offers` decides which offers are made and which answers are accepted. Only the initiator asks again for what was lost.
This module uses no vector, socket or clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Ending, Outcome
from gossipdp.protocol.events import ChunksInDoubt
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.exchange import MAX_TURNS, Deadlines, OpenChunk, Side, Terms
from gossipdp.protocol.pairwise.timing import Timing
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Ack, Ask, Data, End, Message, Miss, Ranges, Void

__all__ = ["Initiator"]

MAX_ASKED = 8
"""questions about one turn, at most; then a partner counts as silent even if it sends other messages"""
SLOW = 4.0
"""multiple of the usual time of its chunks after which an exchange ends at the next chunk boundary"""


class Initiator(Side):
    """The initiator's state machine.

    `ended` is True once it opens no more chunks and only chunks in doubt are open. The peer is then free for another
    exchange, and keeps this one until it is `settled`.

    Args:
        now: seconds.
        timing: answer times of all of this peer's exchanges.
        until: when to open no more chunks, seconds.
    """

    initiator = True

    def __init__(
        self,
        terms: Terms,
        outputs: Outputs,
        deadlines: Deadlines,
        *,
        now: float,
        timing: Timing,
        until: float = math.inf,
    ) -> None:
        super().__init__(terms, outputs, now)
        self._deadlines, self._until, self._timing = deadlines, until, timing
        self._next: Iterator[int] = iter([(terms.first + i) % terms.chunks for i in range(terms.chunks)])
        self.next_first = terms.first
        """the chunk that the next exchange begins with: the first that this one left out, or its own first chunk"""
        self._open: dict[int, OpenChunk] = {}
        self._result = Outcome.DONE
        self._exhausted = False
        self._goodbye = False
        self.open_chunks(now)

    @property
    def settled(self) -> bool:
        """The exchange has ended, and no chunk is open or in doubt."""
        return self.ended and not self._open

    @property
    def in_doubt(self) -> int:
        """Chunks that the partner may or may not have mixed."""
        return sum(chunk.doubtful for chunk in self._open.values())

    def open_chunks(self, now: float) -> None:
        """Open as many chunks as the window and the rate allow, and none after `until`."""
        if now >= self._until:
            self.finish_early(now)
        while self._has_room() and now >= self._affordable_at():
            number = next(self._next, None)
            if number is None:
                self._exhausted = True
                break
            self.next_first = (number + 1) % self.terms.chunks
            self._open[number] = OpenChunk()
            self._outputs.ask(jobs.Begin(key=self._key(number), coding=self.terms.coding))
        self._end_if_done(now)

    def _has_room(self) -> bool:
        return not self._exhausted and len(self._open) < self.terms.window

    def _affordable_at(self) -> float:
        """When the agreed rate allows more than was sent so far."""
        return self.tally.started + self.tally.sent / self.terms.rate

    def finish_early(self, now: float, result: Outcome = Outcome.CUT) -> None:
        """End at the next chunk boundary: finish the open chunks and open no more."""
        if not self._exhausted:
            self._exhausted, self._result = True, result
            self._end_if_done(now)

    def _slow_at(self) -> float:
        """When the mixed chunks and the open ones have taken too long.

        Open chunks share the link, so the first of them takes about as long as all. A wait shorter than `Deadlines.ask`
        does not count, and neither does time that the agreed rate demands.
        """
        chunks = self.tally.chunks + max(1, len(self._open))
        expected = max(self._timing.pace * chunks, self.tally.sent / self.terms.rate)
        return self.tally.started + self._deadlines.ask + SLOW * expected

    def receive(self, message: Message, buffers: list[Buffer], size: int, now: float) -> None:
        """A message of this exchange from the partner. size: bytes of all its frames."""
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
                self._make_void(number, now)
            case End(_, _, reason):
                self._ended_by_partner(reason, now)

    def _take_turn(self, number: int, turn: int, buffers: tuple[Buffer, ...], share: float | None, now: float) -> None:
        chunk = self._open.get(number)
        if chunk is None or chunk.working or turn != chunk.turn + 1:
            return
        if share is not None and turn == 1:
            return  # The partner has no codes yet, so it cannot have mixed.
        if not self.ended:
            self._timing.answered(now - chunk.said_at, chunk.asked)
        key, mixing = self._key(number), self.terms.mixing
        if share is None:
            self._outputs.ask(jobs.Decode(key=key, buffers=buffers, first=turn == 1))
        else:
            self._outputs.ask(jobs.Mix(key=key, buffers=buffers, share=share, mixing=mixing))
        # Either answer ends the doubt. A Data says not mixed yet, an Ack says mixed.
        chunk.working, chunk.ask_at, chunk.doubtful, chunk.mixing = True, math.inf, False, share is not None

    def job_done(self, job: jobs.Job[object], turn: jobs.Turn, now: float) -> None:
        """The result of a Begin, Decode or Mix of this exchange."""
        assert isinstance(job, (jobs.Begin, jobs.Decode, jobs.Mix))
        number = job.key.chunk
        chunk = self._open.get(number)
        if chunk is None:
            return
        if all(other.working for other in self._open.values()):
            # Until now this side waited for no answer. The partner's silence begins here.
            self.heard_at = now
        chunk.working = chunk.mixing = False
        if turn.refused:
            self._refused(turn.refused)
            self._forget(number, now)
        elif isinstance(job, jobs.Mix):
            self.tally.mixed(turn, now)
            del self._open[number]
            self.open_chunks(now)
        elif chunk.void:
            self._forget(number, now)
        elif isinstance(job, jobs.Begin):
            self._say(chunk, 0, Ranges(self.terms.exchange, number, self.terms.incarnation), turn.buffers, now)
        elif chunk.turn + 2 > MAX_TURNS or not turn.buffers:
            self._forget(number, now)
        else:
            # From here on the responder may have mixed. The chunk is in doubt until it answers.
            chunk.doubtful = True
            number_of_turn = chunk.turn + 2
            message = Data(self.terms.exchange, number, number_of_turn, turn.bound)
            self._say(chunk, number_of_turn, message, turn.buffers, now)

    def _say(self, chunk: OpenChunk, turn: int, message: Message, buffers: tuple[Buffer, ...], now: float) -> None:
        chunk.turn, chunk.message, chunk.buffers, chunk.said_at, chunk.asked = turn, message, buffers, now, 0
        self._send(message, buffers)
        self._wait(chunk, now)

    def _wait(self, chunk: OpenChunk, now: float) -> None:
        pause = self._deadlines.doubt if self.ended else self._timing.patience
        chunk.ask_at = now + pause * min(8, 2**chunk.asked)

    def timer(self) -> float | None:
        """When `handle_timer` is to be called next, or None."""
        times = [chunk.ask_at for chunk in self._open.values()]
        if not self.ended and any(not chunk.working for chunk in self._open.values()):
            times.append(self.heard_at + self._deadlines.silence)
        if self._has_room():
            times.append(self._affordable_at())
        if not self._exhausted:
            times.append(self._slow_at())
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Ask again for late answers, give up a silent partner, and open chunks that the rate now allows."""
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
        if now >= self._slow_at():
            self.finish_early(now, Outcome.SLOW)
        self.open_chunks(now)

    def lose(self, now: float) -> None:
        """The partner is silent or gone. Keep only the chunks in doubt, and ask about them later."""
        self._exhausted, self._result = True, Outcome.LOST
        certain = [number for number, chunk in self._open.items() if not (chunk.doubtful or chunk.mixing)]
        self._drop(certain)
        self._end_if_done(now)
        if not self.ended:
            self._send(End(self.terms.exchange, True, Ending.LOST))
            self._end(Outcome.LOST, now)
        for chunk in self._open.values():
            if not chunk.working:
                # Unanswered questions tell how long the partner was away, not how long it will be.
                chunk.asked = 0
                self._wait(chunk, now)

    def give_up(self, now: float) -> None:
        """The partner's incarnation is over. Its chunks in doubt stay in doubt, and are counted."""
        if not self.ended:
            self.lose(now)
        doubts = self.in_doubt
        self._drop([number for number, chunk in self._open.items() if not chunk.mixing])
        if doubts:
            self._outputs.emit(ChunksInDoubt(self.terms.partner, doubts))

    def _ended_by_partner(self, reason: Ending | str, now: float) -> None:
        if reason == Ending.UNKNOWN:
            self.give_up(now)
        elif not self.ended:
            self.finish_early(now)

    def _make_void(self, number: int, now: float) -> None:
        """The partner has not mixed this chunk and never will.

        Send nothing more about it, because another message would put it in doubt again.
        """
        chunk = self._open.get(number)
        if chunk is not None and chunk.working:
            chunk.void = not chunk.mixing
        self._forget(number, now)

    def _forget(self, number: int, now: float) -> None:
        chunk = self._open.get(number)
        if chunk is not None and not chunk.working:
            self._drop([number])
            self.open_chunks(now)

    def _drop(self, numbers: list[int]) -> None:
        if numbers:
            self._outputs.ask(jobs.Drop(tuple(self._key(number) for number in numbers)))
            for number in numbers:
                del self._open[number]

    def _end_if_done(self, now: float) -> None:
        if self._exhausted and not self._open and not self._goodbye:
            self._send(End(self.terms.exchange, True, Ending.SETTLED))
            self._goodbye = True
            if not self.ended:
                self._end(self._result, now)
