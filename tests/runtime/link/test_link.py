"""The dialogue of a daemon and the ranks of a training process, over real sockets and real shared memory."""

import ctypes
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.errors import RemoteProtocolError
from gossipdp.runtime import link as links
from gossipdp.runtime.link import trainer as trainer_module
from gossipdp.runtime.link.messages import MOST_CHUNKS, chunk_bits, decode_from_daemon, decode_from_training, encode
from tests.runtime.link.training_process import SCHEMA, attached, pump, socket_exists


def test_the_whole_dialogue(server: links.LinkServer, tmp_path: Path) -> None:
    link = links.Link.connect(tmp_path)
    assert link.receive() == [] and link.region is None
    link.hello(SCHEMA)
    assert pump(server) == [links.Attached(SCHEMA.to_bytes(), 1, os.getpid())]
    (ready,) = link.receive()
    assert ready == links.RegionReady(SCHEMA.size) and link.region is not None
    link.region.buffers[0][:] = np.arange(SCHEMA.size)
    link.send(links.Ready())
    assert pump(server) == [links.ModelWritten()]
    assert server.region is not None and server.region.buffers[0][17] == 17.0
    server.send(links.Waiting("the network's model", 0.5))
    server.region.buffers[0][:] = 1.0
    server.send(links.Session(7, 50, 123, 8192))
    assert link.receive() == [links.Waiting("the network's model", 0.5), links.Session(7, 50, 123, 8192)]
    assert link.region.buffers[0][3] == 1.0
    assert server.region.take() is None, "the training process has the buffer until the model is loaded"
    link.send(links.Applied(7, 0))
    assert pump(server) == [links.SlotApplied(7, 0)]
    server.region.give(0)
    assert link.region.take() == 0 and server.region.take() is None
    link.send(links.Submit(7, 1, 0, 50, 400, 2.5, eval_loss=2.75))
    link.send(links.Applied(7, 1))
    link.send(links.Report(7, 2.25, 0.125, 3, eval_loss=2.75, unpinned=4096))
    assert pump(server) == [
        links.Submitted(7, 1, 0, 50, 400, 2.5, eval_loss=2.75),
        links.SlotApplied(7, 1),
        links.Reported(7, 2.25, 0.125, 3, eval_loss=2.75, unpinned=4096),
    ]
    server.region.buffers[1][5] = 4.0
    for message in (
        links.Slot(7, 1, links.chunk_bits((0,))),
        links.Taken(1),
        links.Taken(2, "nan"),
        links.Pace(20, 200, 1600),
    ):
        server.send(message)
        assert link.receive() == [message]
    assert link.region.buffers[1][5] == 4.0 and link.region.buffers[0][5] == 1.0
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
    assert pump(server) == [links.TurnedAway(os.getpid(), os.getpid())]
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
    assert before is not None and before.buffers[0][0] == 0.0, "the old region stays mapped while it is used"


TRAINER = """
import os, sys
from pathlib import Path
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.link import Link, Ready
link = Link.connect(Path(sys.argv[1]))
link.hello(Schema.of([("w", (9,), "float32", "parameter")]))
link.wait(1000)
link.receive()
if sys.argv[2] == "forks" and os.fork() == 0:
    sys.stdout.write("forked")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)
link.send(Ready())
sys.stdin.read()
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


@given(st.sets(st.integers(0, 300)))
def test_spans_cover_exactly_the_chunks(chunks: set[int]) -> None:
    runs = links.Slot(1, 1, chunk_bits(sorted(chunks))).spans
    assert [chunk for first, last in runs for chunk in range(first, last + 1)] == sorted(chunks)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(runs))


def test_slot_of_the_most_chunks_fits_a_packet() -> None:
    slot = links.Slot(1, 1, chunk_bits(range(0, MOST_CHUNKS, 2)))
    packet = encode(slot)
    assert len(packet) < 65536 and decode_from_daemon(packet) == slot


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
        link.region.buffers[0][rank] = rank + 1.0
    assert server.region is not None and server.region.buffers[0][:3].tolist() == [1.0, 2.0, 3.0]
    for order in ((2, 0, 1), (0, 1, 2)):
        number = order[1] + 1
        submit = links.Submit(1, number, 0, 5, 40, 1.0, eval_loss=2.0)
        said = [
            ([submit, *[links.Copied(1, number)] * 2], links.Submitted(1, number, 0, 5, 40, 1.0, eval_loss=2.0)),
            ([links.Applied(1, number)] * 3, links.SlotApplied(1, number)),
        ]
        if order[0] == 2:
            said.insert(0, ([links.Ready()] * 3, links.ModelWritten()))
        for words, event in said:
            for count, rank in enumerate(order, 1):
                ranks[rank].send(words[rank])
                assert pump(server) == ([event] if count == 3 else [])
    ranks[0].send(links.Submit(1, 3, 0, 5, 40, 1.0, True, eval_loss=2.0))
    assert pump(server) == [links.Submitted(1, 3, 0, 5, 40, 1.0, eval_loss=2.0)], "the leader alone has written it"
    for link in reversed(ranks):
        link.send(links.Farewell())
        link.close()
    assert pump(server) == [links.Detached("it has detached", left=True)]


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
