"""The link between a daemon and a training process: real sockets, real shared memory, waits only on events."""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.config import Network
from gossipdp.errors import HardwareError, RemoteProtocolError, UnreachableError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import link as links
from gossipdp.runtime.link import server as link_server
from gossipdp.runtime.link import trainer as trainer_module
from gossipdp.runtime.link.messages import (
    LINK_VERSION,
    MAX_SPANS,
    decode_from_daemon,
    decode_from_training,
    encode,
    spans,
)
from gossipdp.runtime.link.region import Allocation, Region, read_blob, write_blob

SCHEMA = Schema.of([("weight", (30, 40), "float32", "parameter"), ("mean", (5,), "float32", "buffer")])
DEADLINE = 20_000
"""milliseconds; only a broken test waits this long"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[links.LinkServer]:
    server = links.LinkServer(tmp_path)
    yield server
    server.close()


def pump(server: links.LinkServer, until: type | None = None) -> list[links.LinkEvent]:
    """The server's events now, or up to the first event of the type `until`."""
    events: list[links.LinkEvent] = []
    while True:
        poll = select.poll()
        for fd in server.filenos():
            poll.register(fd, select.POLLIN)
        waiting = until is not None and not any(isinstance(event, until) for event in events)
        ready = poll.poll(DEADLINE if waiting else 0)
        if not ready:
            assert not waiting, f"no {until} after {events}"
            return events
        for fd, _ in ready:
            events += server.handle(fd)


def attached(server: links.LinkServer, home: Path, schema: Schema = SCHEMA) -> links.Link:
    """A training process with its region, which has written its model."""
    link = links.Link.connect(home)
    link.hello(schema)
    assert [type(event) for event in pump(server)] == [links.Attached]
    assert link.receive() == [links.RegionReady(schema.size)]
    assert link.send(links.Ready())
    assert pump(server) == [links.ModelWritten()]
    return link


# -- the dialogue -----------------------------------------------------------------------------------------------


def test_the_whole_dialogue(server: links.LinkServer, tmp_path: Path) -> None:
    link = links.Link.connect(tmp_path)
    assert link.receive() == [] and link.region is None
    link.hello(SCHEMA)
    assert pump(server) == [links.Attached(SCHEMA.to_bytes(), 1, os.getpid())]
    (ready,) = link.receive()
    assert ready == links.RegionReady(SCHEMA.size) and link.region is not None
    link.region.x[:] = np.arange(SCHEMA.size)
    link.send(links.Ready())
    assert pump(server) == [links.ModelWritten()]
    assert server.region is not None and server.region.x[17] == 17.0
    server.send(links.Waiting("the network's model", 0.5))
    server.region.x[:] = 1.0
    server.send(links.Session(7, 50, 123, 8192))
    assert link.receive() == [links.Waiting("the network's model", 0.5), links.Session(7, 50, 123, 8192)]
    assert link.region.x[3] == 1.0
    link.send(links.Submit(7, 1, 0, 50, 400, 2.5))
    link.send(links.Applied(7, 1))
    link.send(links.Report(7, 2.25, 0.125, 3))
    assert pump(server) == [
        links.Submitted(7, 1, 0, 50, 400, 2.5),
        links.SlotApplied(7, 1),
        links.Reported(7, 2.25, 0.125, 3),
    ]
    server.region.slots[1][5] = 4.0
    for message in (
        links.Slot(7, 1, links.spans((0,))),
        links.Taken(1),
        links.Taken(2, "nan"),
        links.Pace(20, 200, 1600),
    ):
        server.send(message)
        assert link.receive() == [message]
    assert link.region.slots[1][5] == 4.0 and link.region.slots[0][5] == 0.0
    link.close()
    assert pump(server) == [links.Detached("it ended")]
    assert server.region is None


def test_daemon_leaves__closing_is_sent_and_the_end_seen(server: links.LinkServer, tmp_path: Path) -> None:
    link = attached(server, tmp_path)
    server.close()
    assert link.receive() == [links.Closing()]
    assert link.lost == "the daemon is gone" and link.receive() == []
    assert not link.send(links.Applied(1, 1))
    assert not socket_exists(tmp_path)


def test_refused_process_reads_the_reason_and_detaches(server: links.LinkServer, tmp_path: Path) -> None:
    link = attached(server, tmp_path)
    link.send(links.Report(0, 1.0))  # unread when the refusal comes: must not hide it
    server.refuse("GD-301", "this model is not the network's", "x" * 9999, "train the network's")
    (refused,) = link.receive()
    assert refused == links.Refused("GD-301", "this model is not the network's", "x" * 4000, "train the network's")
    assert pump(server) == [links.Detached("refused: GD-301")]
    assert link.lost


def test_second_process_is_refused_while_the_first_lives(server: links.LinkServer, tmp_path: Path) -> None:
    first = attached(server, tmp_path)
    second = links.Link.connect(tmp_path)
    second.hello(SCHEMA)
    assert pump(server) == []
    (refused,) = second.receive()
    assert isinstance(refused, links.Refused) and refused.code == "GD-503"
    assert refused.cause == "another training process is attached to this daemon"
    assert refused.seen == f"process {os.getpid()}"
    assert second.lost
    server.send(links.Taken(1))
    assert first.receive() == [links.Taken(1)]


def test_next_process_takes_the_place_of_one_that_is_gone(server: links.LinkServer, tmp_path: Path) -> None:
    first = attached(server, tmp_path)
    before = server.region
    first.send(links.Submit(1, 1, 0, 5, 5))
    first.close()
    second = links.Link.connect(tmp_path)
    second.hello(SCHEMA)
    listener = server.filenos()[0]
    server.handle(listener)
    arriving = server.filenos()[1]
    events = server.handle(arriving)  # the hello is seen before the end-of-file of the first
    assert [type(event) for event in events] == [links.Submitted, links.Detached]
    assert [type(event) for event in pump(server)] == [links.Attached]
    assert server.region is not before
    assert before is not None and before.x[0] == 0.0, "the old region stays mapped while somebody uses it"


TRAINER = """
import os, sys
from pathlib import Path
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.link import Link, Ready
link = Link.connect(Path(sys.argv[1]))
link.hello(Schema.of([("w", (9,), "float32", "parameter")]))
link.wait(20)
link.receive()
if sys.argv[2] == "forks" and os.fork() == 0:
    sys.stdout.write("forked")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)
link.send(Ready())
link.wait(20)
"""


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_killed_process_is_detached_at_once(server: links.LinkServer, tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", TRAINER, str(tmp_path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        pump(server, until=links.ModelWritten)
        assert process.stdin is not None and process.stdout is not None
        if how == "forks":  # as data loaders do: the child outlives the training process
            assert process.stdout.read(6) == b"forked"
        process.send_signal(signal.SIGKILL)
        assert pump(server, until=links.Detached) == [links.Detached("it ended")]
        process.stdin.close()


def test_process_that_does_not_read_is_given_up(
    server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "MAX_QUEUED", 4)
    link = attached(server, tmp_path)
    sent = 0
    while not server.dropped:
        server.send(links.Waiting("x" * 400, 0.5))
        sent += 1
        assert sent < 10_000
    assert pump(server) == [links.Detached("it does not read its messages")]
    assert server.dropped == 5 and link.region is not None


def test_messages_wait_for_a_full_socket(server: links.LinkServer, tmp_path: Path) -> None:
    link = attached(server, tmp_path)
    server.send(links.Waiting("first", 0.0))
    sent = [links.Waiting("first", 0.0)]
    trainer = server._trainer
    assert trainer is not None
    while len(trainer._queue) < 10:
        sent.append(links.Waiting(f"{len(sent)} " + "x" * 300, 0.5))
        server.send(sent[-1])
    received = link.receive()
    assert len(received) == len(sent) - 10
    link.send(links.Report(1))
    pump(server)
    assert received + link.receive() == sent
    assert server.dropped == 0


@pytest.mark.parametrize(
    "packet",
    [b"\xc1", b"x" * 3000, encode(links.Submit(1, 1, 0, 1, 1)), encode(links.Taken(1)), encode(links.Ready())],
    ids=["garbage", "long garbage", "no model yet", "the daemon's own word", "ready twice"],
)
def test_message_out_of_turn_ends_the_link(server: links.LinkServer, tmp_path: Path, packet: bytes) -> None:
    link = links.Link.connect(tmp_path)
    link.hello(SCHEMA)
    pump(server)
    if packet == encode(links.Ready()):
        link._connection.send(packet)
    link._connection.send(packet)
    (*_, last) = pump(server)
    assert isinstance(last, links.Detached) and last.reason != "it ended"
    assert [message for message in link.receive() if not isinstance(message, links.RegionReady)] == []
    assert link.lost


# -- several ranks ----------------------------------------------------------------------------------------------


def group(server: links.LinkServer, home: Path, world: int) -> list[links.Link]:
    """The ranks of a group, all in this process, each with the region."""
    leader = links.Link.connect(home)
    leader.hello(SCHEMA, world=world)
    assert pump(server) == [links.Attached(SCHEMA.to_bytes(), world, os.getpid())]
    others = [links.Link.connect(home) for _ in range(world - 1)]
    for rank, link in enumerate(others, 1):
        link.hello_as_rank(rank, os.getpid())
    assert pump(server) == []
    for link in (leader, *others):
        assert link.receive() == [links.RegionReady(SCHEMA.size)]
    return [leader, *others]


def test_ranks_share_one_region__and_a_message_counts_once_all_have_sent_it(
    server: links.LinkServer, tmp_path: Path
) -> None:
    ranks = group(server, tmp_path, 3)
    for rank, link in enumerate(ranks):
        assert link.region is not None
        link.region.x[rank] = rank + 1.0
    assert server.region is not None and server.region.x[:3].tolist() == [1.0, 2.0, 3.0]
    for order in ((2, 0, 1), (0, 1, 2)):
        number = order[1] + 1
        submit = links.Submit(1, number, 0, 5, 40, 1.0)
        said = [
            ([submit, *[links.Copied(1, number)] * 2], links.Submitted(1, number, 0, 5, 40, 1.0)),
            ([links.Applied(1, number)] * 3, links.SlotApplied(1, number)),
        ]
        if order[0] == 2:
            said.insert(0, ([links.Ready()] * 3, links.ModelWritten()))
        for words, event in said:
            for count, rank in enumerate(order, 1):
                ranks[rank].send(words[rank])
                assert pump(server) == ([event] if count == 3 else [])
    ranks[0].send(links.Submit(1, 3, 0, 5, 40, 1.0, True))
    assert pump(server) == [links.Submitted(1, 3, 0, 5, 40, 1.0)], "the leader alone has written it"
    for link in reversed(ranks):
        link.send(links.Farewell())
        link.close()
    assert pump(server) == [links.Detached("it ended")]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rank_that_goes_without_farewell_is_named_and_its_group_given_up(
    server: links.LinkServer, tmp_path: Path, rank: int
) -> None:
    ranks = group(server, tmp_path, 3)
    ranks[rank].close()
    reason = "it ended" if rank == 0 else f"rank {rank} (process {os.getpid()}) died"
    assert pump(server) == [links.RankLost(rank, os.getpid()), links.Detached(reason)]
    for link in ranks:
        link.receive()
        assert link.lost
    assert len(server.filenos()) == 1
    group(server, tmp_path, 2)


def test_rank_without_a_place_is_refused(server: links.LinkServer, tmp_path: Path) -> None:
    ranks = group(server, tmp_path, 2)
    for rank, leader in ((1, os.getpid()), (2, os.getpid()), (1, os.getpid() + 1)):
        link = links.Link.connect(tmp_path)
        link.hello_as_rank(rank, leader)
        assert pump(server) == []
        (refused,) = link.receive()
        assert isinstance(refused, links.Refused) and refused.code == "GD-503" and link.lost
    assert not ranks[1].receive() and not ranks[1].lost


@pytest.mark.parametrize("word", [links.Submit(1, 1, 0, 1, 1), links.Report(1)])
def test_rank_with_a_message_of_the_leader_ends_the_group(
    server: links.LinkServer, tmp_path: Path, word: links.FromTraining
) -> None:
    ranks = group(server, tmp_path, 2)
    ranks[1].send(word)
    (*_, last) = pump(server)
    assert isinstance(last, links.Detached) and "from rank 1" in last.reason


def test_last_messages_of_a_process_that_ends_without_reading_are_read(
    server: links.LinkServer, tmp_path: Path
) -> None:
    """The kernel reports the end before these messages, and they were lost once."""
    link = attached(server, tmp_path)
    server.send(links.Pace(5, 1, 1))
    link.send(links.Submit(1, 1, 0, 5, 40, 1.0))
    link.send(links.Report(1, 2.0))
    link.close()
    assert [type(event) for event in pump(server)] == [links.Submitted, links.Reported, links.Detached]


# -- arriving ---------------------------------------------------------------------------------------------------


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


# -- nobody there -----------------------------------------------------------------------------------------------


def test_no_daemon_is_gd_105(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        links.Link.connect(tmp_path)
    assert str(caught.value) == (
        "GD-105 no daemon on this host\n"
        f"  seen: {tmp_path}/link.sock: No such file or directory\n"
        "  do:   start one: `gossipdp up RUN.toml -- CMD` on the first host, `gossipdp join @invite -- CMD` on the"
        " others (--home or GOSSIPDP_HOME says which); GOSSIPDP_OFF=1 trains without"
    )
    assert caught.value.exit_code == 4


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


# -- where, and for whom ----------------------------------------------------------------------------------------


def socket_exists(home: Path) -> bool:
    return links.socket_path(home).exists()


def test_socket_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server = links.LinkServer(tmp_path / "new" / "home")
    finally:
        os.umask(before)
    status = os.stat(links.socket_path(tmp_path / "new" / "home"))
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "new" / "home").st_mode) == 0o700
    server.close()


def test_another_user_is_refused(server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = links.Link.connect(tmp_path)
    monkeypatch.setattr(link_server, "user_of", lambda connection: os.geteuid() + 1)
    link.hello(SCHEMA)
    assert pump(server) == [] and len(server.filenos()) == 1
    assert link.receive() == [] and link.lost
    monkeypatch.setattr("gossipdp.runtime.link.client.user_of", lambda connection: os.geteuid() + 1)
    with pytest.raises(UnreachableError, match="served by user"):
        links.Link.connect(tmp_path)


def test_long_home_gets_a_short_path_in_a_private_directory(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 100)
    path = links.socket_path(home)
    assert len(os.fsencode(path)) <= 107 and path.parent == Path(f"/tmp/gossipdp-{os.geteuid()}")
    assert path != links.socket_path(tmp_path / ("y" * 100))
    server = links.LinkServer(home)
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    attached(server, home)
    server.close()
    assert not path.exists()


def test_directory_open_to_others_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = tmp_path / "public"
    public.mkdir(mode=0o755)
    monkeypatch.setattr(link_server, "socket_path", lambda home: public / "0.sock")
    with pytest.raises(HardwareError, match="not a directory of this user alone"):
        links.LinkServer(tmp_path)
    monkeypatch.setattr("gossipdp.runtime.link.client.socket_path", lambda home: public / "0.sock")
    with pytest.raises(UnreachableError, match="not a directory of this user alone"):
        links.Link.connect(tmp_path)


def test_the_default_home_follows_the_environment() -> None:
    assert links.default_home({"GOSSIPDP_HOME": "/a/b"}) == Path("/a/b")
    assert links.default_home({"GOSSIPDP_NETWORK_NAME": "tiny"}) == Path.home() / ".gossipdp" / "tiny"
    assert links.default_home({}) == Path.home() / ".gossipdp" / Network().name


# -- shared memory ----------------------------------------------------------------------------------------------


def made(size: int) -> tuple[Allocation, Region]:
    allocation = Allocation(size)
    while not allocation.step():
        pass
    return allocation, Region(allocation.fd, size)


@pytest.mark.parametrize("size", [1, 1024, 1025, 100_000])
def test_region_is_three_aligned_vectors_that_both_sides_see(size: int) -> None:
    allocation, here = made(size)
    there = Region(allocation.fd, size)
    allocation.close()
    for place, (mine, theirs) in enumerate(zip((here.x, *here.slots), (there.x, *there.slots), strict=True)):
        assert mine.shape == (size,) and mine.dtype == np.float32 and mine.ctypes.data % 4096 == 0
        assert not mine.any()
        mine[:] = place + 1
        assert (theirs == place + 1).all()
    assert here.x[-1] == 1 and here.slots[0][0] == 2 and here.slots[1][0] == 3


def test_region_is_sealed_and_fully_allocated() -> None:
    allocation, region = made(5000)
    status = os.fstat(allocation.fd)
    assert status.st_blocks * 512 >= status.st_size == 3 * 20480
    for length in (0, status.st_size - 1, status.st_size + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(allocation.fd, length)
    with pytest.raises(PermissionError):
        fcntl.fcntl(allocation.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    allocation.close()
    region.x[-1] = 1.0


def test_large_region_is_allocated_in_pieces() -> None:
    allocation = Allocation(6 << 20)
    steps = 1
    while not allocation.step():
        steps += 1
    assert steps == 3
    allocation.close()


def test_region_that_could_shrink_or_has_another_length_is_refused() -> None:
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 3 * 4096)
    with pytest.raises(ValueError, match="sealed"):
        Region(fd, 10)
    os.close(fd)
    allocation, _ = made(10)
    with pytest.raises(ValueError, match="bytes, not"):
        Region(allocation.fd, 5000)
    allocation.close()


def test_no_memory_is_refused_with_gd_502(
    server: links.LinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Allocation) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Allocation, "step", full)
    link = links.Link.connect(tmp_path)
    link.hello(SCHEMA)
    assert pump(server) == [links.Detached("refused: GD-502")]
    (refused,) = link.receive()
    assert isinstance(refused, links.Refused) and refused.code == "GD-502" and "No space left" in refused.seen
    assert len(server.filenos()) == 1


def test_blob_is_read_within_its_limit() -> None:
    fd = write_blob(b"0123456789")
    assert read_blob(fd, 10) == b"0123456789" == read_blob(fd, 11)
    with pytest.raises(ValueError, match="at most 9"):
        read_blob(fd, 9)
    os.close(fd)


# -- words ------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 300)))
def test_spans_cover_exactly_the_chunks(chunks: set[int]) -> None:
    runs = spans(sorted(chunks))
    assert [chunk for first, last in runs for chunk in range(first, last + 1)] == sorted(chunks)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(runs))


def test_too_many_spans_become_one() -> None:
    chunks = range(0, 4 * MAX_SPANS, 2)
    assert spans(chunks) == ((0, 4 * MAX_SPANS - 2),)
    assert len(spans(chunks[:MAX_SPANS])) == MAX_SPANS
    assert len(encode(links.Slot(1, 1, spans([chunk + 2**31 for chunk in chunks[:MAX_SPANS]])))) < 65536


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_packets_are_messages_or_refused(packet: bytes) -> None:
    for decode in (decode_from_training, decode_from_daemon):
        try:
            decode(packet)
        except RemoteProtocolError:
            pass


def test_report_may_leave_every_field_unknown() -> None:
    report = decode_from_training(encode(links.Report(3)))
    assert isinstance(report, links.Report) and math.isnan(report.loss) and report.lost_steps == 0


def test_the_link_imports_neither_torch_nor_zmq() -> None:
    code = "import sys, gossipdp.runtime.link; print(sorted({'torch', 'zmq', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert ctypes.sizeof(ctypes.c_float) == 4


def test_home_that_may_not_be_read_expects_no_daemon(tmp_path, monkeypatch):
    (tmp_path / "identity.key").touch()
    assert links.expected(tmp_path) and not links.expected(tmp_path / "none")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    assert not links.expected(tmp_path)
