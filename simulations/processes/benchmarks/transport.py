"""The data lane of two Transports against bare CURVE pyzmq: same frames, two processes on loopback.

    python -m simulations.processes.benchmarks.transport [--json] [--pairs 7] [--mebibytes 768]

One process sends prepared payloads, another receives them and takes the time from first to last. Bare is a DEALER that
sends as fast as its high-water mark allows, to a ROUTER that only receives. The Transport has the same mark, and a
queue behind it that the sender keeps filled. Both ends of both make malloc keep its memory, as the daemon does. With
glibc's own thresholds, a receiver that holds two messages at a time maps and faults in each anew.
Bare and Transport alternate. The figure is the median of the pairs' ratios. Every payload's number is checked in the
timed runs, and every byte of every payload in one earlier run of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import Received
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.transport import Transport
from peers.memory import keep_memory

FRAME_SIZES = (256 << 10, 1 << 20)
QUEUE = 16
"""messages that wait behind the high-water mark"""
PATIENCE = 20.0
SECRET, RUN = bytes(range(32)), bytes(16)
TARGET = 0.85


def payloads(size: int) -> list[bytes]:
    generator = np.random.default_rng(size)
    return [generator.bytes(size) for _ in range(16)]


class Check:
    """Receives messages; counts, checks and times them."""

    def __init__(self, size: int, count: int, whole: bool) -> None:
        self._expected = [np.frombuffer(payload, np.uint8) for payload in payloads(size)]
        self._whole = whole
        self._count = count
        self._first = 0.0
        self.seen = 0
        self.seconds = 0.0

    def take(self, header: Any, payload: Any) -> bool:
        """Take a message. Return whether more will come."""
        if not self.seen:
            self._first = time.perf_counter()
        assert int(bytes(header)[1:]) == self.seen, "a payload is missing or out of order"
        expected = self._expected[self.seen % len(self._expected)]
        view = np.frombuffer(payload, np.uint8)
        if self._whole:
            assert np.array_equal(view, expected), "a payload was changed"
        else:
            assert len(view) == len(expected)
            assert view[-1] == expected[-1]
        self.seen += 1
        self.seconds = time.perf_counter() - self._first
        return self.seen < self._count


def numbered(size: int, count: int) -> Iterator[list[bytes]]:
    prepared = payloads(size)
    for number in range(count):
        yield [b"\x90%d" % number, prepared[number % len(prepared)]]


# -- bare --------------------------------------------------------------------------------------------------------


def send_bare(pipe: Connection, size: int, count: int) -> None:
    keep_memory()
    keys, mine = NetworkSecret(SECRET).curve_server_keys(), Identity.generate().curve
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.public)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
        dealer.setsockopt(zmq.SNDHWM, 64)
        dealer.connect(f"tcp://127.0.0.1:{pipe.recv()}")
        for frames in numbered(size, count):
            dealer.send_multipart(frames, copy=False)
        pipe.recv()


def receive_bare(pipe: Connection, check: Check) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, NetworkSecret(SECRET).curve_server_keys().secret)
        router.setsockopt(zmq.RCVHWM, 64)
        router.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        pipe.send(router.bind_to_random_port("tcp://127.0.0.1"))
        more = True
        while more:
            _, header, payload = router.recv_multipart(copy=False)
            more = check.take(header.buffer, payload.buffer)
        pipe.send("done")


# -- the transport -----------------------------------------------------------------------------------------------


def transport(listen: str | None) -> Transport:
    secret = NetworkSecret(SECRET)
    return Transport(Identity.generate(), secret, network="bench", run=RUN, incarnation=1, listen=listen)


def send_transport(pipe: Connection, size: int, count: int) -> None:
    keep_memory()
    sender = transport(None)
    port, peer = pipe.recv()
    for frames in numbered(size, count):
        while sum(link.queued for link in sender.links()) >= QUEUE:
            sender.poll(1.0)
        assert sender.send(peer, f"127.0.0.1:{port}", Lane.DATA, frames)
        while not sender.links():
            sender.poll(1.0)
    while not pipe.poll():
        sender.poll(0.05)
    sender.close()


def receive_transport(pipe: Connection, check: Check) -> None:
    receiver = transport("tcp://127.0.0.1:0")
    pipe.send((receiver.port, receiver.identity.id))
    more, heard = True, time.monotonic()
    while more:
        events, _ = receiver.poll(1.0)
        heard = time.monotonic() if events else heard
        assert time.monotonic() < heard + PATIENCE, "the sender is gone"
        for event in events:
            if isinstance(event, Received):
                more = check.take(*event.frames)
    pipe.send("done")
    receiver.close()


# -- the pairs ---------------------------------------------------------------------------------------------------

Sender = Callable[[Connection, int, int], None]
Receiver = Callable[[Connection, Check], None]
BARE: tuple[Sender, Receiver] = (send_bare, receive_bare)
OURS: tuple[Sender, Receiver] = (send_transport, receive_transport)


def throughput(ends: tuple[Sender, Receiver], size: int, count: int, *, whole: bool = False) -> float:
    """MiB/s of `count` payloads of `size` bytes."""
    send, receive = ends
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=send, args=(there, size, count), daemon=True)
    check = Check(size, count, whole)
    process.start()
    receive(here, check)
    process.join(10)
    assert process.exitcode == 0
    assert check.seen == count
    return (count - 1) * size / check.seconds / (1 << 20)


def measure(size: int, pairs: int, mebibytes: int) -> dict[str, Any]:
    count = (mebibytes << 20) // size
    for ends in (BARE, OURS):
        throughput(ends, size, max(64, count // 8), whole=True)
    figures = []
    for pair in range(pairs):
        order = (BARE, OURS) if pair % 2 == 0 else (OURS, BARE)
        taken = {ends: throughput(ends, size, count) for ends in order}
        figures.append((taken[BARE], taken[OURS]))
    ratio = statistics.median(ours / bare for bare, ours in figures)
    return {
        "frame_bytes": size,
        "pairs": pairs,
        "bare_mib_s": round(statistics.median(bare for bare, _ in figures)),
        "transport_mib_s": round(statistics.median(ours for _, ours in figures)),
        "ratio": round(ratio, 3),
        "target": TARGET,
        "reached": ratio >= TARGET,
    }


def main() -> int:
    keep_memory()
    parser = argparse.ArgumentParser(description="The data lane against bare CURVE pyzmq.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--mebibytes", type=int, default=768, help="of payload in one run")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    results = [measure(size, chosen.pairs, chosen.mebibytes) for size in FRAME_SIZES]
    if chosen.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "results": results}))
    else:
        for result in results:
            print(
                f"{result['frame_bytes'] >> 10:5d} KiB frames: bare {result['bare_mib_s']} MiB/s, "
                f"transport {result['transport_mib_s']} MiB/s, ratio {result['ratio']:.2f} (target {TARGET})"
            )
    return 0 if all(result["reached"] for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
