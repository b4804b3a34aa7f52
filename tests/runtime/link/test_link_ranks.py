"""Several ranks of one replica at one daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gossipdp.runtime import link as links
from tests.runtime.link.training_process import SCHEMA, pump


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
