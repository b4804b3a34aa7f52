"""One peer of the laboratory, and one chunk of an exchange between two peers, by the jobs that two daemons would run.

The vectors are those of the daemon's own `Pairwise`. Its training process is a row of the laboratory's replicas, which
takes corrections between two steps. `methods/pairwise.py` decides which peers meet and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from gossipdp.protocol.pairwise.exchange import MAX_TURNS
from gossipdp.protocol.rounds.pacing import ALONE_AFTER
from gossipdp.protocol.schema import chunk_parameters
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Accept, Ack, Data, End, Message, Offer, Ranges
from simulations.lab.methods.shared_buffers import SharedBuffers

__all__ = ["Dialogue", "Replica", "frame_bytes", "greeting_bytes"]

ENCRYPTION: Final = 33
"""bytes that encryption adds to a frame (CurveZMQ, ZeroMQ RFC 26): command, nonce, authenticator, flags"""
SHORT_FRAME: Final = 255
"""longest frame whose length field takes one byte; it takes eight in longer ones (ZMTP, ZeroMQ RFC 23)"""
DIGEST: Final = bytes(16)
"""a digest of which only the length counts"""
WINDOW: Final = 8


def frame_bytes(message: Message, buffers: Sequence[Buffer] = ()) -> int:
    """Bytes of the message on the wire, encrypted and framed. TCP and IP headers, some 3 %, are not included."""
    sizes = [memoryview(frame).nbytes + ENCRYPTION for frame in wire.encode(message, buffers)]
    return sum(size + (2 if size <= SHORT_FRAME else 9) for size in sizes)


def greeting_bytes(codec: str) -> tuple[int, int]:
    """Bytes of the messages that begin and end an exchange, as received by the initiator and by the responder."""
    number = 1 << 32
    offer = Offer(number, DIGEST, DIGEST, codec, 0.5, 0.5, 0, WINDOW)
    accept = Accept(number, codec, 0.5, 0.5, WINDOW, 1)
    return frame_bytes(accept), frame_bytes(offer) + frame_bytes(End(number, True, "settled"))


class Replica:
    """The vectors of one peer, bound to its live parameters.

    Args:
        number: orders the peers. The peer with the lower id computes differences.
        x: the peer's row of the replicas, shape (P,). The replica writes to it.
        algorithm: an algorithm without vectors.
        alone: outer steps since the last exchange.
    """

    def __init__(self, number: int, x: Tensor, algorithm: Pairwise, alone: int = ALONE_AFTER) -> None:
        self.id = number.to_bytes(32, "big")
        self.algorithm = algorithm
        size = len(x)
        self.algorithm.allocate(size, size, chunk_parameters(size))
        self.ledger = self.algorithm.ledger
        self.x: NDArray[np.float32] = x.numpy()
        self.buffers = SharedBuffers(self.ledger, self.x)
        for chunk in range(self.ledger.chunks):
            self.algorithm.run(jobs.Found(chunk))
        self.alone = alone
        """outer steps since the last exchange"""
        self.first = 0
        """first chunk of the next exchange"""
        self.busy = False
        self._away = False

    def with_algorithm(self, algorithm: Pairwise) -> Replica:
        """A copy that shares everything but its algorithm."""
        twin = copy(self)
        twin.algorithm = algorithm
        return twin

    def set_away(self, away: bool) -> None:
        """Say whether the host is missing. Such a replica takes no outer step."""
        self._away = away

    def begin_exchange(self) -> None:
        self.busy = True

    def averaged(self, chunk: int) -> None:
        """Begin the next exchange with the chunk after `chunk`."""
        self.first = (chunk + 1) % self.ledger.chunks

    def end_exchange(self, *, mixed: bool) -> None:
        """Add the corrections of the exchange. `mixed` is False if it averaged no chunk."""
        self.drain()
        self.busy = False
        if mixed:
            self.alone = 0

    def outer(self, wanted: Outer) -> None:
        """The outer step at the end of a round; a plain one after rounds without an exchange (algorithms section 1)."""
        if self._away:
            return
        chunks = range(self.ledger.chunks)
        self.buffers.submit()
        if all(self.algorithm.run(jobs.Check(chunk)).finite for chunk in chunks):
            outer = Outer(1.0, 0.0) if self.alone >= ALONE_AFTER else wanted
            for chunk in chunks:
                self.algorithm.run(jobs.OuterStep(chunk, outer.lr, outer.momentum, self.buffers.applied, wanted.part))
        self.alone += 1
        self.drain()

    def drain(self) -> None:
        """Add all corrections to x."""
        self.buffers.drain()


@dataclass(frozen=True)
class Dialogue:
    """The terms of one exchange, and how it averages a chunk."""

    initiator: Replica
    responder: Replica
    exchange: int
    codec: str
    weight: float
    pull: float

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        """Average `chunk`.

        Returns:
            Bytes that the initiator received, bytes that the responder received, and the initiator's last turn. The
            turn is not `mixed` if either side refused the chunk.
        """
        one, other = self.initiator.algorithm, self.responder.algorithm
        key = jobs.ChunkKey(self.initiator.id, self.exchange, chunk)
        lower = self.initiator.id < self.responder.id
        turn = one.run(jobs.Begin(key, self.codec, lower))
        down, up = 0, frame_bytes(Ranges(self.exchange, chunk, 1), turn.buffers)
        turn = other.run(jobs.Answer(key, self.codec, not lower, turn.buffers[0]))
        for number in range(1, MAX_TURNS, 2):
            down += frame_bytes(self._data(chunk, number, turn), turn.buffers)
            turn = one.run(jobs.Decode(key, turn.buffers, first=number == 1))
            if turn.refused:
                break
            up += frame_bytes(self._data(chunk, number + 1, turn), turn.buffers)
            mix = jobs.DecodeAndMix(key, turn.buffers, turn.bound, self.weight, self.pull)
            turn = other.run(mix)
            if turn.refused:
                break
            if turn.mixed:
                down += frame_bytes(Ack(self.exchange, chunk, number + 2, turn.share), turn.buffers)
                share, buffers = turn.share, turn.buffers
                turn = one.run(jobs.Mix(key, buffers, share, self.weight, self.pull))
                if not turn.mixed:
                    raise RuntimeError(
                        f"the responder has mixed chunk {chunk}, the initiator refused it: {turn.refused}"
                    )
                return down, up, turn
        for side in (one, other):
            side.run(jobs.Drop((key,)))
        return down, up, turn

    def _data(self, chunk: int, number: int, turn: jobs.Turn) -> Data:
        return Data(self.exchange, chunk, number, turn.bound)
