"""Processes that attach: admitted, refused or silent, and where the error leads in a home without a daemon."""

import errno
import os
import resource
import socket
from pathlib import Path

import pytest

from gossipdp.errors import DataError, HardwareError, MismatchError, UnreachableError
from gossipdp.runtime import descriptors
from gossipdp.runtime import link as links
from gossipdp.runtime.link import server as link_server
from gossipdp.runtime.link.messages import LINK_VERSION, decode_from_daemon, encode
from gossipdp.runtime.link.region import Allocation, write_blob
from gossipdp.runtime.link.wait_lines import AFTER, EVERY, WaitLines
from gossipdp.training.reasons import tell
from tests.runtime.link.training_process import SCHEMA, attached, pump


@pytest.mark.parametrize("what", ["no file", "garbage file", "another digest", "another version", "a pipe", "garbage"])
def test_bad_hello_is_refused(server: links.LinkServer, tmp_path: Path, what: str) -> None:
    data = b"garbage" if what == "garbage file" else SCHEMA.to_bytes()
    digest = bytes(16) if what == "another digest" else SCHEMA.digest
    hello = encode(links.Hello(LINK_VERSION + (what == "another version"), 1, 1, digest))
    fds = list(os.pipe()) if what == "a pipe" else [write_blob(data)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(links.socket_path(tmp_path)))
        socket.send_fds(connection, [b"\x00" if what == "garbage" else hello], [] if what == "no file" else fds[:1])
        assert pump(server) == []
        refused = decode_from_daemon(connection.recv(65536))
        assert isinstance(refused, links.Refused) and refused.code == "GD-302" and refused.seen
        assert connection.recv(10) == b""
    for fd in fds:
        os.close(fd)
    assert len(server.filenos()) == 1


def test_ranks_of_a_group_that_come_at_once_are_all_admitted(server: links.LinkServer, tmp_path: Path) -> None:
    leader = links.Link.connect(tmp_path)
    leader.hello(SCHEMA, world=40)
    assert pump(server) == [links.Attached(SCHEMA.to_bytes(), 40, os.getpid())]
    others = [links.Link.connect(tmp_path) for _ in range(39)]
    assert server.handle(server.filenos()[0]) == []
    for rank, link in enumerate(others, 1):
        link.hello_as_rank(rank, os.getpid())
    assert pump(server) == []
    assert all(link.receive() == [links.RegionReady(SCHEMA.size)] for link in others)


def test_error_that_a_process_tells_arrives_though_another_is_attached(
    server: links.LinkServer, tmp_path: Path
) -> None:
    leader = links.Link.connect(tmp_path)
    leader.hello(SCHEMA)
    pump(server)
    tell(tmp_path, MismatchError("GD-320", "apart", seen="rank 1"), alone=True, lost_steps=7)
    tell(tmp_path, DataError("GD-602", "full"))
    tell(tmp_path, DataError("GD-403", "only NaN"), ends=True)
    assert pump(server) == [
        links.Told("GD-320", "apart: rank 1", 6, True, 7),
        links.Told("GD-602", "full"),
        links.Told("GD-403", "only NaN", 8),
    ]
    assert leader.receive() == [links.RegionReady(SCHEMA.size)]


def test_error_is_told_nobody_where_no_daemon_is(tmp_path: Path) -> None:
    tell(tmp_path / "none", DataError("GD-602", "full"))
    tell(None, DataError("GD-602", "full"))


def test_more_connections_than_may_arrive_are_admitted_as_others_say_hello(
    server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_server, "MAX_ARRIVING", 3)
    leader = links.Link.connect(tmp_path)
    leader.hello(SCHEMA, world=11)
    assert pump(server) == [links.Attached(SCHEMA.to_bytes(), 11, os.getpid())]
    others = [links.Link.connect(tmp_path) for _ in range(10)]
    for rank, link in enumerate(others, 1):
        link.hello_as_rank(rank, os.getpid())
    assert pump(server) == []
    assert all(link.receive() == [links.RegionReady(SCHEMA.size)] for link in others)


def test_silent_connections_are_bounded(server: links.LinkServer, tmp_path: Path) -> None:
    silent = []
    for _ in range(link_server.MAX_ARRIVING + 12):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(links.socket_path(tmp_path)))
        silent.append(connection)
        pump(server)
    assert len(server.filenos()) == 1 + link_server.MAX_ARRIVING
    link = attached(server, tmp_path)
    assert link.region is not None
    for connection in silent:
        connection.close()
    pump(server)
    assert len(server.filenos()) == 2


def test_descriptors_do_not_leak(server: links.LinkServer, tmp_path: Path) -> None:
    attached(server, tmp_path).close()
    pump(server)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        attached(server, tmp_path).close()
        pump(server)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("number", "code", "do"),
    [
        (errno.ENOSPC, "GD-502", "free memory"),
        (errno.ENOMEM, "GD-502", "free memory"),
        (errno.EMFILE, "GD-104", "limit of open files"),
        (errno.EPERM, "GD-505", "gossipdp doctor"),
    ],
)
def test_memory_that_cannot_be_shared_is_refused_with_what_is_missing(
    server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str, do: str
) -> None:
    def full(self: Allocation) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Allocation, "step", full)
    link = links.Link.connect(tmp_path)
    link.hello(SCHEMA)
    assert pump(server) == [links.Detached(f"refused: {code}")]
    (refused,) = link.receive()
    assert isinstance(refused, links.Refused) and refused.code == code and do in refused.do
    assert os.strerror(number) in refused.seen
    assert len(server.filenos()) == 1


def test_a_model_that_does_not_fit_is_refused_before_memory_is_shared(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def shortage(parameters: int, shared: int) -> tuple[str, str] | None:
        asked.append((parameters, shared))
        return None if len(asked) == 1 else ("too little", "free some")

    server = links.LinkServer(tmp_path, shortage)
    first = attached(server, tmp_path)
    assert first.region is not None
    size = server.shared_bytes
    assert size == first.region.bytes > 8 * SCHEMA.size
    kept = server.region
    first.close()
    pump(server)
    assert server.shared_bytes == size, "the daemon still has it"
    second = links.Link.connect(tmp_path)
    second.hello(SCHEMA)
    assert pump(server) == [] and server.region is None
    (refused,) = second.receive()
    assert isinstance(refused, links.Refused)
    assert (refused.code, refused.seen, refused.do) == ("GD-502", "too little", "free some")
    assert asked == [(SCHEMA.size, 0), (SCHEMA.size, size)]
    del kept
    assert server.shared_bytes == 0
    server.close()


def test_no_daemon_is_gd_105(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        links.Link.connect(tmp_path)
    assert str(caught.value).partition("\n  more: ")[0] == (
        "GD-105 no daemon on this host\n"
        f"  seen: {tmp_path}/link.sock: No such file or directory\n"
        "  do:   start one: `gossipdp up --network NAME -- CMD` on the first host, `gossipdp join @invite -- CMD` on"
        " the others; or set GOSSIPDP_HOME to the home of one that runs; GOSSIPDP_OFF=1 trains without a daemon"
    )
    assert caught.value.exit_code == 4


def test_process_without_open_files__the_limit_is_named_and_no_daemon_is_missed(
    server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "_limit", 0)  # a training process has no reserve, as a daemon of other tests has
    link = links.Link.connect(tmp_path)
    link.hello(SCHEMA)
    assert pump(server)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # no file that another thread closes makes room
    try:
        with pytest.raises(UnreachableError, match="GD-105 too many open files") as caught:
            links.Link.connect(tmp_path)
        assert not link.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "no room for the files of a packet: Too many open files" in link.lost
    assert caught.value.seen == "Too many open files" and "ulimit -n" in caught.value.do
    link.close()


def test_no_daemon_of_a_home_that_was_not_named_says_that_it_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOSSIPDP_HOME", "GOSSIPDP_NETWORK_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UnreachableError) as caught:
        links.Link.connect(links.default_home())
    assert caught.value.seen == (
        f"{tmp_path}/.gossipdp/gossipdp/link.sock: No such file or directory (the default home: no other was named)"
    )


def test_socket_of_a_killed_daemon_is_gd_105_and_serves_again(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(links.socket_path(tmp_path)))
    stale.close()
    with pytest.raises(UnreachableError, match=r"GD-105.*\n.*Connection refused") as caught:
        links.Link.connect(tmp_path)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    server = links.LinkServer(tmp_path)
    attached(server, tmp_path)
    server.close()


def test_daemon_with_a_full_queue_is_told_apart_from_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy:
        busy.bind(str(links.socket_path(tmp_path)))
        busy.listen(0)
        waiting = links.Link.connect(tmp_path)
        with pytest.raises(UnreachableError, match=r"GD-105.*\n.*temporarily unavailable") as caught:
            links.Link.connect(tmp_path)
        assert isinstance(caught.value.__cause__, BlockingIOError)
        waiting.close()


def test_second_daemon_on_one_home_is_refused(server: links.LinkServer, tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"GD-104.*\n.*a daemon is listening there"):
        links.LinkServer(tmp_path)
    attached(server, tmp_path)


def test_closing_daemon_leaves_another_daemons_socket_alone(tmp_path: Path) -> None:
    first = links.LinkServer(tmp_path)
    os.unlink(links.socket_path(tmp_path))
    second = links.LinkServer(tmp_path)
    first.close()
    attached(second, tmp_path)
    second.close()


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's homes, with two that were made."""
    for name in ("GOSSIPDP_HOME", "GOSSIPDP_ATTEMPT", "GOSSIPDP_NETWORK_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("runs", "stopped"):
        (tmp_path / ".gossipdp" / name).mkdir(parents=True)
        (tmp_path / ".gossipdp" / name / "identity.key").touch()
    return tmp_path / ".gossipdp"


def advice(home: Path) -> str:
    with pytest.raises(UnreachableError, match="GD-105") as caught:
        links.Link.connect(home)
    return str(caught.value.do)


def test_the_home_of_a_daemon_that_runs_is_named(homes: Path) -> None:
    assert advice(links.default_home()).startswith("start one")
    server = links.LinkServer(homes / "runs")
    assert advice(links.default_home()) == f"name the home of the daemon that runs: GOSSIPDP_HOME={homes / 'runs'}"
    server.close()
    assert advice(links.default_home()).startswith("start one")


def test_under_a_supervisor_nothing_is_to_be_started(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_HOME", str(homes / "stopped"))
    assert not links.supervised(homes / "stopped")
    monkeypatch.setenv("GOSSIPDP_ATTEMPT", "0")
    assert links.supervised(homes / "stopped") and not links.supervised(homes / "runs")
    assert "supervisor restarts it" in advice(homes / "stopped") and str(homes / "stopped") in advice(homes / "stopped")


def test_short_waits_are_not_told_and_long_ones_are_told_again() -> None:
    lines = WaitLines()
    said = [(now, line) for now in range(100, 160) if (line := lines.look("the model" if now >= 102 else "", now))]
    assert [now for now, _ in said] == [102 + AFTER, 102 + AFTER + EVERY]
    assert said[1][1] == "waiting for the model (35 s so far)"
    assert lines.look("", 170) == "" and lines.look("", 999) == ""


def test_another_wait_begins_anew() -> None:
    lines = WaitLines()
    assert [lines.look("a", 0.0), lines.look("a", 4.9), lines.look("b", 5.0), lines.look("b", 9.9)] == [""] * 4
    assert lines.due == 10.0 and lines.look("b", 10.0) == "waiting for b (5 s so far)"
