"""Blocks of the flat vector's parameters that one rank holds whole, and the bytes that hold them encoded.

A block has 256 parameters. Tensors, and the rows that a rank holds of them, may begin and end within a block. Nothing
here touches a tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import Places, places, shared
from gossipdp.protocol.schema import MOST, Schema, chunk_parameters

__all__ = ["Part", "Spans", "encoded_elements", "joined", "overlaps", "parts", "torn", "whole"]

Spans: TypeAlias = Sequence[tuple[int, int]]
"""parameters [start, stop) each, in ascending order"""


class Part(NamedTuple):
    """Parameters [start, stop) of one chunk, and the bytes of a shared buffer that hold them encoded."""

    start: int
    stop: int
    places: Places


def joined(schema: Schema, shares: Iterable[tuple[int, int]]) -> Spans:
    """The parameters that one rank writes, in spans as long as possible. The padding belongs to what it follows.

    Args:
        shares: elements [start, stop) of the flat vector, in ascending order.
    """
    spans: list[tuple[int, int]] = []
    for start, stop in shares:
        if start >= schema.padding.start:
            break
        stop = schema.trainable if stop == schema.padding.start else stop
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    return spans


def whole(schema: Schema, spans: Spans) -> Spans:
    """The whole blocks in each of `spans`. The last block of the parameters may be shorter."""
    cut = [(_up(start), stop if stop == schema.trainable else stop // BLOCK * BLOCK) for start, stop in spans]
    return [(start, stop) for start, stop in cut if start < stop]


def torn(schema: Schema, spans: Spans) -> list[int]:
    """The first parameter of each block that lies in `spans` only in part."""
    starts = {start // BLOCK * BLOCK for start, _ in spans if start % BLOCK}
    return sorted(starts | {stop // BLOCK * BLOCK for _, stop in spans if stop % BLOCK and stop != schema.trainable})


def overlaps(spans: Spans, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """What of [start, stop) lies in `spans`."""
    for place in range(max(0, bisect_right(spans, start, key=lambda span: span[0]) - 1), len(spans)):
        first, last = spans[place]
        if first >= stop:
            return
        if last > start:
            yield max(first, start), min(last, stop)


def parts(schema: Schema, start: int, stop: int, most: int = MOST) -> Iterator[Part]:
    """[start, stop), whole blocks, in parts of at most `most` parameters and of one chunk each."""
    width = chunk_parameters(schema.size)
    for chunk in range(start // width, -(-stop // width)):
        begin, size = chunk * width, min(width, schema.trainable - chunk * width)
        first, last = max(start - begin, 0), min(stop - begin, size)
        for lower in range(first, last, most):
            upper, at = min(lower + most, last), shared(chunk, width, size).start
            yield Part(begin + lower, begin + upper, places(size, lower, upper, at))


def encoded_elements(schema: Schema, shares: Spans) -> list[tuple[int, int]]:
    """The elements of a shared buffer where one rank's moments stand encoded. shares: as of `joined`."""
    return [
        (place.start // 4, -(-place.stop // 4))
        for start, stop in whole(schema, joined(schema, shares))
        for part in parts(schema, start, stop)
        for place in part.places
    ]


def _up(start: int) -> int:
    return -(-start // BLOCK) * BLOCK
