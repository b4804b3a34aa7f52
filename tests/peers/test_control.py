"""The control socket: requests, answers, and everything else that arrives."""

import errno
import json
import math
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossipdp.errors import GossipdpError, HardwareError, RefusedError, UnreachableError
from peers import control
from peers.control import ControlServer, Request, ask


@contextmanager
def daemon(home: Path, answer: Callable[[Request], None]) -> Iterator[ControlServer]:
    """A thread that polls a server like the daemon's I/O loop, until the block ends."""
    server = ControlServer(home)
    stop, stopped = os.pipe()

    def loop() -> None:
        poller = select.poll()
        for fileno in (*server.filenos(), stop):
            poller.register(fileno, select.POLLIN)
        while stop not in (ready := [fileno for fileno, _ in poller.poll()]):
            for fileno in ready:
                for request in server.handle(fileno):
                    answer(request)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield server
    finally:
        os.write(stopped, b"x")
        thread.join()
        server.close()
        os.close(stop)
        os.close(stopped)


def echo(request: Request) -> None:
    request.reply({"verb": request.verb, "args": request.args})


def raw(home: Path, *pieces: bytes) -> bytes:
    """The bytes that the server sends back until it closes."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(control.socket_path(home)))
        reply = bytearray()
        with suppress(BrokenPipeError):
            for piece in pieces:
                peer.sendall(piece)
        with suppress(ConnectionResetError):  # what was sent past the limit is never read
            while piece := peer.recv(65536):
                reply += piece
        return bytes(reply)


@pytest.mark.parametrize("verb", control.VERBS)
def test_a_question_is_answered(tmp_path: Path, verb: str) -> None:
    with daemon(tmp_path, echo):
        assert ask(tmp_path, verb, page=2, name="é") == {"verb": verb, "args": {"page": 2, "name": "é"}}


def test_no_daemon_is_gd_105(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        ask(tmp_path, "status")
    assert str(caught.value).partition("\n  more: ")[0] == (
        f"GD-105 no daemon runs for this home\n  seen: {tmp_path}/control.sock: No such file or directory\n"
        "  do:   start one with `gossipdp up` or `gossipdp join`, or choose another home with --home"
    )


def test_a_socket_left_by_a_crash_is_gd_105_and_then_taken_over(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control.sock"))
    left.close()
    with pytest.raises(UnreachableError, match="Connection refused"):
        ask(tmp_path, "status")
    with daemon(tmp_path, echo):
        assert ask(tmp_path, "status")["verb"] == "status"
    assert not (tmp_path / "control.sock").exists()


def test_a_daemon_that_does_not_answer_is_gd_105_and_says_what_was_waited_for(tmp_path: Path) -> None:
    with daemon(tmp_path, lambda request: None), pytest.raises(UnreachableError, match=r"nothing in 0\.05 s"):
        ask(tmp_path, "status", timeout=0.05)


def test_a_daemon_that_dies_before_it_answers_is_gd_105(tmp_path: Path) -> None:
    dying = daemon(tmp_path, lambda request: request._connection.close())
    with dying, pytest.raises(UnreachableError, match="broke off its answer"):
        ask(tmp_path, "status")


def test_a_daemon_whose_backlog_is_full_is_not_taken_for_none(tmp_path: Path) -> None:
    server = ControlServer(tmp_path)  # no loop polls it
    waiting = []
    with suppress(BlockingIOError):
        while len(waiting) < 1000:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            waiting[-1].connect(str(server.path))
    with pytest.raises(UnreachableError, match=r"does not answer\n  seen: .*: nothing in 0\.05 s"):
        ask(tmp_path, "status", timeout=0.05)
    for peer in waiting:
        peer.close()
    server.close()


def test_an_error_of_the_daemon_is_raised_by_ask(tmp_path: Path) -> None:
    error = RefusedError("GD-204", "banned", seen="here", do="that")
    with daemon(tmp_path, lambda request: request.fail(error)), pytest.raises(RefusedError) as caught:
        ask(tmp_path, "checkpoint")
    assert str(caught.value) == str(error)


def test_an_error_of_no_known_kind_is_still_one(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, lambda request: request.fail(GossipdpError("GD-999", "odd"))),
        pytest.raises(GossipdpError, match="GD-999 odd"),
    ):
        ask(tmp_path, "status")


def test_numbers_json_does_not_know_become_null_and_numpy_scalars_are_taken(tmp_path: Path) -> None:
    values = {"nan": math.nan, "inf": math.inf, "f": np.float32(0.5), "d": np.float64(1.5), "i": np.int64(3)}
    with daemon(tmp_path, lambda request: request.reply(values)):
        assert ask(tmp_path, "status") == {"nan": None, "inf": None, "f": 0.5, "d": 1.5, "i": 3}


def test_a_reply_larger_than_the_sockets_buffer_arrives_whole(tmp_path: Path) -> None:
    rows = [{"name": f"peer{number}", "id": "ab" * 32} for number in range(20_000)]
    with daemon(tmp_path, lambda request: request.reply({"members": rows})):
        assert ask(tmp_path, "members")["members"] == rows


def test_a_reply_past_the_limit_is_an_error_and_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_REPLY", 1000)
    with daemon(tmp_path, lambda request: request.reply({"x": "y" * 2000})), pytest.raises(GossipdpError, match="bug"):
        ask(tmp_path, "status")


def test_only_the_first_answer_counts(tmp_path: Path) -> None:
    def twice(request: Request) -> None:
        request.reply({"first": True})
        request.reply({"first": False})

    with daemon(tmp_path, twice):
        assert ask(tmp_path, "status") == {"first": True}


GARBAGE = {
    "not json": b"\x00\xff\xfe{{{\n",
    "empty line": b"\n",
    "a list": b"[1,2]\n",
    "no verb": b"{}\n",
    "verb of the wrong type": b'{"verb": 3}\n',
    "unknown verb": b'{"verb": "shell"}\n',
    "unknown field": b'{"verb": "status", "exec": "x"}\n',
    "args of the wrong type": b'{"verb": "status", "args": [1]}\n',
    "nested a thousand deep": b'{"verb":"status","args":{"a":' + b"[" * 1000 + b"]" * 1000 + b"}}\n",
    "nested thirty thousand deep": b'{"verb":"status","args":{"a":' + b"[" * 30000 + b"]" * 30000 + b"}}\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_gets_an_error_and_the_server_lives(tmp_path: Path, garbage: bytes) -> None:
    asked: list[Any] = []

    def answer(request: Request) -> None:
        asked.append(request.args)
        echo(request)

    with daemon(tmp_path, answer):
        reply = json.loads(raw(tmp_path, garbage))
        if not asked:  # a thousand levels may be read; they are the daemon's to look at
            assert reply["error"]["code"] == "usage" and reply["error"]["exit"] == 2
        assert ask(tmp_path, "status")["verb"] == "status"


def test_a_request_past_the_limit_is_refused_before_it_ends(tmp_path: Path) -> None:
    with daemon(tmp_path, echo) as server:
        reply = json.loads(raw(tmp_path, *[b"x" * 65536] * 4))
        assert reply["error"]["cause"] == "a request has at most 65536 bytes"
        assert all(len(connection.incoming) < 1 << 18 for connection in server._connections.values())


def test_a_request_in_pieces_is_one_request(tmp_path: Path) -> None:
    with daemon(tmp_path, echo):
        assert json.loads(raw(tmp_path, b'{"ver', b'b": "status"', b"}\n"))["reply"]["verb"] == "status"


def test_silent_connections_are_dropped_for_newcomers(tmp_path: Path) -> None:
    with daemon(tmp_path, echo) as server:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(3 * control.MAX_CONNECTIONS)]
        for peer in silent:
            peer.connect(str(server.path))
        assert ask(tmp_path, "status")["verb"] == "status"
        assert silent[0].recv(1) == b"", "the eldest was closed"
        assert len(server._connections) <= control.MAX_CONNECTIONS
        for peer in silent:
            peer.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_asker_that_cannot_be_let_in_now_is_let_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def accept(_: socket.socket) -> None:
        raise OSError(code, os.strerror(code))

    server = ControlServer(tmp_path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(server.path))
        peer.sendall(b'{"verb": "status"}\n')
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", accept)
            assert server.handle() == []
        server.handle()
        (request,) = server.handle()
        request.reply({"late": True})
        assert json.loads(peer.recv(4096)) == {"reply": {"late": True}}
    server.close()


def test_an_asker_that_leaves_before_the_answer_is_forgotten(tmp_path: Path) -> None:
    server = ControlServer(tmp_path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(server.path))
        peer.sendall(b'{"verb": "status"}\n')
        server.handle()
        (request,) = server.handle()
    request.reply({"late": True})
    server.handle()
    assert server._connections == {}
    server.close()


def test_a_second_daemon_for_the_home_is_refused_and_the_first_lives(tmp_path: Path) -> None:
    with daemon(tmp_path, echo):
        with pytest.raises(HardwareError) as caught:
            ControlServer(tmp_path)
        assert str(caught.value).partition("\n  more: ")[0] == (
            f"GD-104 a daemon already runs for this home\n  seen: {tmp_path}\n"
            "  do:   `gossipdp leave` ends it; for a second peer on this machine add --home DIR --listen tcp://*:4711"
        )
        assert ask(tmp_path, "status")["verb"] == "status"


def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server = ControlServer(tmp_path / "home")
    finally:
        os.umask(before)
    assert server.path.stat().st_mode & 0o777 == 0o600
    server.close()


def test_another_user_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon(tmp_path, echo):
        monkeypatch.setattr(control, "user_of", lambda peer: os.getuid() + 12345)
        with pytest.raises(UnreachableError):
            ask(tmp_path, "status")


@pytest.mark.parametrize("name", ["home", "long" * 30])
def test_socket_is_made_again_if_it_was_deleted(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    server = ControlServer(home)
    control.socket_path(home).unlink()
    server.renew()
    assert control.runs(home)
    server.close()
    assert not control.runs(home)


def test_home_with_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    home.mkdir()
    with daemon(home, echo):
        assert ask(home, "status")["verb"] == "status"
        assert control.socket_path(home).stat().st_mode & 0o777 == 0o600
