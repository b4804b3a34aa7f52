"""One exchange between two daemons on loopback, against its parts.

    python -m simulations.processes.benchmarks.exchange [--parameters 25000000] [--runs 9] [--json]

Two processes without a protocol run the parts: the codec (encode, decode, norm and mix of the whole vector, one thread
a side) and the wire (the frames of that exchange over bare CURVE pyzmq, both ways). An exchange overlaps them, so both
sides start codec and wire together, and the time is that of the last. The mark is on the median ratio of exchange and
max(codec, wire). The parts also run one after the other. With spare cores the two ways agree. On two cores, which both
daemons share, the codec alone keeps all cores busy. Exchange and parts alternate. Each exchange is checked: the mean of
both replicas stays, and they agree better than before.

The last lines give the CPU time of a daemon for one exchange, with the check and outer step before it (`cpu_parts`).
That of an idle daemon in the same time is subtracted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq

from gossipdp.codecs import kernels
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from peers.memory import keep_memory
from simulations.processes.benchmarks import codec
from simulations.processes.benchmarks.cpu_parts import PARTS, daemon_of, spent
from simulations.processes.two_daemons import Pair, two_daemons

MARK = 1.3


def one_exchange(pair: Pair, rng: np.random.Generator) -> dict[str, Any]:
    """Move both replicas apart, let both step, and time the exchanges that follow. Return the figures of the last."""
    for trainer in pair.trainers:
        trainer.x += 0.01 * rng.standard_normal(len(trainer.x), dtype=np.float32)
    before, apart = sum(float(t.x.mean(dtype=np.float64)) for t in pair.trainers), pair.disagreement()
    seen = pair.status(0)["exchanges"].get("done", 0)
    for trainer in pair.trainers:
        trainer.step(submit=True)
    for _ in range(200):
        pair.wait(0.1)
        status = pair.status(0)
        if status["exchanges"].get("done", 0) > seen and not status["partner"]:
            break
    pair.wait(1.0)
    after = sum(float(t.x.mean(dtype=np.float64)) for t in pair.trainers)
    # An exchange may begin before its second side has stepped. Then it averages the first side's movement only.
    if abs(after - before) > 1e-6 or pair.disagreement() > 0.9 * apart:
        seen = f"mean moved {after - before:.2e}, apart {apart:.2e} -> {pair.disagreement():.2e}"
        raise SystemExit(f"not averaged: {seen}")
    return dict(pair.status(0)["last_exchange"])


class Watch:
    """CPU seconds of a daemon of the pair by `PARTS`, without what it spends when idle; the mean of both."""

    def __init__(self, pair: Pair) -> None:
        self._daemons = [daemon_of(home) for home in pair.homes]
        pair.wait(1.0)
        self.begin()
        pair.wait(1.0)
        seconds, used = self._since()
        self._idle = {part: used[part] / seconds for part in PARTS}

    def begin(self) -> None:
        self._began, self._before = time.monotonic(), [spent(pid) for pid in self._daemons]

    def end(self) -> dict[str, float]:
        seconds, used = self._since()
        return {part: used[part] - seconds * self._idle[part] for part in PARTS}

    def _since(self) -> tuple[float, dict[str, float]]:
        pairs = list(zip(self._before, [spent(pid) for pid in self._daemons], strict=True))
        used = {part: sum(now[part] - then[part] for then, now in pairs) / len(pairs) for part in PARTS}
        return time.monotonic() - self._began, used


def side(parameters: int, listens: bool, pipe: Connection) -> None:
    """One end of the parts. Runs what the pipe asks for (codec, wire or both) and answers with the seconds of each."""
    kernels.warm_up()
    keep_memory()
    case = codec.make("modulo4", parameters)
    a, pending = case.own.copy(), np.zeros(parameters, np.float32)
    payload = [[b"\x90", ranges, *frames] for ranges, frames in case.partner]
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        server, mine = NetworkSecret(bytes(32)).curve_server_keys(), Identity.generate().curve
        if listens:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, server.secret)
            pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
        else:
            socket.setsockopt(zmq.CURVE_SERVERKEY, server.public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
            socket.connect(f"tcp://127.0.0.1:{pipe.recv()}")
        # The first message waits for the handshake.
        socket.send(b"")
        socket.recv()
        pipe.send(0.0)

        def exchange_frames() -> None:
            for frames in payload:
                socket.send_multipart(frames, copy=False)
            for frames in payload:
                got = socket.recv_multipart(copy=False)
                if [len(frame) for frame in got] != [memoryview(frame).nbytes for frame in frames]:
                    raise SystemExit("the wire lost a frame")

        def timed(work: Callable[[], object]) -> float:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin

        while parts := pipe.recv():
            works = {"codec": lambda: codec.exchange(case, a, pending, None), "wire": exchange_frames}
            with ThreadPoolExecutor(len(parts)) as threads:
                seconds = list(threads.map(timed, [works[part] for part in parts]))
            if "codec" in parts:
                codec.verify(case, a, pending, None)
                a[:], pending[:] = case.own, 0.0
            pipe.send(seconds)


class Parts:
    """Two processes that do the work of both ends of an exchange at the same time."""

    def __init__(self, parameters: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for listens in (True, False):
            here, there = context.Pipe()
            context.Process(target=side, args=(parameters, listens, there), daemon=True).start()
            self._pipes.append(here)
        listener, dialler = self._pipes
        dialler.send(listener.recv())
        for pipe in self._pipes:
            pipe.recv()

    def seconds(self, *parts: str) -> float:
        """Seconds until the last of `parts`, codec and wire, is done on both sides."""
        for pipe in self._pipes:
            pipe.send(parts)
        slowest: float = max(max(pipe.recv()) for pipe in self._pipes)
        return slowest

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(())


def main() -> int:
    parser = argparse.ArgumentParser(description="a whole exchange against the longer of its parts")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--workers", type=int, default=1, help="compute threads of each daemon")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    size = options.parameters
    parts = Parts(size)
    x = 0.05 * rng.standard_normal(size, dtype=np.float32)
    rows, cpu_rows = [], []
    # lr 1 and momentum 0: a side moves by its whole step, so the check knows the result
    settings = {
        "exchange.warmup_steps": 10**9,
        "exchange.early_steps": 0,
        "exchange.bits": 4,
        "compute.workers": options.workers,
    }
    with two_daemons(x, settings) as pair:
        watch = Watch(pair)
        for _ in range(options.runs + 2):
            watch.begin()
            last = one_exchange(pair, rng)
            cpu_rows.append(watch.end())
            if last["codec"] != "modulo4" or last["chunks"] != last["of"]:
                continue
            rows.append(
                (last["seconds"], parts.seconds("codec", "wire"), parts.seconds("codec"), parts.seconds("wire"))
            )
    parts.close()
    whole, together, cpu, wire = (1e3 * statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(row[0] / row[1] for row in rows)
    apart = statistics.median(row[0] / max(row[2:]) for row in rows)
    figures = {
        "parameters": size,
        "runs": len(rows),
        "exchange_ms": round(whole, 1),
        "parts_ms": round(together, 1),
        "ratio": round(ratio, 3),
        "mark": MARK,
        "reached": ratio <= MARK,
        "codec_alone_ms": round(cpu, 1),
        "wire_alone_ms": round(wire, 1),
        "ratio_to_parts_apart": round(apart, 3),
        "workers": options.workers,
        "cpu_ms": {part: round(1e3 * statistics.median(row[part] for row in cpu_rows), 1) for part in PARTS},
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            f"exchange of {size:,} parameters: {whole:.1f} ms; codec and wire together {together:.1f} ms; "
            f"ratio {ratio:.2f} (mark {MARK})\n"
            f"  one after the other: codec {cpu:.1f} ms, wire {wire:.1f} ms; ratio {apart:.2f}; {os.cpu_count()} cores"
        )
        each = ", ".join(f"{part} {1e6 * ms / size:.2f}" for part, ms in figures["cpu_ms"].items())
        print(f"  CPU milliseconds a million parameters, of one side with {options.workers} compute threads: {each}")
    return 0 if figures["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
