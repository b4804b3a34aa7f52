"""Bytes of an exchange on the wire, by the messages and the jobs of two daemons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

import numpy as np

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.config import AUTO_CLIP
from gossipdp.protocol import jobs
from gossipdp.protocol.pairwise.block_layout import Named
from gossipdp.protocol.pairwise.exchange import MAX_TURNS
from gossipdp.protocol.schema import MOST
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Accept, Ack, Data, End, Message, Offer, Ranges

__all__ = ["Holder", "average_chunk", "chunk_bytes", "frame_bytes", "greeting_bytes"]

ENCRYPTION: Final = 33
"""bytes that encryption adds to a frame (CurveZMQ, ZeroMQ RFC 26): command, nonce, authenticator, flags"""
SHORT_FRAME: Final = 255
"""longest frame whose length field takes one byte; it takes eight in longer ones (ZMTP, ZeroMQ RFC 23)"""
DIGEST: Final = bytes(16)
"""a digest of which only the length counts"""
WINDOW: Final = 8
FIRST: Final = 1 << 32
"""number of an exchange, as long as a daemon's"""


def frame_bytes(message: Message, buffers: Sequence[Buffer] = ()) -> int:
    """Bytes of the message on the wire, encrypted and framed. TCP and IP headers, some 3 %, are not included."""
    sizes = [memoryview(frame).nbytes + ENCRYPTION for frame in wire.encode(message, buffers)]
    return sum(size + (2 if size <= SHORT_FRAME else 9) for size in sizes)


def greeting_bytes(codec: str) -> tuple[int, int]:
    """Bytes of the messages that begin and end an exchange, as received by the initiator and by the responder."""
    number, name = 1 << 32, str(Named(codec, within=True, limited=True))
    offer = Offer(number, DIGEST, DIGEST, name, 0.5, 0.5, 0, WINDOW)
    accept = Accept(number, name, 0.5, 0.5, WINDOW, 1)
    return frame_bytes(accept), frame_bytes(offer) + frame_bytes(End(number, True, "settled"))


class Holder(Protocol):
    """A peer with vectors."""

    @property
    def id(self) -> bytes: ...

    @property
    def algorithm(self) -> Pairwise: ...


def average_chunk(
    initiator: Holder, responder: Holder, exchange: int, codec: str, weight: float, pull: float, chunk: int
) -> tuple[int, int, jobs.Turn]:
    """Average one chunk of two peers by the jobs that their daemons would run.

    Returns:
        Bytes that the initiator received, bytes that the responder received, and the initiator's last turn. The turn
        is not `mixed` if either side refused the chunk.
    """
    one, other = initiator.algorithm, responder.algorithm
    key = jobs.ChunkKey(initiator.id, exchange, chunk)
    lower, mixing = initiator.id < responder.id, jobs.Mixing(weight=weight, pull=pull)
    turn = one.run(jobs.Begin(key=key, coding=jobs.Coding(codec=codec, lower=lower)))
    down, up = 0, frame_bytes(Ranges(exchange, chunk, 1), turn.buffers)
    turn = other.run(jobs.Answer(key=key, coding=jobs.Coding(codec=codec, lower=not lower), ranges=turn.buffers[0]))
    for number in range(1, MAX_TURNS, 2):
        down += frame_bytes(Data(exchange, chunk, number, turn.bound), turn.buffers)
        turn = one.run(jobs.Decode(key=key, buffers=turn.buffers, first=number == 1))
        if turn.refused:
            break
        up += frame_bytes(Data(exchange, chunk, number + 1, turn.bound), turn.buffers)
        turn = other.run(jobs.DecodeAndMix(key=key, buffers=turn.buffers, bound=turn.bound, mixing=mixing))
        if turn.refused:
            break
        if turn.mixed:
            down += frame_bytes(Ack(exchange, chunk, number + 2, turn.share), turn.buffers)
            turn = one.run(jobs.Mix(key=key, buffers=turn.buffers, share=turn.share, mixing=mixing))
            if not turn.mixed:
                raise RuntimeError(f"the responder has mixed chunk {chunk}, the initiator refused it: {turn.refused}")
            return down, up, turn
    for side in (one, other):
        side.run(jobs.Drop((key,)))
    return down, up, turn


@dataclass(frozen=True)
class _Peer:
    id: bytes
    algorithm: Pairwise


@cache
def chunk_bytes(parameters: int, codec: str) -> tuple[int, int, jobs.Turn]:
    """What `average_chunk` returns for two equal chunks of `parameters`."""
    peers = []
    for number in (1, 2):
        algorithm = Pairwise(clip=AUTO_CLIP)
        algorithm.allocate(parameters, parameters, MOST)
        algorithm.ledger.bind((np.zeros(parameters, np.float32), np.zeros(parameters, np.float32)))
        algorithm.run(jobs.Found(0))
        peers.append(_Peer(number.to_bytes(32, "big"), algorithm))
    return average_chunk(peers[0], peers[1], FIRST, codec, 0.5, 0.0, 0)
