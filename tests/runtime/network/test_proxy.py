"""Dials through a SOCKS5 proxy: a small one of the test, and the servers that Debian has."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import DialFailed, LinkDown, Received
from gossipdp.runtime.network.proxy import Proxy, proxy_of
from simulations.processes.namespaces.processes import kept_port
from simulations.processes.progress import until
from tests.runtime.network.transports import FAST, PING, Net, at, name


@contextmanager
def answering(answer: Callable[[socket.socket], Any]) -> Iterator[Proxy]:
    """A server on loopback that treats each connection by `answer`."""
    server, over = socket.create_server(("127.0.0.1", 0)), threading.Event()
    server.settimeout(0.05)
    connections: list[socket.socket] = []

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            connections.append(connection)
            connection.settimeout(5.0)
            try:
                answer(connection)
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Proxy("127.0.0.1", server.getsockname()[1])
    finally:
        over.set()
        thread.join()
        for connection in (server, *connections):
            connection.close()


def says(*replies: bytes) -> Callable[[socket.socket], None]:
    """Answer each message with the next reply; b"" hangs up."""

    def answer(connection: socket.socket) -> None:
        for reply in replies:
            connection.recv(512)
            if not reply:
                connection.close()
                return
            connection.sendall(reply)

    return answer


def unreached(net: Net, proxy: Proxy, address: str = "127.0.0.1:9") -> str:
    """Why a dial through `proxy` failed, in words."""
    dialler = net.peer(listen=None, proxy=proxy, limits=FAST)
    assert dialler.send(b"", address, Lane.CONTROL, PING)
    net.until(lambda: net.events(dialler, DialFailed))
    [failed] = net.events(dialler, DialFailed)
    return failed.reason


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ((b"\x05\x00", b"\x05\x05\x00\x01" + bytes(6)), "refused, says the proxy"),
        ((b"\x05\x00", b"\x05\x02\x00\x01" + bytes(6)), "the proxy does not allow it"),
        ((b"\x05\x00", b"\x05\x63\x00\x01" + bytes(6)), "the proxy says error 99"),
        ((b"\x05\xff",), "the proxy wants a user and a password"),
        ((b"\x04\x00",), "the proxy speaks no SOCKS5"),
        ((b"HTTP/1.1 400 Bad Request\r\n",), "the proxy speaks no SOCKS5"),
        ((b"",), "the proxy broke off"),
        ((b"\x05\x00", b""), "the proxy broke off"),
    ],
)
def test_what_a_proxy_says_is_told__and_no_answer_ends_the_process(
    net: Net, replies: tuple[bytes, ...], told: str
) -> None:
    with answering(says(*replies)) as proxy:
        assert told in unreached(net, proxy)


def test_proxy_that_is_not_there_is_named(net: Net) -> None:
    with kept_port() as keeper:
        told = unreached(net, Proxy("127.0.0.1", keeper.getsockname()[1]))
    assert "the proxy is not reached: 127.0.0.1:" in told and "refused" in told


def test_proxy_that_says_nothing_is_given_up_in_time(net: Net) -> None:
    with answering(lambda connection: None) as proxy:
        dialler = net.peer(listen=None, proxy=proxy, limits=replace(FAST, connect=0.3))
        assert dialler.send(b"", "127.0.0.1:9", Lane.CONTROL, PING)
        net.until(lambda: net.events(dialler, DialFailed))


@contextmanager
def microsocks() -> Iterator[Proxy]:
    with kept_port() as keeper:
        port = keeper.getsockname()[1]
        server = subprocess.Popen(["microsocks", "-i", "127.0.0.1", "-p", str(port)])
        try:
            yield Proxy("127.0.0.1", port)
        finally:
            server.kill()
            server.wait()


@pytest.mark.needs("microsocks")
@pytest.mark.parametrize("place", ["127.0.0.1", "localhost"])
def test_links_and_payloads_go_through_a_real_proxy(net: Net, place: str) -> None:
    with microsocks() as proxy:
        dialler, listener = net.peer(listen=None, proxy=proxy), net.peer()
        address = f"{place}:{listener.port}"
        until_it_listens(proxy)
        assert dialler.send(b"", address, Lane.CONTROL, PING)
        net.until(lambda: net.events(listener, Received))
        payload = bytes(1 << 20)
        assert dialler.send(name(listener), address, Lane.DATA, [b"\x90", payload])
        net.until(lambda: len(net.events(listener, Received)) >= 2)
        assert listener.send(name(dialler), "", Lane.DATA, [b"\x90", payload])
        net.until(lambda: net.events(dialler, Received))
        assert "refused" in unreached(net, proxy, "127.0.0.1:9")
        net.close(listener)
        net.until(lambda: net.events(dialler, LinkDown))


def until_it_listens(proxy: Proxy) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(proxy) == 0

    until("the proxy listens", listens)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:1", "socks5://u:p@127.0.0.1:1", "socks5://127.0.0.1", "127.0.0.1:1"]
)
def test_what_is_no_proxy_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError):
        proxy_of(text)
    assert proxy_of("") is None and proxy_of("socks5://[::1]:1080") == Proxy("::1", 1080)


def test_direct_dials_need_no_proxy(net: Net) -> None:
    dialler, listener = net.peer(listen=None), net.peer()
    assert dialler.send(b"", at(listener), Lane.CONTROL, PING)
    net.until(lambda: net.events(listener, Received))
