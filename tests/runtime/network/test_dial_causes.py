"""Why an address does not answer: a second connection finds what libzmq does not report."""

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from gossipdp.runtime.background import MAX_CALLS, BackgroundCalls
from gossipdp.runtime.network.dial_causes import HOLDS, Cause, Looks, dial_text, look

PATIENCE = 0.2


@contextmanager
def listener(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a listener that calls `answer` with its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize(
    ("answer", "broke_off", "code", "words"),
    [
        (socket.socket.close, True, "GD-101", "connected, then closed without an answer: probably a proxy"),
        (reset, False, "GD-101", "connected, then closed without an answer: probably a proxy"),
        (lambda end: end.sendall(b"SSH-2.0-x\x1b\n"), True, "GD-101", r"answered 'SSH-2.0-x\x1b\n': not a gossipdp"),
        (lambda end: end.sendall(end.recv(1) + bytes(8) + b"\x7f"), True, "GD-201", "the network secret differs"),
        (lambda end: end.sendall(b"\xff" + bytes(8) + b"\x7f"), False, "GD-101", "listening now"),
    ],
    ids=["closes", "resets", "another program", "another secret", "a peer that has come up"],
)
def test_connection_accepted__cause_by_its_greeting(
    answer: Callable[[socket.socket], object], broke_off: bool, code: str, words: str
) -> None:
    with listener(answer) as address:
        cause = look(address, broke_off, 5.0)
    assert cause.code == code and words in cause.text


def test_closed_port_is_refused__a_full_backlog_times_out() -> None:
    with socket.socket() as one, socket.socket() as first, socket.socket() as second:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
        refused = look(address, False, PATIENCE)
        one.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(one.getsockname())
        dropped = look(address, False, PATIENCE)
    assert refused.text == "refused" and refused.do.startswith("start a peer there")
    assert dropped.text.startswith("timed out: no answer in 0.2 s") and "firewall" in dropped.do


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EHOSTUNREACH, "unreachable: No route to host"), (errno.EMFILE, "no connection: ")]
)
def test_system_refuses_the_connection__its_text_is_told(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def connect(*_: object) -> None:
        raise OSError(number, {errno.EHOSTUNREACH: "No route to host"}.get(number, "Too many open files"))

    monkeypatch.setattr("gossipdp.runtime.network.dial_causes.socket.socket.connect", connect)
    assert look("127.0.0.1:9", False, PATIENCE).text.startswith(words)


def test_second_looks_at_one_address_are_few__and_a_cause_stays_valid_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def seen(address: str, *_: object) -> Cause:
        looked.append(address)
        return Cause("GD-101", f"seen {len(looked)}")

    monkeypatch.setattr("gossipdp.runtime.network.dial_causes.look", seen)
    looks, unknown = Looks(4.0), Cause("GD-101", "unknown")
    begin = partial(looks.begin, "10.0.0.1:4710", unknown, False)
    key = begin(0.1, 100.0)
    while not (found := looks.collect(100.0)):
        pass
    assert found == [(key, Cause("GD-101", "seen 1"))] and looks.pending == 0
    assert begin(0.1, 100.0 + HOLDS - 1) == Cause("GD-101", "seen 1"), "no second look yet"
    looks.sweep(100.0 + HOLDS)
    assert isinstance(begin(0.1, 100.0 + HOLDS), str)
    timed_out = begin(3.9, 100.0 + HOLDS)
    assert isinstance(timed_out, Cause) and timed_out.text.startswith("timed out"), "libzmq's own limit ended it"


def test_background_calls_past_the_limit_are_not_started() -> None:
    calls: BackgroundCalls[int] = BackgroundCalls("test")
    go = threading.Event()
    begun = [calls.start(str(number), lambda: int(go.wait())) for number in range(MAX_CALLS + 1)]
    assert begun == [True] * MAX_CALLS + [False]
    go.set()
    results: list[tuple[str, int]] = []
    while calls.pending:
        results += calls.collect()
    assert sorted(results) == [(str(number), 1) for number in range(MAX_CALLS)]


def test_failed_dial_is_told_with_each_address_once() -> None:
    refused = [Cause("GD-101", "refused").at("10.0.0.1:7005")]
    assert dial_text("10.0.0.1:7005", refused, "no peer: ") == "10.0.0.1:7005: no peer: refused"
    assert dial_text("gpu.example:7005", refused) == "gpu.example:7005: 10.0.0.1:7005 refused"
