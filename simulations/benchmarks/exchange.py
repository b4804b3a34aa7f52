"""One whole exchange between two daemons on loopback, against the longer of its parts measured beside it.

    python -m simulations.benchmarks.exchange [--parameters 25000000] [--runs 9] [--json]

The parts, each as both sides do it at the same time on this machine: the codec (encode, decode, norm and mix of the
whole vector, one thread a side, two processes at once), and the wire (the exchange's bytes, both ways, at the rate
bare CURVE pyzmq reaches with frames of that size). Exchange, codec and wire alternate; the figure is the median of the
ratios exchange / max(codec, wire). Each exchange is checked: the mean of both replicas stays, and they agree better
than before. On two cores the sum of the parts' processor time, not the longer of them, is what bounds an exchange.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
from multiprocessing.connection import Connection

import numpy as np

from gossipdp.codecs import kernels
from simulations.benchmarks import codec, transport
from simulations.two_daemons import Pair, two_daemons

MARK = 1.5
FRAME = 256 << 10


def one_exchange(pair: Pair, rng: np.random.Generator) -> dict[str, float]:
    """Move both replicas apart, let both step, and time the exchanges that follow; returns the last one's figures."""
    for trainer in pair.trainers:
        trainer.x += 0.01 * rng.standard_normal(len(trainer.x), dtype=np.float32)
    before, apart = sum(float(t.x.mean(dtype=np.float64)) for t in pair.trainers), pair.disagreement()
    seen = pair.status(0)["last_exchange"].get("exchange")
    for trainer in pair.trainers:
        trainer.step(submit=True)
    for _ in range(200):
        pair.wait(0.1)
        status = pair.status(0)
        if status["last_exchange"].get("exchange") != seen and not status["partner"]:
            break
    pair.wait(1.0)
    after = sum(float(t.x.mean(dtype=np.float64)) for t in pair.trainers)
    if abs(after - before) > 1e-6 or pair.disagreement() > 0.6 * apart:
        seen = f"mean moved {after - before:.2e}, apart {apart:.2e} -> {pair.disagreement():.2e}"
        raise SystemExit(f"not averaged: {seen}")
    return dict(pair.status(0)["last_exchange"])


def codec_side(parameters: int, pipe: Connection) -> None:
    """One side's codec work whenever the pipe says so; answers with its seconds."""
    kernels.warm_up()
    case = codec.make("modulo4", parameters)
    a, pending, v = case.own.copy(), np.zeros(parameters, np.float32), np.zeros(parameters, np.float32)
    pipe.send(0.0)
    while pipe.recv():
        encode, decode, _ = codec.exchange(case, a, pending, v)
        codec.verify(case, a, pending, v)
        a[:], pending[:], v[:] = case.own, 0.0, 0.0
        pipe.send(encode + decode)


class BothCodecs:
    """Two processes that do their codec work at the same moment, as the two ends of an exchange do."""

    def __init__(self, parameters: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in range(2):
            here, there = context.Pipe()
            context.Process(target=codec_side, args=(parameters, there), daemon=True).start()
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv()

    def seconds(self) -> float:
        for pipe in self._pipes:
            pipe.send(True)
        return max(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(False)


def main() -> int:
    parser = argparse.ArgumentParser(description="a whole exchange against the longer of its parts")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    size = options.parameters
    codecs = BothCodecs(size)
    x = 0.05 * rng.standard_normal(size, dtype=np.float32)
    rows = []
    # lr 1 and momentum 0: what each side steps is its whole movement, so that the check knows what to expect
    with two_daemons(x, {"exchange.warmup_steps": 10**9, "exchange.early_steps": 0}) as pair:
        for _ in range(options.runs + 2):
            last = one_exchange(pair, rng)
            if last["codec"] != "modulo4" or last["chunks"] != last["of"]:
                continue
            rate = transport.throughput(transport.BARE, FRAME, 512) * (1 << 20)
            rows.append((last["seconds"], codecs.seconds(), 2 * last["received_bytes"] / rate))
    codecs.close()
    ratio = statistics.median(seconds / max(cpu, wire) for seconds, cpu, wire in rows)
    figures = {
        "parameters": size,
        "runs": len(rows),
        "exchange_ms": round(1e3 * statistics.median(row[0] for row in rows), 1),
        "codec_ms": round(1e3 * statistics.median(row[1] for row in rows), 1),
        "wire_ms": round(1e3 * statistics.median(row[2] for row in rows), 1),
        "ratio": round(ratio, 3),
        "mark": MARK,
        "reached": ratio <= MARK,
        "machine": platform.machine(),
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            f"exchange of {size:,} parameters: {figures['exchange_ms']} ms; codec {figures['codec_ms']} ms, "
            f"wire {figures['wire_ms']} ms; ratio {ratio:.2f} (mark {MARK})"
        )
    return 0 if figures["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
