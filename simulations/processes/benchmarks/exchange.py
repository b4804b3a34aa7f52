"""One exchange between two daemons, against its parts.

    python -m simulations.processes.benchmarks.exchange [--parameters 25000000] [--runs 9] [--json]
    python -m simulations.processes.benchmarks.exchange --link loopback 1gbit --workers 1 2 4 --window 8 32 --page

Two processes without a protocol run the parts: the codec (encode, decode, norm and mix of the whole vector, one thread
a side) and the wire (the frames of that exchange over bare CURVE pyzmq, both ways). An exchange overlaps them, so both
sides start codec and wire together, and the time is that of the last. The mark is on the median ratio of exchange and
max(codec, wire). The parts also run one after the other. With spare cores the two ways agree. On two cores, which both
daemons share, the codec alone keeps all cores busy. Exchange and parts alternate. Each exchange is checked: the mean of
both replicas stays, and they agree better than before.

With `--link` the part is the wire alone, over the same link. Links other than loopback are cables of that rate between
two network namespaces. The mark is then on 1 Gbit/s with as many compute threads as cores.

The last lines give the CPU time of a daemon for one exchange, with the check and outer step before it (`cpu_parts`).
That of an idle daemon in the same time is subtracted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from gossipdp.codecs import kernels
from gossipdp.protocol.schema import chunk_parameters
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from peers.memory import keep_memory
from simulations.lab.pages.report import commit
from simulations.processes.benchmarks import codec
from simulations.processes.benchmarks.cpu_parts import PARTS, daemon_of, spent
from simulations.processes.namespaces.hosts import Host, Lab
from simulations.processes.needs import lacks
from simulations.processes.two_daemons import Pair, two_daemons

MARK = 1.3
MARKED = "1gbit"
"""the link whose exchanges have the mark, beside loopback without `--link`"""
DIFFERENT = 16
"""chunks whose frames the wire sends again and again: a billion parameters need no copies of their own"""
ROOT = Path(__file__).parents[3]
BURST = "1mb"
"""of a cable. At 1 Gbit/s a bucket of 64 kB lasts half a millisecond, and a kernel that wakes up later loses rate."""
PAGE = ROOT / "simulations" / "results" / "exchange.md"


def one_exchange(pair: Pair, rng: np.random.Generator) -> dict[str, Any]:
    """Move both replicas apart, let both step, and time the exchanges that follow. Return the figures of the last."""
    for trainer in pair.trainers:
        # Numbers for all parameters would take longer than the exchange.
        noise = np.float32(0.01) * rng.standard_normal(1 << 20, dtype=np.float32)
        for piece in np.split(trainer.x, range(len(noise), len(trainer.x), len(noise))):
            piece += noise[: len(piece)]
    before, apart = sum(float(t.x.mean(dtype=np.float64)) for t in pair.trainers), pair.disagreement()
    seen = pair.status(0)["exchanges"].get("done", 0)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda trainer: trainer.step(submit=True), pair.trainers))
    for _ in range(1200):
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


def case_of(parameters: int, whole: bool) -> tuple[codec.Case, list[list[Any]]]:
    """The vectors of an exchange, and the frames that each side sends. Unless `whole`, the vectors have few chunks."""
    width = chunk_parameters(parameters)
    chunks = -(-parameters // width)
    left_out = 0 if whole else max(0, chunks - DIFFERENT)
    case = codec.make("modulo4", parameters - left_out * width, width)
    sent = [*itertools.islice(itertools.cycle(case.partner[:-1]), chunks - 1), case.partner[-1]]
    return case, [[b"\x90", ranges, *frames] for ranges, frames in sent]


def side(parameters: int, cables: Sequence[Host], listens: bool, whole: bool, pipe: Connection) -> None:
    """One end of the parts. Runs what the pipe asks for (codec, wire or both) and answers with the seconds of each."""
    kernels.warm_up()
    keep_memory()
    case, payload = case_of(parameters, whole)
    a, pending = case.own.copy(), np.zeros_like(case.own)
    server_at = cables[0].address if cables else "127.0.0.1"
    # Threads of libzmq belong to the network in which they begin.
    within = cables[0 if listens else 1].inside() if cables else contextlib.nullcontext()
    with within, zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        server, mine = NetworkSecret(bytes(32)).curve_server_keys(), Identity.generate().curve
        if listens:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, server.secret)
            pipe.send(socket.bind_to_random_port(f"tcp://{server_at}"))
        else:
            socket.setsockopt(zmq.CURVE_SERVERKEY, server.public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
            socket.connect(f"tcp://{server_at}:{pipe.recv()}")
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
    """Two processes that do the work of both ends of an exchange at the same time; of the codec only if `whole`."""

    def __init__(self, parameters: int, cables: Sequence[Host] = (), *, whole: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for listens in (True, False):
            here, there = context.Pipe()
            context.Process(target=side, args=(parameters, cables, listens, whole, there), daemon=True).start()
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


def share_of_a_core(seconds: float = 2.0) -> float:
    """What a thread that never waits gets of a core: less than 1 beside other jobs."""
    began, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() < began + seconds:
        pass
    return (time.thread_time() - used) / seconds


def measure(size: int, runs: int, link: str, workers: int, window: int) -> dict[str, Any]:
    """Figures of exchanges over `link`, a rate or "loopback", against the wire; of "" against codec and wire."""
    settings = {"compute.workers": workers, "exchange.window": window}
    cores = os.cpu_count() or 1
    share = share_of_a_core()
    with contextlib.ExitStack() as stack:
        cables = []
        if link not in ("", "loopback"):
            lab = stack.enter_context(Lab(2))
            cables = lab.hosts
            for cable in cables:
                lab.set_rate(cable, link, burst=BURST)
        parts = Parts(size, cables, whole=not link)
        stack.callback(parts.close)
        asked = (("wire",),) if link else (("codec", "wire"), ("codec",), ("wire",))
        rows, cpu = exchanges(size, runs, settings, cables, lambda: [parts.seconds(*each) for each in asked])
    whole, *apart = (round(1e3 * statistics.median(column), 1) for column in zip(*rows, strict=True))
    ratio = statistics.median(row[0] / row[1] for row in rows)
    figures = {
        "parameters": size,
        "link": link or "loopback",
        "workers": workers,
        "window": window,
        "runs": len(rows),
        "exchange_ms": whole,
        **dict(zip(("wire_ms",) if link else ("parts_ms", "codec_alone_ms", "wire_alone_ms"), apart, strict=True)),
        "ratio": round(ratio, 3),
        "cpu_ms": {part: round(1e3 * statistics.median(row[part] for row in cpu), 1) for part in PARTS},
        "share_of_a_core": round(share, 2),
        "machine": platform.machine(),
        "cores": cores,
    }
    if not link:
        figures["ratio_to_parts_apart"] = round(statistics.median(row[0] / max(row[2:]) for row in rows), 3)
    if not link or (link == MARKED and workers == cores):
        figures |= {"mark": MARK, "reached": ratio <= MARK}
    return figures


def exchanges(
    size: int, runs: int, settings: Mapping[str, int], cables: Sequence[Host], parts: Callable[[], list[float]]
) -> tuple[list[list[float]], list[dict[str, float]]]:
    """Seconds of each exchange and of the parts after it; CPU seconds of a daemon for each."""
    rng = np.random.default_rng(1)
    rows, cpu = [], []
    # lr 1 and momentum 0: a side moves by its whole step, so the check knows the result
    fixed = {
        "exchange.warmup_steps": 10**9,
        "exchange.early_steps": 0,
        "exchange.bits": 4,
        "checkpoint.every": "off",
    }
    with two_daemons(0.05 * rng.standard_normal(size, dtype=np.float32), {**fixed, **settings}, cables) as pair:
        watch = Watch(pair)
        for _ in range(runs + 2):
            watch.begin()
            last = one_exchange(pair, rng)
            used = watch.end()
            if last["codec"] == "modulo4" and last["chunks"] == last["of"]:
                rows.append([last["seconds"], *parts()])
                cpu.append(used)
    return rows, cpu


def lines_of(figures: dict[str, Any]) -> str:
    """The figures for people."""
    size, link = figures["parameters"], figures["link"]
    mark = f" (mark {MARK})" if "mark" in figures else ""
    said = f"exchange of {size:,} parameters, {link}: {figures['exchange_ms']:.1f} ms; "
    if "wire_ms" in figures:
        said += f"wire {figures['wire_ms']:.1f} ms; ratio {figures['ratio']:.2f}{mark}\n"
    else:
        said += (
            f"codec and wire together {figures['parts_ms']:.1f} ms; ratio {figures['ratio']:.2f}{mark}\n"
            f"  one after the other: codec {figures['codec_alone_ms']:.1f} ms, wire {figures['wire_alone_ms']:.1f} ms; "
            f"ratio {figures['ratio_to_parts_apart']:.2f}\n"
        )
    each = ", ".join(f"{part} {1e6 * ms / size:.2f}" for part, ms in figures["cpu_ms"].items())
    return (
        f"{said}  CPU milliseconds a million parameters, of one side, {figures['workers']} compute threads: {each}\n"
        f"  {figures['cores']} cores; just before, a busy thread got {figures['share_of_a_core']:.2f} of a core"
    )


def page(rows: Sequence[dict[str, Any]], command: str, commit: str) -> str:
    """The page in Markdown, of figures against the wire."""
    first = rows[0]
    lines = [
        "# exchange: What does an exchange cost beside its wire?",
        "",
        f"Two daemons exchange a model of {first['parameters']:,} parameters at 4 bits. They share {first['cores']} "
        "cores with each other and with other jobs. Links are loopback, or cables of the named rate between network "
        f"namespaces. {first['machine']}; commit {commit}, {date.today().isoformat()}.",
        "",
        f"    {command}",
        "",
        "* **Wire**: the frames of that exchange over bare CURVE pyzmq, both ways at once, over the same link. It "
        f"alternates with the exchange, {first['runs']} times a row. Times are medians, and *ratio* is the median of "
        "the pairs' ratios.",
        "* **Window**: chunks open at once, the setting `exchange.window`. *Threads* is `compute.workers`.",
        "* **Vectors, wire, Python**: CPU seconds of one daemon's compute threads, libzmq's threads and I/O thread, "
        "for an exchange and the check and outer step before it.",
        "* **CPU**: these of both daemons, over the number of cores.",
        "* **Core**: the share of a core that a busy thread got beside other jobs, just before the row.",
        "",
        "| link | threads | window | exchange, s | wire, s | ratio | vectors | wire | Python | CPU, s | core |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cpu = [row["cpu_ms"][part] / 1e3 for part in PARTS]
        cells = [row["exchange_ms"] / 1e3, row["wire_ms"] / 1e3, row["ratio"], *cpu, 2 * sum(cpu) / row["cores"]]
        told = " | ".join(f"{cell:.2f}" for cell in cells)
        lines.append(f"| {row['link']} | {row['workers']} | {row['window']} | {told} | {row['share_of_a_core']:.2f} |")
    for row in rows:
        if "mark" in row:
            met = "reached" if row["reached"] else "missed"
            mark = f"Mark: at {MARKED} with as many threads as cores, a ratio of {MARK} at most."
            lines += ["", f"{mark} With a window of {row['window']} it was {met}."]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="a whole exchange against the longer of its parts")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="compute threads of each daemon")
    parser.add_argument("--window", type=int, nargs="+", default=[8], help="chunks open at once (%(default)s)")
    parser.add_argument("--link", nargs="+", default=[], help="loopback, or a rate such as 1gbit: against the wire")
    parser.add_argument("--page", type=Path, nargs="?", const=PAGE, help="with --link: write the page")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if set(options.link) - {"loopback"} and (why := lacks("namespaces")):
        print(why, file=sys.stderr)
        return 7
    rows = []
    for link, workers, window in itertools.product(options.link or [""], options.workers, options.window):
        rows.append(measure(options.parameters, options.runs, link, workers, window))
        print(json.dumps(rows[-1]) if options.json else lines_of(rows[-1]), flush=True)
    if options.page and options.link:
        command = "python -m simulations.processes.benchmarks.exchange " + " ".join(arguments or sys.argv[1:])
        options.page.write_text(page(rows, command, commit(ROOT)))
    return 0 if all(row.get("reached", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
