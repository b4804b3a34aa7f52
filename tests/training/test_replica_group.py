"""Ranks of one host, as real processes under DDP and FSDP2: one peer, and the same bits in all of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ledger_daemon import LedgerDaemon
from moments_daemon import MomentsDaemon

from gossipdp.runtime import link as links

DEADLINE = 90.0


def ranks_of(home: Path, kind: str, world: int) -> list[subprocess.Popen[str]]:
    script = Path(__file__).with_name("host_of_ranks.py")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "GOSSIPDP_HOME": str(home / "nobody")}
    return [
        subprocess.Popen(
            [sys.executable, str(script), str(home), kind],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "world"), [("ddp", 2), ("fsdp", 3)])
def test_ranks_of_a_host_are_one_peer_and_equal_bit_for_bit(tmp_path: Path, kind: str, world: int) -> None:
    """A daemon that dies and one that comes after it: the ranks follow both together."""
    processes = ranks_of(tmp_path, kind, world)
    random = np.random.default_rng(0)
    first = daemon = MomentsDaemon(tmp_path, every=3, alpha=0.7, mu=0.5, moments_every=0)
    until = time.monotonic() + DEADLINE
    stopped = False
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        daemon.pump(0.02)
        if daemon.server.region is not None and daemon.session and not stopped:
            daemon.mix(0.01 * random.standard_normal(daemon.region.size).astype(np.float32))
            daemon.seal()
        if daemon is first and daemon.drained >= 6:
            first.server.close()
            daemon = MomentsDaemon(tmp_path, every=12, anchor=first.a, clock=1000)
        elif (
            daemon is not first
            and daemon.drained >= 4
            and daemon.held is not None
            and daemon.last is not None
            and not stopped
        ):
            stopped = True
            (tmp_path / "stop").touch()
    daemon.pump()
    daemon.server.close()
    outputs = []
    for process in processes:
        process.kill()
        outputs.append(process.communicate()[0])
    assert [process.returncode for process in processes] == [0] * world, "\n".join(outputs)

    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(world)]
    assert all(rank["trail"] == ranks[0]["trail"] for rank in ranks), "after every step"
    before, after = ([rank["buffers"][place::2] for rank in ranks] for place in (0, 1))
    assert all(each == after[0] for each in after) and len(set(after[0])) > 6, "buffers too"
    assert before[0] != before[1], "each rank has seen other data"
    assert len(set(ranks[0]["trail"])) == len(ranks[0]["trail"]) == ranks[0]["step"]
    assert [rank["known"] for rank in ranks] == [[False, True]] * world, "all know of the daemon that died"
    assert [rank["after"] for rank in ranks] == [True] * world
    for rank in ranks:
        assert rank["refused"] == {"nobody": "GD-105", "columns": "GD-304", "fsdp 1": "GD-304"}, "none waits for ever"

    assert first.drained >= 6 and daemon.drained >= 4
    assert not first.told and daemon.told[:2] == ["second", "first"], "moments are whole: every rank told its part"
    for served in (first, daemon):
        attached = [event for event in served.events if isinstance(event, links.Attached)]
        assert [event.world for event in attached] == [world]
        assert not [event for event in served.events if isinstance(event, links.RankLost)], served.events[-6:]
    submits = [event for event in first.events if isinstance(event, links.Submitted)]
    assert [event.steps for event in submits[:3]] == [3, 3, 3], "a snapshot is taken at the step that is due"
    assert all(event.samples == 4 * world * event.steps for event in submits), "all ranks' samples"
    assert daemon.schema is not None and daemon.a is not None and daemon.last is not None
    if kind == "ddp":
        # The leader hands over the last steps by itself.
        for entry in daemon.schema.entries:
            if entry.kind == "parameter" and entry.dtype == "float32":
                found = np.float32(ranks[-1]["weights"][entry.name])
                assert np.array_equal(daemon.last[entry.offset : entry.stop], found), entry.name


@pytest.mark.processes
def test_ranks_of_a_host_add_corrections_when_the_mode_of_synchrony_says(tmp_path: Path) -> None:
    """Under a daemon that says overlap, and under the next one, which says sync."""
    random = np.random.default_rng(0)

    def move(daemon: LedgerDaemon) -> None:
        daemon.mix(0.01 * random.standard_normal(daemon.region.size).astype(np.float32))
        daemon.seal()

    def words(daemon: LedgerDaemon) -> list[links.Submitted | links.SlotApplied]:
        return [event for event in daemon.events if isinstance(event, links.Submitted | links.SlotApplied)]

    processes = ranks_of(tmp_path, "ddp", 2)
    overlap = LedgerDaemon(tmp_path, every=4, mode="overlap")
    until = time.monotonic() + DEADLINE
    while overlap.drained < 4 and time.monotonic() < until:
        overlap.pump(0.02)
        if overlap.session:
            move(overlap)
    overlap.server.close()
    sync = LedgerDaemon(tmp_path, every=3, mode="sync", anchor=overlap.a, settles=move)
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        sync.pump(0.02)
        if sync.drained >= 4:
            (tmp_path / "stop").touch()
    sync.pump()
    sync.server.close()
    outputs = []
    for process in processes:
        process.kill()
        outputs.append(process.communicate()[0])
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)

    assert overlap.drained >= 4 and sync.drained >= 4
    for word, after in itertools.pairwise(words(overlap)):
        if isinstance(word, links.SlotApplied):
            assert isinstance(after, links.Submitted) and after.applied == word.slot, "right before a snapshot"
    rounds = words(sync)
    for snapshot, slot in zip(rounds[::2], rounds[1::2], strict=False):
        assert isinstance(snapshot, links.Submitted) and isinstance(slot, links.SlotApplied), "right after a snapshot"
        assert (snapshot.steps, snapshot.applied) == (3, slot.slot - 1)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["trail"] == ranks[1]["trail"] and len(set(ranks[0]["trail"])) == ranks[0]["step"]
    assert ranks[0]["buffers"][1::2] == ranks[1]["buffers"][1::2]


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "world"), [pytest.param("ddp", 2, marks=pytest.mark.long), ("fsdp", 2)])
def test_rank_that_dies_is_named_and_a_group_of_another_size_goes_on(tmp_path: Path, kind: str, world: int) -> None:
    daemon = LedgerDaemon(tmp_path, every=4)
    processes = ranks_of(tmp_path, kind, world)
    until = time.monotonic() + DEADLINE

    def pump(done) -> None:
        while not done() and time.monotonic() < until:
            daemon.pump(0.02)
        assert done(), daemon.events[-5:]

    def seen(kind: type) -> list[links.LinkEvent]:
        return [event for event in daemon.events if isinstance(event, kind)]

    pump(lambda: len(seen(links.Submitted)) >= 3)
    processes[1].kill()
    pump(lambda: seen(links.RankLost) and seen(links.Detached))
    lost = seen(links.RankLost)[0]
    assert isinstance(lost, links.RankLost) and (lost.rank, lost.pid) == (1, processes[1].pid)
    for process in processes:
        process.kill()
        process.communicate()
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    anchor, submitted = np.array(daemon.a), len(seen(links.Submitted))
    processes = ranks_of(tmp_path, kind, world + 1)
    pump(lambda: len(seen(links.Submitted)) >= submitted + 2)
    assert [event.world for event in seen(links.Attached)] == [world, world + 1]
    assert daemon.a is not None and 0.0 < np.abs(daemon.a - anchor).max() < 0.5, "from the anchor"
    (tmp_path / "stop").touch()
    pump(lambda: all(process.poll() is not None for process in processes))
    outputs = [process.communicate()[0] for process in processes]
    daemon.server.close()
    assert [process.returncode for process in processes] == [0] * (world + 1), "\n".join(outputs)
    resumed = [json.loads((tmp_path / f"rank{rank}.json").read_text())["resumed"] for rank in range(world + 1)]
    assert resumed == [resumed[0], *[-1.0] * world] and resumed[0] >= 4 and resumed[0] % 4 == 0, "with their moments"
