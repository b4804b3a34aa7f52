"""Dials through a SOCKS5 proxy: small ones of the test, microsocks, and `ssh -D`."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossipdp.errors import ConfigError, UnreachableError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import proxy as proxies
from gossipdp.runtime.network import watch, zmq_wire
from gossipdp.runtime.network.dial_causes import Cause, DialFault
from gossipdp.runtime.network.events import DialFailed, Flooded, LinkDown, Received
from gossipdp.runtime.network.limits import LIMITS, TransportLimits
from gossipdp.runtime.network.proxy import Proxy, Tunnels, Unreached, probe, proxy_of
from gossipdp.runtime.network.redeeming import redeem
from simulations.processes.namespaces.processes import kept_port
from simulations.processes.needs import found
from simulations.processes.progress import until
from tests.runtime.network.sides import SECOND, Side, renewal
from tests.runtime.network.test_redeeming import JOINER, ask, token
from tests.runtime.network.transports import FAST, PATIENT, PING, Net, Relay, at, name

GRANTED = b"\x05\x00\x00\x01" + bytes(6)
LOGIN = b"user", b"S3cret-of-the-proxy"


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


def unreached(net: Net, proxy: Proxy, address: str = "127.0.0.1:9", limits: TransportLimits = PATIENT) -> Cause:
    """Why a dial through `proxy` failed."""
    dialler = net.peer(listen=None, proxy=proxy, limits=limits)
    assert dialler.send(b"", address, Lane.CONTROL, PING)
    net.until(lambda: net.events(dialler, DialFailed))
    [failed] = net.events(dialler, DialFailed)
    [cause] = failed.causes
    return cause


@pytest.mark.parametrize(
    ("replies", "told", "fault"),
    [
        ((b"\x05\x00", b"\x05\x05\x00\x01" + bytes(6)), "refused, according to the proxy", "refused"),
        ((b"\x05\x00", b"\x05\x02\x00\x01" + bytes(6)), "the proxy does not allow it", "proxy-refuses"),
        ((b"\x05\x00", b"\x05\x63\x00\x01" + bytes(6)), "the proxy replied with error 99", "proxy-refuses"),
        ((b"\x05\x00", b""), "the proxy closed the connection when asked", "proxy-refuses"),
        ((b"\x05\x00", GRANTED, b""), "connected, then closed without an answer", "proxy"),
        ((b"\x05\x00", GRANTED, b"HTTP/1.1 400"), "answered 'HTTP/1.1 400': not a gossipdp peer", "another-service"),
        ((b"\x05\xff",), "the proxy wants a user and a password", "proxy-login"),
        ((b"\x04\x00",), "the proxy does not speak SOCKS5", "no-proxy"),
        ((b"HTTP/1.1 400 Bad Request\r\n",), "answered 'HTTP/1.1 400 Bad Request", "no-proxy"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), "answered 'SSH-2.0-OpenSSH_9.2", "no-proxy"),
        ((b"",), "the proxy closed the connection: 127.0.0.1:", "no-proxy"),
    ],
)
def test_what_a_proxy_says_is_told__and_no_answer_ends_the_process(
    net: Net, replies: tuple[bytes, ...], told: str, fault: str
) -> None:
    with answering(says(*replies)) as proxy:
        cause = unreached(net, proxy)
        assert told in cause.text and cause.fault == fault
        again = probe(proxy, "127.0.0.1:9", 60.0)
        assert again is not None and again.brief == cause.brief and again.fault == fault


def test_proxy_that_is_not_there_is_named(net: Net) -> None:
    with kept_port() as keeper:
        cause = unreached(net, Proxy("127.0.0.1", keeper.getsockname()[1]))
    assert "the proxy cannot be reached: 127.0.0.1:" in cause.text and "refused" in cause.text
    assert cause.fault == "no-proxy" and "[network] proxy" in cause.do


def test_name_of_a_proxy_that_is_not_known_is_named(net: Net) -> None:
    cause = unreached(net, Proxy("nowhere.invalid", 1080))
    assert "the proxy cannot be reached: nowhere.invalid:1080" in cause.text and cause.fault == "no-proxy"


def test_address_of_a_proxy_that_drops_packets_is_named(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "FIRST", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as waits:
        waits.connect(full.getsockname())  # the kernel drops what comes after the first
        cause = unreached(net, Proxy("127.0.0.1", full.getsockname()[1]))
    assert "the proxy cannot be reached: no answer from 127.0.0.1:" in cause.text and cause.fault == "no-proxy"


def test_server_that_says_nothing_is_named_long_before_the_patience_with_a_target_ends(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "FIRST", 0.3)
    with answering(lambda connection: None) as proxy:
        cause = unreached(net, proxy, limits=replace(FAST, connect=600.0))
    assert "the proxy does not answer" in cause.text and cause.fault == "no-proxy" and "HTTP" in cause.do


def test_proxy_that_does_not_reach_the_target_is_given_up_in_time(net: Net) -> None:
    with answering(says(b"\x05\x00")) as proxy:
        cause = unreached(net, proxy, limits=replace(FAST, connect=0.3))
    assert "timed out" in cause.text and cause.fault == "dropped" and "TCP port 9" in cause.do


def test_every_fault_is_known_within_fifteen_seconds() -> None:
    assert all(max(2 * proxies.FIRST, each.connect) + each.handshake < 15.0 for each in LIMITS.values())


# -- targets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("192.0.2.7:258", b"\x01\xc0\x00\x02\x07\x01\x02"),
        ("[2001:db8::7]:258", b"\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x07\x01\x02"),
        ("nowhere.invalid:258", b"\x03\x0fnowhere.invalid\x01\x02"),
        ("b\xfccher.invalid:258", b"\x03\x15xn--bcher-kva.invalid\x01\x02"),
    ],
)
def test_targets_go_to_the_proxy_as_they_are__names_too(net: Net, address: str, asked: bytes) -> None:
    heard = []

    def answer(connection: socket.socket) -> None:
        for reply in (b"\x05\x00", b"\x05\x04\x00\x01" + bytes(6)):
            heard.append(connection.recv(512))
            connection.sendall(reply)

    with answering(answer) as proxy:
        cause = unreached(net, proxy, address)
    assert heard[1] == b"\x05\x01\x00" + asked
    assert "unreachable, according to the proxy" in cause.text


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", ".".join(["x" * 60] * 5)])
def test_name_that_is_none_is_told_and_never_asked_for(net: Net, host: str) -> None:
    with answering(says(b"\x05\x00")) as proxy:
        assert "is not a valid name" in unreached(net, proxy, f"{host}:9").text


def test_private_address_gets_full_patience__the_proxy_has_networks_of_its_own(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host on a network of the same numbers would go on to the next address after 1.5 s."""
    with answering(says(b"\x05\x00", b"\x05\x05\x00\x01" + bytes(6))) as proxy:
        dialler = net.peer(listen=None, proxy=proxy, limits=replace(FAST, connect=600.0))
        monkeypatch.setattr(dialler._links._dialling._reach, "near", lambda *_: True)
        assert dialler.send(b"", "10.0.0.1:9", Lane.CONTROL, PING, ["10.0.0.2:9"])
        patience = [dial.patience for dial in dialler._links._dialling._dials.values()]
        assert patience == [600.0]


@contextmanager
def serving(command: Callable[[int], list[str]]) -> Iterator[Proxy]:
    """A program that serves SOCKS5 on a port of loopback."""
    with kept_port() as keeper:
        proxy = Proxy("127.0.0.1", keeper.getsockname()[1])
        with subprocess.Popen(command(proxy.port)) as server:
            try:
                until("the proxy listens", lambda: listens(proxy) or server.poll() is not None)
                assert server.poll() is None
                yield proxy
            finally:
                server.kill()


def listens(proxy: Proxy) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((proxy.host, proxy.port)) == 0


def microsocks(*login: str) -> Callable[[int], list[str]]:
    words = [word for pair in zip(("-u", "-P"), login, strict=False) for word in pair]
    return lambda port: ["microsocks", "-i", "127.0.0.1", "-p", str(port), *words]


def ssh(folder: Path) -> Callable[[int], list[str]]:
    """`ssh -D` with a server of its own behind a pipe: no port is opened for it, and it ends with its client."""
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it; otherwise its service makes it
    settings = [f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/user.pub", "StrictModes no", "UsePAM no"]
    (folder / "sshd_config").write_text("\n".join([*settings, "LogLevel ERROR"]) + "\n")
    options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
    options += [f"ProxyCommand={found('sshd')} -i -f {folder}/sshd_config"]
    words = ["ssh", "-F", "/dev/null", "-i", str(folder / "user"), *(word for each in options for word in ("-o", each))]
    return lambda port: [*words, "-N", "-D", f"127.0.0.1:{port}", "server"]


@pytest.fixture(params=["microsocks", "ssh"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    with serving(microsocks() if request.param == "microsocks" else ssh(tmp_path)) as proxy:
        yield proxy


real_proxies = pytest.mark.parametrize(
    "real",
    [
        pytest.param("microsocks", marks=pytest.mark.needs("microsocks")),
        pytest.param("ssh", marks=pytest.mark.needs("sshd", "ssh", "ssh-keygen")),
    ],
    indirect=True,
)


@real_proxies
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", pytest.param("[::1]", marks=pytest.mark.needs("IPv6"))])
def test_links_and_payloads_go_through_a_real_proxy(net: Net, real: Proxy, host: str) -> None:
    listen = "tcp://[::1]:0" if host == "[::1]" else "tcp://127.0.0.1:0"
    dialler, listener = net.peer(listen=None, proxy=real), net.peer(listen=listen)
    address = f"{host}:{listener.port}"
    assert probe(real, address, 60.0) is None
    assert dialler.send(b"", address, Lane.CONTROL, PING)
    net.until(lambda: net.events(listener, Received))
    payload = bytes(1 << 20)
    assert dialler.send(name(listener), address, Lane.DATA, [b"\x90", payload])
    net.until(lambda: len(net.events(listener, Received)) >= 2)
    assert listener.send(name(dialler), "", Lane.DATA, [b"\x90", payload])
    net.until(lambda: net.events(dialler, Received))
    net.close(listener)
    net.until(lambda: net.events(dialler, LinkDown))


@real_proxies
def test_closed_port_behind_a_real_proxy_is_named(net: Net, real: Proxy, closed_port: int) -> None:
    """ssh says no more than that; some of its versions even say first that they have reached the target."""
    cause = unreached(net, real, f"127.0.0.1:{closed_port}")
    assert cause.fault in (DialFault.REFUSED, DialFault.PROXY_REFUSES, DialFault.PROXY) and cause.code == "GD-101"
    seen = probe(real, f"127.0.0.1:{closed_port}", 60.0)
    assert seen is not None and seen.fault == cause.fault


@real_proxies
def test_invite_is_redeemed_through_a_real_proxy(net: Net, real: Proxy) -> None:
    member = Side(net, SECOND, renewal(SECOND.generation, 0))
    assert ask(net, member, token(at(member.transport)), proxy=real) == SECOND


def test_invite_is_not_redeemed_through_a_dead_proxy__which_is_named_before_a_member_would_be_given_up() -> None:
    times = iter(range(100))
    with kept_port() as keeper, pytest.raises(UnreachableError) as caught:
        dead = Proxy("127.0.0.1", keeper.getsockname()[1])
        redeem(token("127.0.0.1:9"), JOINER, proxy=dead, clock=lambda: float(next(times)), wait=lambda _: None)
    assert next(times) < 15.0 and caught.value.cause == "the proxy cannot be reached" and caught.value.do


def test_direct_dials_need_no_proxy(net: Net) -> None:
    dialler, listener = net.peer(listen=None), net.peer()
    assert dialler.send(b"", at(listener), Lane.CONTROL, PING)
    net.until(lambda: net.events(listener, Received))


# -- user and password -------------------------------------------------------------------------------------------


@pytest.mark.needs("microsocks")
def test_user_and_password_open_a_real_proxy(net: Net, closed_port: int) -> None:
    with serving(microsocks(*(each.decode() for each in LOGIN))) as proxy:
        opens, listener = replace(proxy, login=LOGIN), net.peer()
        dialler = net.peer(listen=None, proxy=opens)
        assert dialler.send(b"", at(listener), Lane.CONTROL, PING)
        net.until(lambda: net.events(listener, Received))
        wrong = unreached(net, replace(proxy, login=(b"user", b"other")))
        assert "the proxy rejects user or password" in wrong.text and wrong.fault == "proxy-login"
        without = unreached(net, proxy)
        assert "the proxy wants a user and a password" in without.text and without.fault == "proxy-login"


def test_proxy_that_wants_no_login_gets_none(net: Net) -> None:
    heard = []

    def answer(connection: socket.socket) -> None:
        for reply in (b"\x05\x00", b"\x05\x02\x00\x01" + bytes(6)):
            heard.append(connection.recv(512))
            connection.sendall(reply)

    with answering(answer) as proxy:
        unreached(net, replace(proxy, login=LOGIN))
    assert heard[0] == b"\x05\x02\x00\x02" and not any(LOGIN[1] in each for each in heard)


@pytest.mark.parametrize(
    "replies",
    [
        (b"\x05\x02", b"\x01\x01"),
        (b"\x05\x02", b""),
        (b"\x05\x02", b"\x01\x00" + LOGIN[1]),
        (b"\x05\x01",),
        (b"\x05\x02", b"\x01\x00", b"\x05\x63\x00\x01" + LOGIN[1]),
    ],
    ids=["refused", "broken-off", "echoed", "another-method", "echoed-later"],
)
def test_password_is_in_no_error_and_no_log(
    net: Net, replies: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with answering(says(*replies)) as proxy:
        knows = replace(proxy, login=LOGIN)
        told = str(unreached(net, knows, limits=replace(FAST, connect=2.0)))
        told += str(probe(knows, "127.0.0.1:9", 2.0)) + repr(knows) + str(knows) + caplog.text
    assert "S3cret" not in told and "user'" not in repr(knows)


def test_login_is_read_from_a_file_that_is_open_to_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.write_bytes(b"user:S3cret:of-the-proxy\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="GD-206") as caught:
        proxy_of("socks5://127.0.0.1:1", str(file))
    assert "mode 640" in str(caught.value) and f"chmod 600 {file}" in str(caught.value)
    file.chmod(0o600)
    assert proxy_of("socks5://127.0.0.1:1", str(file)) == Proxy("127.0.0.1", 1, (b"user", b"S3cret:of-the-proxy"))
    assert proxy_of("", str(file)) is None and proxy_of("socks5://[::1]:1080") == Proxy("::1", 1080)


@pytest.mark.parametrize(
    "text", [b"", b"S3cret", b":S3cret", b"S3cret:", b"S3cret:" + b"S3cret" * 50, b"user:S3cret\nmore"]
)
def test_file_that_holds_no_login_is_named_without_what_it_holds(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "login"
    file.write_bytes(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="GD-206") as caught:
        proxy_of("socks5://127.0.0.1:1", str(file))
    assert str(file) in str(caught.value) and "S3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="GD-206"):
        proxy_of("socks5://127.0.0.1:1", str(tmp_path / "none"))


# -- resources ---------------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_proxy_that_stalls_holds_no_tunnel_and_no_descriptor_longer_than_the_patience() -> None:
    with answering(lambda connection: None) as proxy, closing(Tunnels(proxy, 0.3)) as tunnels:
        before, told = descriptors(), list[Any]()
        for number in range(64):
            tunnels.open(number, "127.0.0.1", 9)
        until("all are given up", lambda: told.extend(tunnels.collect()) or len(told) == 64)
        assert {each.number for each in told if isinstance(each, Unreached)} == set(range(64))
        until("nothing is left", lambda: not tunnels._tunnels)
        until("descriptors are closed", lambda: descriptors() <= before + 64)  # those of the server
    assert not any(thread.name == "gossipdp-proxy" for thread in threading.enumerate())


def test_dial_that_is_over_ends_its_tunnels_at_once(net: Net) -> None:
    with answering(lambda connection: None) as proxy:
        dialler = net.peer(listen=None, proxy=proxy, limits=replace(PATIENT, connect=600.0))
        assert dialler.send(b"", "127.0.0.1:9", Lane.CONTROL, PING)
        tunnels = dialler._wire._tunnels
        until("the tunnels begin", lambda: len(tunnels._tunnels) == len(Lane))
        [dial] = dialler._links._dialling._dials.values()
        dialler._links.close_connections(dial.link)
        until("the tunnels end", lambda: not tunnels._tunnels)


def test_close_waits_for_no_proxy_that_stalls(net: Net) -> None:
    with answering(lambda connection: None) as proxy:
        dialler = net.peer(listen=None, proxy=proxy, limits=replace(PATIENT, connect=600.0))
        assert dialler.send(b"", "127.0.0.1:9", Lane.CONTROL, PING)
        tunnels = dialler._wire._tunnels
        until("the tunnels begin", lambda: len(tunnels._tunnels) == len(Lane))
        net.close(dialler)
        assert not tunnels._thread.is_alive() and not tunnels._tunnels and not tunnels._folder.exists()


def stalls_after_the_handshake(connection: socket.socket) -> None:
    says(b"\x05\x00", GRANTED)(connection)
    connection.sendall(b"\xff")


def dialled(tunnels: Tunnels) -> socket.socket:
    """The other end of tunnel 0, as libzmq dials it."""
    found = list[Any]()
    until("the proxy reaches the target", lambda: found.extend(tunnels.collect()) or found)
    near = socket.socket(socket.AF_UNIX)
    near.connect(found[0].endpoint.removeprefix("ipc://"))
    return near


@pytest.mark.parametrize("closes", [True, False], ids=["closed-by-libzmq", "open"])
def test_tunnel_whose_proxy_takes_nothing_more_ends(monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    """Its buffers are full, so neither end hears of the other."""
    monkeypatch.setattr(proxies, "STALLED", 0.3)
    monkeypatch.setattr(proxies, "FLUSH", 0.3)
    with answering(stalls_after_the_handshake) as proxy, closing(Tunnels(proxy, 60.0)) as tunnels:
        tunnels.open(0, "127.0.0.1", 9)
        with dialled(tunnels) as near:
            fill(near)
            if closes:
                near.close()
            until("the tunnel ends", lambda: not tunnels._tunnels)


def test_tunnel_ends_with_libzmq_s_connection__though_the_proxy_keeps_its_own_open() -> None:
    with answering(stalls_after_the_handshake) as proxy, closing(Tunnels(proxy, 60.0)) as tunnels:
        tunnels.open(0, "127.0.0.1", 9)
        dialled(tunnels).close()
        until("the tunnel ends", lambda: not tunnels._tunnels)


def fill(near: socket.socket) -> int:
    """Send until nothing more is taken; the number of bytes sent."""
    near.settimeout(0.2)
    sent = 0
    with suppress(TimeoutError):
        while True:
            sent += near.send(bytes(1 << 14))
    return sent


def test_last_words_leave_though_the_peer_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "LAST", 60.0)
    monkeypatch.setattr(watch, "GOODBYE", 120.0)
    received, reads = list[int](), threading.Event()

    def answer(connection: socket.socket) -> None:
        stalls_after_the_handshake(connection)
        reads.wait()
        while data := connection.recv(1 << 14):
            received.append(len(data))

    with answering(answer) as proxy:
        tunnels = Tunnels(proxy, 60.0)
        tunnels.open(0, "127.0.0.1", 9)
        with dialled(tunnels) as near:
            sent = fill(near)
        ends = threading.Thread(target=tunnels.close)
        ends.start()
        reads.set()
        ends.join()
    assert sum(received) == sent


@pytest.mark.needs("microsocks")
def test_message_without_end_through_a_proxy__the_link_is_closed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq keeps the frames of a message until its last one, and the kernel counts no bytes of Unix sockets."""
    monkeypatch.setattr(zmq_wire, "LOOK", 0.0)
    with serving(microsocks()) as proxy:
        reader, hostile = net.peer(listen=None, proxy=proxy), net.peer()
        reader._wire._limits = replace(PATIENT, queue_bytes=1 << 20)
        with Relay(hostile.port, most=4 << 20) as relay:
            assert reader.send(b"", f"127.0.0.1:{relay.port}", Lane.CONTROL, PING)
            net.until(lambda: net.events(hostile, Received))
            assert hostile.send(name(reader), "", Lane.DATA, [b"\x93x", bytes(4 << 20), bytes(4 << 20)])
            net.until(lambda: net.events(reader, Flooded))


@pytest.mark.needs("microsocks")
def test_many_targets_at_once(net: Net) -> None:
    with serving(microsocks()) as proxy:
        dialler, listeners = net.peer(listen=None, proxy=proxy), [net.peer() for _ in range(16)]
        for listener in listeners:
            assert dialler.send(name(listener), at(listener), Lane.CONTROL, PING)
        net.until(lambda: all(net.events(listener, Received) for listener in listeners))
