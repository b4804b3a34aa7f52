"""One peer of the laboratory, and one chunk of an exchange between two: the jobs that two daemons would ask for.

The vectors are those of the daemon's own `Pairwise`; its training process is a row of the laboratory's replicas, which
takes corrections between two steps. Who meets whom, and when, is `lab_methods`' business; no clock stands here.
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

__all__ = ["Dialogue", "Replica", "frame_bytes", "greeting_bytes"]

ENCRYPTION: Final = 33
"""bytes that encryption adds to a frame (CurveZMQ, ZeroMQ RFC 26): command, nonce, authenticator, flags"""
SHORT_FRAME: Final = 255
"""bytes of a frame whose length takes one byte; of others it takes eight (ZMTP, ZeroMQ RFC 23)"""
DIGEST: Final = bytes(16)
"""a digest: its length is all that counts here"""
WINDOW: Final = 8


def frame_bytes(message: Message, buffers: Sequence[Buffer] = ()) -> int:
    """What the message takes on the wire, encrypted and framed; without the headers of TCP and IP, some 3 %."""
    sizes = [memoryview(frame).nbytes + ENCRYPTION for frame in wire.encode(message, buffers)]
    return sum(size + (2 if size <= SHORT_FRAME else 9) for size in sizes)


def greeting_bytes(codec: str) -> tuple[int, int]:
    """What beginning and ending an exchange costs: received by its initiator, and by its responder."""
    number = 1 << 32
    offer = Offer(number, DIGEST, DIGEST, codec, 0.5, 0.5, 0, WINDOW)
    accept = Accept(number, codec, 0.5, 0.5, WINDOW, 1)
    return frame_bytes(accept), frame_bytes(offer) + frame_bytes(End(number, True, "settled"))


class Replica:
    """The vectors of one peer, bound to its live parameters.

    Args:
        number: orders the peers; the lower of two ids computes differences.
        x: its row of the laboratory's replicas, which is written to.
        algorithm: has no vectors yet.
        alone: outer steps since the last exchange.
    """

    def __init__(self, number: int, x: Tensor, algorithm: Pairwise, alone: int = ALONE_AFTER) -> None:
        self.id = number.to_bytes(32, "big")
        self.algorithm = algorithm
        size = len(x)
        self.algorithm.allocate(size, size, chunk_parameters(size))
        self.ledger = self.algorithm.ledger
        self.x: NDArray[np.float32] = x.numpy()
        self.slots: NDArray[np.float32] = np.zeros((2, size), np.float32)
        self.ledger.bind(self.x, (self.slots[0], self.slots[1]))
        for chunk in range(self.ledger.chunks):
            self.algorithm.run(jobs.Found(chunk))
        self._applied = 0
        self.alone = alone
        """outer steps since the last exchange"""
        self.first = 0
        """chunk to begin the next exchange with"""
        self.busy = False

    def with_algorithm(self, algorithm: Pairwise) -> Replica:
        """A copy that shares everything but its algorithm."""
        twin = copy(self)
        twin.algorithm = algorithm
        return twin

    def begin_exchange(self) -> None:
        self.busy = True

    def averaged(self, chunk: int) -> None:
        """The next exchange begins with the chunk after `chunk`."""
        self.first = (chunk + 1) % self.ledger.chunks

    def end_exchange(self, *, mixed: bool) -> None:
        """Take in what the exchange added; `mixed` is False if it averaged nothing."""
        self.drain()
        self.busy = False
        if mixed:
            self.alone = 0

    def outer(self, wanted: Outer) -> None:
        """The step at the end of a round; as if alone where exchanges have not come about (algorithms section 1)."""
        chunks = range(self.ledger.chunks)
        if all(self.algorithm.run(jobs.Check(chunk)).finite for chunk in chunks):
            outer = Outer(1.0, 0.0) if self.alone >= ALONE_AFTER else wanted
            for chunk in chunks:
                self.algorithm.run(jobs.OuterStep(chunk, outer.lr, outer.momentum, self._applied, wanted.part))
        self.alone += 1
        self.drain()

    def drain(self) -> None:
        """All corrections so far become part of x."""
        sealed = self.algorithm.run(jobs.Seal())
        if sealed.chunks:
            for chunk in sealed.chunks:
                span = self.ledger.span(chunk)
                self.x[span] += self.slots[sealed.slot % 2][span]
            self._applied = sealed.slot
            self.algorithm.run(jobs.Release(sealed.slot))


@dataclass(frozen=True)
class Dialogue:
    """Terms of one exchange, and how a chunk of it is averaged."""

    initiator: Replica
    responder: Replica
    exchange: int
    codec: str
    weight: float
    pull: float

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        """Average `chunk`.

        Returns:
            Bytes that the initiator received, those that the responder did, and the initiator's last turn, which is
            not `mixed` if either side has refused.
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
