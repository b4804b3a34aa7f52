"""The server of the metrics: few readers at a time, each for a short time, and names of other hosts refused."""

import http.client
import itertools
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gossipdp.errors import ConfigError, HardwareError
from gossipdp.protocol import events
from gossipdp.runtime.observability.http import MOST, HttpServer
from gossipdp.runtime.observability.metrics import Metrics
from simulations.processes.progress import until


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics("0.1.0")
    yield metrics
    metrics.close()


def scrape(host: str, port: int) -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return str(answer.read().decode())


def test_serving_on_a_busy_port_takes_the_next_free_one(metrics: Metrics) -> None:
    metrics.observe(events.Notice("GD-401", "no partner"))
    first = Metrics()
    try:
        host, port = first.serve("127.0.0.1:0")
        other, next_port = metrics.serve(f"127.0.0.1:{port}")
        assert (host, other) == ("127.0.0.1", "127.0.0.1")
        assert port < next_port < port + 100
        assert 'gossipdp_notices_total{code="GD-401"} 1.0' in scrape(other, next_port)
        assert 'gossipdp_notices_total{code="GD-401"}' not in scrape(host, port)
    finally:
        first.close()


def test_closed_server_gives_its_port_back_and_may_be_closed_again(metrics: Metrics) -> None:
    host, port = metrics.serve("127.0.0.1:0")
    metrics.close()
    metrics.close()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))


def test_silent_connection__other_readers_are_answered(metrics: Metrics) -> None:
    address = metrics.serve("127.0.0.1:0")
    with socket.create_connection(address):
        assert "gossipdp_build_info" in scrape(*address)
        metrics.close()


def test_more_silent_connections_than_allowed__a_scrape_is_answered_and_one_line_says_so(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    address = metrics.serve("127.0.0.1:0")
    with ExitStack() as stack:
        for _ in range(3 * MOST):
            connection = stack.enter_context(socket.create_connection(address))
            connection.sendall(b"GET /metr")
        assert "gossipdp_build_info" in scrape(*address)
        until(
            "threads of connections that were cut off end",
            lambda: sum("process_request_thread" in thread.name for thread in threading.enumerate()) <= MOST,
        )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "more than 16 readers at once" in caplog.text


def test_request_one_byte_at_a_time__closed_at_its_deadline(capfd: pytest.CaptureFixture[str]) -> None:
    server = HttpServer("127.0.0.1:0", lambda _, start: [start("200 OK", []) and b""][:0], deadline=0.3)
    try:
        with socket.create_connection(server.address) as slow:
            sent = itertools.chain(b"GET / HTTP/1.0\r\nX: ", itertools.repeat(ord("x")))
            slow.settimeout(0.05)

            def closed() -> bool:
                try:
                    slow.sendall(bytes([next(sent)]))
                    return slow.recv(1) == b""
                except OSError as error:
                    return not isinstance(error, TimeoutError)

            until("the server closes a connection that always has one byte more", closed)
    finally:
        server.stop()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:9470", 200), ("", 200), ("rebound.example:9470", 421)],
)
def test_host_header_of_another_name__refused_on_loopback(metrics: Metrics, host: str, status: int) -> None:
    connection = http.client.HTTPConnection(*metrics.serve("127.0.0.1:0"))
    connection.putrequest("GET", "/metrics", skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == status and (b"gossipdp_build_info" in answer.read()) == (status == 200)
    connection.close()


@pytest.mark.parametrize("listen", ["9470", "127.0.0.1:http", "127.0.0.1:99999", ":1"])
def test_listening_on_no_address_is_a_configuration_error(metrics: Metrics, listen: str) -> None:
    with pytest.raises(ConfigError, match="GD-311"):
        metrics.serve(listen)


def test_listening_on_another_hosts_address_says_so(metrics: Metrics) -> None:
    with pytest.raises(HardwareError, match=r"GD-104 .*\n  seen: 192\.0\.2\.1:0: "):
        metrics.serve("192.0.2.1:0")
