"""The daemon's end of readers' connections: allowed messages, number of readers, end of a group."""

import os
import socket
import stat

import pytest

from gossipdp.errors import HardwareError
from gossipdp.protocol.data.blocks import DataSet, Lease
from gossipdp.protocol.data.leasing import MAX_DATA, Leasing
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import Member, State
from gossipdp.runtime.link import data_client as link_data
from gossipdp.runtime.link import data_server
from gossipdp.runtime.link.data_client import Begin, Bye, DataLink, DataLost, Group, Next, Used, data_path, encode
from gossipdp.runtime.link.data_server import DataServer
from gossipdp.runtime.unix_sockets import address
from tests.protocol.membership.machines import membership_of


class Peer:
    """The part of a peer that a data server uses, alone in its network."""

    def __init__(self):
        from random import Random

        me = Member(bytes(32), "p0", "", 1, 0, State.ALIVE)
        membership = membership_of(me, Random(0), Outputs())
        self.leasing = Leasing(membership, incarnation=1, random=Random(0), outputs=Outputs(), now=0.0)


class Daemon:
    def __init__(self, home):
        self.peer, self.told = Peer(), []
        self.server = DataServer(home, lambda command: command(self.peer, 0.0), self.told.append)

    def pump(self):
        import select

        while True:
            poll = select.poll()
            for fd in self.server.filenos():
                poll.register(fd, select.POLLIN)
            ready = poll.poll(0)
            if not ready:
                return
            for fd, _ in ready:
                self.server.handle(fd)


@pytest.fixture
def daemon(tmp_path):
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.server.close()


def connect(daemon, tmp_path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with address(data_path(tmp_path)) as where:
        connection.connect(where)
    daemon.pump()
    return connection


def say(daemon, connection, *messages):
    """The answers, decoded; [b""] once the connection is closed."""
    for message in messages:
        connection.send(message if isinstance(message, bytes) else encode(message))
        daemon.pump()
    answers = []
    connection.setblocking(False)
    try:
        while packet := connection.recv(1 << 16):
            answers.append(link_data._to_reader.decode(packet))
        answers.append(b"")
    except BlockingIOError:
        pass
    return answers


def begin(**changes):
    fields = {
        "version": link_data.DATA_VERSION, "group": b"g" * 16, "world": 1, "rank": 0, "slot": 0,
        "data": b"d" * 16, "name": "data", "blocks": 8,
    }  # fmt: skip
    return Begin(**{**fields, **changes})


def test_reader_gets_its_pass_its_blocks_and_the_end(daemon, tmp_path):
    with connect(daemon, tmp_path) as reader:
        assert say(daemon, reader, begin()) == [link_data.Pass(1, 0, 1)]
        given = say(daemon, reader, *(Next(key) for key in range(9)))
        assert sorted(answer.block for answer in given[:8]) == list(range(8)) and given[8] == link_data.Over(8)
        say(daemon, reader, *(Used(0, block) for block in range(8)))
        assert daemon.peer.leasing.epoch(b"d" * 16) == 1


def test_socket_is_private_and_removed_with_the_server(tmp_path):
    daemon = Daemon(tmp_path)
    path = data_path(tmp_path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    daemon.server.close()
    daemon.server.close()
    assert not path.exists()
    path.write_text("of a daemon that was killed")
    Daemon(tmp_path).server.close()


def test_home_with_a_path_too_long_for_a_socket_whose_socket_was_deleted(tmp_path):
    home = tmp_path / ("h" * 120)
    home.mkdir()
    daemon = Daemon(home)
    data_path(home).unlink()
    daemon.server.tick(0.0)
    with connect(daemon, home) as reader:
        assert say(daemon, reader, begin()) == [link_data.Pass(1, 0, 1)]
    daemon.server.close()


def test_socket_that_cannot_be_made_is_an_error(tmp_path):
    with pytest.raises(HardwareError) as error:
        Daemon(tmp_path / "not there")
    assert error.value.code == "GD-104"


@pytest.mark.parametrize(
    "words",
    [
        [b"garbage"],
        [Next(0)],
        [Used(0, 0)],
        [Bye()],
        [begin(rank=1)],
        [begin(), begin(slot=1)],
        [begin(), begin(world=2)],
        [begin(blocks=8), begin(group=b"h" * 16)],
    ],
)
def test_reader_with_a_wrong_message_is_closed_and_others_are_not(daemon, tmp_path, words):
    with connect(daemon, tmp_path) as good, connect(daemon, tmp_path) as bad:
        say(daemon, good, begin(group=b"x" * 16, slot=3))
        assert say(daemon, bad, *words)[-1] == b""
        assert isinstance(say(daemon, good, Next(0))[0], link_data.Leased)


def test_another_version_and_too_many_data_sets_are_refused_with_a_reason(daemon, tmp_path):
    with connect(daemon, tmp_path) as reader:
        [denied] = say(daemon, reader, begin(version=99))
        assert denied.code == "GD-302" and "99" in denied.seen
    for number in range(MAX_DATA):
        daemon.peer.leasing.open(DataSet(bytes([number]) * 16, "data", 8), 0.0)
    with connect(daemon, tmp_path) as reader:
        [denied] = say(daemon, reader, begin())
        assert denied.code == "GD-309"


@pytest.mark.parametrize("word", [Next(0), Used(0, 0), begin(), Bye()])
def test_reader_that_goes_on_after_a_refusal_is_closed_and_others_are_not(daemon, tmp_path, word):
    readers = [connect(daemon, tmp_path) for _ in range(MAX_DATA + 1)]
    said = [say(daemon, reader, begin(data=bytes([n]) * 16))[0] for n, reader in enumerate(readers)]
    assert [isinstance(answer, link_data.Denied) for answer in said] == [False] * MAX_DATA + [True]
    say(daemon, readers[-1], word)
    assert all(isinstance(say(daemon, reader, Next(0))[0], link_data.Leased) for reader in readers[:-1])
    for reader in readers:
        reader.close()
    daemon.pump()


def test_messages_out_of_order_raise_nothing(daemon, tmp_path):
    two = {"world": 2}
    with connect(daemon, tmp_path) as one, connect(daemon, tmp_path) as other:
        [_, given] = say(daemon, one, begin(**two), Next(0))
        used = Used(given.epoch, given.block)
        # Asked for again after it was used, and then once all have settled it.
        say(daemon, one, used, Next(0))
        say(daemon, other, begin(**two, rank=1), Next(0), used)
        say(daemon, one, used)
        # A pass far ahead: what was known of this one is forgotten.
        say(daemon, other, begin(**two, rank=1, number=1000))
        assert say(daemon, one, Next(1)) == [b""]
    daemon.pump()
    with connect(daemon, tmp_path) as again:
        assert say(daemon, again, begin(**two, number=1))[0].number == 1


def test_reader_dies__its_blocks_are_leased_again(daemon, tmp_path):
    with connect(daemon, tmp_path) as reader:
        [_, leased] = say(daemon, reader, begin(), Next(0))
        assert list(daemon.peer.leasing.table(b"d" * 16).mine) == [Lease(leased.epoch, leased.block)]
    daemon.pump()
    assert daemon.peer.leasing.table(b"d" * 16).mine == {}


def test_process_of_the_next_pass_replaces_one_whose_end_was_not_noticed(daemon, tmp_path):
    with connect(daemon, tmp_path) as old:
        say(daemon, old, begin(), *(Next(key) for key in range(9)))
        with connect(daemon, tmp_path) as new:
            assert say(daemon, new, begin()) == [link_data.Pass(2, 1, 1)]
            [leased] = say(daemon, new, Next(0))
            old.close()
            daemon.pump()
            assert Lease(leased.epoch, leased.block) in daemon.peer.leasing.table(b"d" * 16).mine


def test_group_without_readers_stays_for_a_while(daemon, tmp_path):
    with connect(daemon, tmp_path) as reader:
        say(daemon, reader, begin())
        daemon.server.tick(100.0)
    daemon.pump()
    daemon.server.tick(101.0)
    daemon.server.tick(100.0 + data_server.AWAY)
    assert daemon.peer.leasing.readers(b"d" * 16) == 1
    daemon.server.tick(101.0 + data_server.AWAY)
    assert daemon.peer.leasing.readers(b"d" * 16) == 0


def test_connections_are_bounded(daemon, tmp_path, monkeypatch):
    monkeypatch.setattr(data_server, "MAX_READERS", 2)
    readers = [connect(daemon, tmp_path) for _ in range(3)]
    assert say(daemon, readers[2]) == [b""] and say(daemon, readers[0], begin()) == [link_data.Pass(1, 0, 1)]
    for reader in readers:
        reader.close()


def test_finished_blocks_are_kept_with_their_checkpoint(tmp_path):
    daemon = Daemon(tmp_path)
    with connect(daemon, tmp_path) as reader:
        [_, leased] = say(daemon, reader, begin(), Next(0))
        say(daemon, reader, Used(leased.epoch, leased.block))
        daemon.server.snapshot()
        [later] = say(daemon, reader, Next(1))
        say(daemon, reader, Used(later.epoch, later.block))
    daemon.server.save()
    daemon.server.close()
    again = Daemon(tmp_path)
    table = again.peer.leasing.table(b"d" * 16)
    assert table.finished == [1 << leased.block, 0]
    again.server.close()
    (tmp_path / data_server.STATE).write_text("[")
    damaged = Daemon(tmp_path)
    (told,) = damaged.told
    assert "data.json.damaged" in told and damaged.peer.leasing.table(b"d" * 16) is None
    damaged.server.close()


def test_reader_without_a_daemon__data_lost(tmp_path):
    with pytest.raises(DataLost):
        DataLink(tmp_path)


def test_daemon_ends__every_message_is_data_lost(daemon, tmp_path):
    link = DataLink(tmp_path)
    daemon.pump()
    daemon.server.close()
    with pytest.raises(DataLost):
        link.begin(Group(b"g" * 16, 1, 0, 0, b"d" * 16, "data", 8))
    with pytest.raises(DataLost):
        link.used(0, 0)
    link.bye()


def test_daemon_does_not_answer__data_lost(tmp_path, daemon, monkeypatch):
    monkeypatch.setattr(link_data, "ANSWER_WITHIN", 0.0)
    link = DataLink(tmp_path)
    with pytest.raises(DataLost, match="no answer"):
        link.next(0)
