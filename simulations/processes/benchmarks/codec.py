"""Speed of the modulo codec on one thread, against numpy's `a += b` of the same vectors.

    python -m simulations.processes.benchmarks.codec [--parameters 25000000] [--runs 15] [--codec modulo4]

Times are those of the thread's CPU clock, which stands still while other processes run. Every run also times one
`a += b` right before, and gives a ratio. The figure is the median of the ratios: a changing clock or a busy memory bus
affects both. A chunk takes the daemon's way: open one side and encode; then absorb the partner's frames, sum the norm,
mix. After every run the mixed anchor is compared with the fp32 vectors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs import CODECS, kernels
from gossipdp.codecs.base import Buffer, Vector
from gossipdp.codecs.blocks import BLOCK
from gossipdp.protocol.schema import chunk_parameters, chunk_spans
from peers.memory import keep_memory

SHARE = 0.5
PULL = 0.4
MARK = 2.0
"""largest ratio of each direction"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two anchors a few grid steps apart, and the partner's frames of each chunk."""

    codec: str
    own: Vector
    difference: Vector
    predicted: NDArray[np.float32]
    spans: list[slice]
    partner: list[tuple[Buffer, list[Buffer]]]


def make(codec: str, parameters: int, width: int = 0) -> Case:
    """Both sides of an exchange.

    Args:
        width: parameters a chunk; 0: as in a model of `parameters`.
    """
    rng = np.random.default_rng(7)
    own = rng.standard_normal(parameters, dtype=np.float32) * np.float32(0.05)
    difference = rng.standard_normal(parameters, dtype=np.float32) * np.float32(1e-4)
    predicted = np.full(-(-parameters // BLOCK), 6e-4, np.float32)
    spans = chunk_spans(parameters, parameters, width or chunk_parameters(parameters))
    other, partner = own + difference, []
    for number, span in enumerate(spans):
        theirs = CODECS[codec].chunk(other[span], predicted[_blocks(span)], lower=False, seed=number)
        mine = CODECS[codec].chunk(own[span], predicted[_blocks(span)], lower=True, seed=number)
        (ranges,) = theirs.ranges() or [b""]
        theirs.open(mine.ranges()[0])
        partner.append((ranges, theirs.emit()))
    return Case(codec=codec, own=own, difference=other - own, predicted=predicted, spans=spans, partner=partner)


def exchange(case: Case, a: Vector, pending: Vector, v: Vector | None) -> tuple[float, float, float]:
    """Seconds of encoding, seconds of decoding and mixing, and share of blocks escalated."""
    encode = decode = 0.0
    blocks = escalated = 0
    for number, (span, (ranges, frames)) in enumerate(zip(case.spans, case.partner, strict=True)):
        begin = time.thread_time()
        side = CODECS[case.codec].chunk(a[span], case.predicted[_blocks(span)], lower=True, seed=number)
        side.ranges()
        side.open(ranges)
        side.emit()
        middle = time.thread_time()
        side.absorb(frames)
        if not side.complete:
            raise SystemExit("a block was escalated: the ranges of this benchmark are meant to suffice")
        side.norm2()
        side.mix(SHARE, a[span], pending[span], None if v is None else v[span], PULL)
        end = time.thread_time()
        encode, decode = encode + middle - begin, decode + end - middle
        blocks, escalated = blocks + side.blocks, escalated + side.escalated
    return encode, decode, escalated / blocks


def measure(case: Case, runs: int, with_v: bool) -> dict[str, float]:
    size = len(case.own)
    a, b, pending, v = case.own.copy(), case.own.copy(), np.zeros(size, np.float32), np.zeros(size, np.float32)
    plain, encodes, decodes = [], [], []
    for _ in range(runs + 1):
        begin = time.thread_time()
        b += a
        plain.append(time.thread_time() - begin)
        a[:], b[:] = case.own, case.own
        pending[:] = v[:] = 0.0
        encode, decode, _ = exchange(case, a, pending, v if with_v else None)
        encodes.append(encode)
        decodes.append(decode)
        verify(case, a, pending, v if with_v else None)
    ratios = {
        "encode": [e / p for e, p in zip(encodes[1:], plain[1:], strict=True)],
        "decode": [d / p for d, p in zip(decodes[1:], plain[1:], strict=True)],
    }
    return {
        "add_ms": 1e3 * statistics.median(plain[1:]),
        "encode_ms": 1e3 * statistics.median(encodes[1:]),
        "decode_ms": 1e3 * statistics.median(decodes[1:]),
        "encode_ratio": statistics.median(ratios["encode"]),
        "decode_ratio": statistics.median(ratios["decode"]),
    }


def verify(case: Case, a: Vector, pending: Vector, v: Vector | None) -> None:
    """Check that the mix moved by the difference of the anchors to a grid step, equally everywhere."""
    grid = 2.0 * 2**0.25 * float(case.predicted.max())
    if case.codec.startswith("modulo"):
        grid /= 2 ** int(case.codec.removeprefix("modulo")) - 2
    error = float(np.abs(pending / np.float32(SHARE) - case.difference).max())
    landed = float(np.abs((a - case.own) - pending).max())
    pulled = 0.0 if v is None else float(np.abs(v + np.float32(PULL) * pending).max())
    if error > grid or landed > 1e-7 or pulled > 1e-9:
        raise SystemExit(f"wrong difference: error {error:.3g} (grid {grid:.3g}), a {landed:.3g}, v {pulled:.3g}")


def _blocks(span: slice) -> slice:
    return slice(span.start // BLOCK, -(-span.stop // BLOCK))


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of a codec against numpy's a += b, one thread")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--codec", default="modulo4", choices=[name for name in CODECS if name.startswith("modulo")])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    begin = time.perf_counter()
    kernels.warm_up()
    keep_memory()  # as in the daemon
    warm_up = time.perf_counter() - begin
    case = make(options.codec, options.parameters)
    mixed, pulled = measure(case, options.runs, False), measure(case, options.runs, True)
    passed = mixed["encode_ratio"] <= MARK and mixed["decode_ratio"] <= MARK
    if options.json:
        figures = {"codec": options.codec, "parameters": options.parameters, "runs": options.runs}
        print(json.dumps({**figures, "warm_up_s": warm_up, "mix": mixed, "mix_with_v": pulled, "passed": passed}))
    else:
        print(f"{options.codec}, {options.parameters:,} parameters, one thread, medians of {options.runs} pairs")
        print(f"  kernels ready after {warm_up:.2f} s; a += b {mixed['add_ms']:.1f} ms")
        print(
            f"  encode               {mixed['encode_ms']:6.1f} ms  {mixed['encode_ratio']:.2f} x  (mark {MARK:.0f} x)"
        )
        print(
            f"  decode, norm, mix    {mixed['decode_ms']:6.1f} ms  {mixed['decode_ratio']:.2f} x  (mark {MARK:.0f} x)"
        )
        print(f"  the same, with v     {pulled['decode_ms']:6.1f} ms  {pulled['decode_ratio']:.2f} x")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
