"""Ranks of one host, as real processes under DDP and FSDP2: one peer, and the same bits in all of them."""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from gossipdp.runtime import link as links
from simulations.processes.namespaces.processes import Process, environment, kept_port
from simulations.processes.progress import until
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.moments_daemon import MomentsDaemon

HOST = Path(__file__).with_name("host_of_ranks.py")
RanksOf: TypeAlias = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def ranks_of(tmp_path: Path) -> Iterator[RanksOf]:
    """Starts the ranks of a host, and kills them after the test."""
    with contextlib.ExitStack() as begun:

        def start(kind: str, world: int, *dies_at: str) -> list[subprocess.Popen[str]]:
            processes = [
                begun.enter_context(
                    subprocess.Popen(
                        [sys.executable, str(HOST), str(tmp_path), kind, *dies_at],
                        env=variables(tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world)),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
                for rank in range(world)
            ]
            for process in processes:
                begun.callback(process.kill)
            return processes

        yield start


def variables(home: Path, **more: str) -> dict[str, str]:
    return environment(GOSSIPDP_HOME=str(home / "no daemon"), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", **more)


def pump_until(daemon: LedgerDaemon, done: Callable[[], object]) -> None:
    until("what the ranks are to do", done, meanwhile=lambda: daemon.pump(0.02))


def ended(processes: list[subprocess.Popen[str]]) -> Callable[[], bool]:
    return lambda: all(process.poll() is not None for process in processes)


@contextlib.contextmanager
def ends_well(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    """All processes have ended with 0 after this context. Their output is printed."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            print(process.communicate()[0])
    assert [process.returncode for process in processes] == [0] * len(processes)


def seen(daemon: LedgerDaemon, kind: type) -> list[Any]:
    return [event for event in daemon.events if isinstance(event, kind)]


def assert_is(weights: dict[str, list[float]], anchor: NDArray[np.float32], daemon: LedgerDaemon) -> None:
    """Assert that the weights are the anchor, bit for bit; bf16 ones the nearest to it."""
    assert daemon.schema is not None
    for entry in daemon.schema.entries:
        if entry.kind == "parameter":
            expected = torch.from_numpy(anchor[entry.offset : entry.stop]).to(getattr(torch, entry.dtype)).float()
            assert torch.equal(torch.tensor(weights[entry.name]), expected), entry.name


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "world"),
    [
        ("ddp", 2),
        pytest.param("zero", 2, marks=pytest.mark.long),
        pytest.param("fsdp", 3, marks=pytest.mark.long),
        pytest.param("offload", 2, marks=pytest.mark.long),
    ],
)
def test_ranks_of_a_host_are_one_peer_and_equal_bit_for_bit(
    tmp_path: Path, ranks_of: RanksOf, kind: str, world: int
) -> None:
    """A daemon that dies and one that comes after it: the ranks follow both together, or keep their parameters."""
    keeps = kind in ("fsdp", "offload")
    processes = ranks_of(kind, world)
    random = np.random.default_rng(0)
    first = daemon = MomentsDaemon(tmp_path, every=3, alpha=0.7, mu=0.5, moments_every=0)
    stopped = False

    def turn() -> None:
        nonlocal daemon, stopped
        daemon.pump(0.02)
        if daemon.server.region is not None and daemon.session and not stopped:
            push = 0.01 * random.standard_normal(daemon.region.size) + (0.0 if daemon.out else 0.5)
            daemon.mix(push.astype(np.float32))
            daemon.seal()
        if daemon is first and daemon.drained >= 6:
            first.server.close()
            daemon = MomentsDaemon(tmp_path, every=12, anchor=first.a, clock=1000, keeps=keeps, carried=first.carried)
        elif (
            daemon is not first
            and daemon.drained >= 4
            and (daemon.held is not None or kind == "zero")
            and daemon.last is not None
            and not stopped
        ):
            stopped = True
            (tmp_path / "stop").touch()

    with ends_well(processes):
        until(
            "the ranks end",
            ended(processes),
            moves=lambda: (daemon is first, min(daemon.drained, 6), stopped),
            meanwhile=turn,
        )
        daemon.pump()
        daemon.server.close()

    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(world)]
    assert all(rank["trail"] == ranks[0]["trail"] for rank in ranks), "after every step"
    before, after = ([rank["buffers"][place::2] for rank in ranks] for place in (0, 1))
    assert all(each == after[0] for each in after) and len(set(after[0])) > 6, "buffers too"
    assert before[0] != before[1], "each rank has seen other data"
    assert len(set(ranks[0]["trail"])) == len(ranks[0]["trail"]) == ranks[0]["step"]
    assert [rank["known"] for rank in ranks] == [[False, not keeps]] * world, "all know of the daemon that died"
    assert [rank["after"] for rank in ranks] == [True] * world
    for rank in ranks:
        assert rank["refused"] == {"no daemon": "GD-105", "columns": "GD-304", "fsdp 1": "GD-304"}, "none hangs"

    assert first.drained >= 6 and daemon.drained >= 4
    moments = [] if kind == "zero" else [1]
    assert not first.told and daemon.told[:1] == moments, "moments are whole: every rank told its part"
    for served in (first, daemon):
        attached = [event for event in served.events if isinstance(event, links.Attached)]
        assert [event.world for event in attached] == [world]
        assert not [event for event in served.events if isinstance(event, links.RankLost)], served.events[-6:]
    submits = [event for event in first.events if isinstance(event, links.Submitted)]
    assert 3 <= submits[0].steps <= 5, "when due, or a step later while a slot is sealed"
    assert min(event.steps for event in submits) >= 3, "and the last one is taken"
    assert all(event.samples == 4 * world * event.steps for event in submits), "all ranks' samples"
    assert daemon.schema is not None and daemon.a is not None and daemon.last is not None
    assert daemon.began is not None and np.array_equal(daemon.began, first.a) != keeps
    for entry in daemon.schema.entries:
        if entry.kind != "parameter":
            continue
        span, found = slice(entry.offset, entry.stop), np.float32(ranks[-1]["weights"][entry.name])
        way, drained = found - daemon.began[span], daemon.added[span]
        assert np.linalg.norm(way - drained) < np.linalg.norm(drained) / 3, f"{entry.name}: the rest are some steps"
        if not keeps and entry.dtype == "float32":
            handed = found + daemon.beyond[span]
            assert np.array_equal(daemon.last[span], handed), (
                f"{entry.name}: the leader hands over the last steps alone"
            )


@pytest.mark.long
@pytest.mark.processes
def test_ranks_of_a_host_add_corrections_when_the_mode_of_synchrony_says(tmp_path: Path, ranks_of: RanksOf) -> None:
    """Under a daemon that says overlap, and under the next one, which says sync."""
    random = np.random.default_rng(0)

    def move(daemon: LedgerDaemon) -> None:
        daemon.mix(0.01 * random.standard_normal(daemon.region.size).astype(np.float32))
        daemon.seal()

    def words(daemon: LedgerDaemon) -> list[links.Submitted | links.SlotApplied]:
        events = [event for event in daemon.events if isinstance(event, links.Submitted | links.SlotApplied)]
        return [event for event in events if not (isinstance(event, links.SlotApplied) and event.slot == 0)]

    processes = ranks_of("ddp", 2)
    overlap = LedgerDaemon(tmp_path, every=4, mode="overlap")

    def pump_and_move() -> None:
        overlap.pump(0.02)
        if overlap.session:
            move(overlap)

    until("four slots are added", lambda: overlap.drained >= 4, moves=lambda: overlap.drained, meanwhile=pump_and_move)
    overlap.server.close()
    sync = LedgerDaemon(tmp_path, every=3, mode="sync", anchor=overlap.a, settles=move, carried=overlap.carried)
    with ends_well(processes):
        pump_until(sync, lambda: sync.drained >= 4)
        (tmp_path / "stop").touch()
        pump_until(sync, ended(processes))
        sync.pump()
        sync.server.close()

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
@pytest.mark.parametrize(
    ("kind", "world", "again"),
    [
        ("ddp", 2, 1),
        pytest.param("ddp", 2, 3, marks=pytest.mark.long),
        pytest.param("fsdp", 2, 3, marks=pytest.mark.long),
        pytest.param("fsdp", 3, 2, marks=pytest.mark.long),
    ],
)
def test_rank_that_dies_is_named_and_a_group_of_another_size_goes_on(
    tmp_path: Path, ranks_of: RanksOf, kind: str, world: int, again: int
) -> None:
    """In the middle of its fourth round. With mode sync a slow daemon makes no round longer."""
    daemon = LedgerDaemon(tmp_path, every=4, mode="sync", settles=lambda _: None)
    processes = ranks_of(kind, world, "14")
    pump_until(daemon, lambda: processes[1].poll() is not None)
    pump_until(daemon, lambda: seen(daemon, links.RankLost) and seen(daemon, links.Detached))
    (lost,) = seen(daemon, links.RankLost)
    assert (lost.rank, lost.pid, processes[1].returncode) == (1, processes[1].pid, -signal.SIGKILL)
    for process in processes:
        process.kill()
        process.communicate()
    assert daemon.clock == 12, "what is lost is the two steps since the snapshot"

    (tmp_path / "rendezvous").unlink(missing_ok=True)
    assert daemon.a is not None
    anchor = daemon.a = daemon.a + np.float32(0.01)  # others have exchanged meanwhile
    processes = ranks_of(kind, again)
    with ends_well(processes):
        pump_until(daemon, lambda: len(seen(daemon, links.Submitted)) >= 5)
        (tmp_path / "stop").touch()
        pump_until(daemon, ended(processes))
    daemon.server.close()
    assert [event.world for event in seen(daemon, links.Attached)] == [world, again]
    assert [event.steps for event in seen(daemon, links.Submitted)[:5]] == [4] * 5, "none is counted twice"
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(again)]
    assert [rank["began"]["clock"] for rank in ranks] == [12] * again
    for rank in ranks:
        assert_is(rank["began"]["weights"], anchor, daemon)
    assert [rank["resumed"] for rank in ranks] == [12.0, *[-1.0] * (again - 1)], "with their moments"


def elastic(home: Path, port: int) -> list[Process]:
    """Two agents of torchrun, each with one rank of a group of one or two. They meet at the first."""
    soon = "join_timeout=90,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=8"
    group = ["--nnodes", "1:2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1", "--max-restarts", "3"]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "host", "--rdzv-conf"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *group, *meet]
    script = [str(HOST), str(home), "ddp"]
    return [
        Process([*launcher, f"{soon},is_host={first}", *script], home / f"agent{first}.log", variables(home))
        for first in (1, 0)
    ]


@pytest.mark.long
@pytest.mark.processes
def test_elastic_group_of_which_an_agent_dies_with_its_rank_goes_on_with_the_other(tmp_path: Path) -> None:
    keeper, daemon = kept_port(), LedgerDaemon(tmp_path, every=4)
    first, second = agents = elastic(tmp_path, keeper.getsockname()[1])

    def worlds() -> list[int]:
        return [event.world for event in seen(daemon, links.Attached)]

    def submitted(times: int) -> Callable[[], bool]:
        before = len(seen(daemon, links.Submitted))
        return lambda: len(seen(daemon, links.Submitted)) >= before + times

    try:
        pump_until(daemon, lambda: worlds()[-1:] == [2])
        pump_until(daemon, submitted(3))
        (rank,) = psutil.Process(second.pid).children()
        second.kill()
        rank.kill()
        pump_until(daemon, lambda: len(seen(daemon, links.Detached)) == len(worlds()))
        assert daemon.a is not None and [lost.pid for lost in seen(daemon, links.RankLost)] == [rank.pid]
        clock, anchor = daemon.clock, daemon.a + np.float32(0.01)
        daemon.a = anchor
        pump_until(daemon, lambda: worlds()[-1] == 1)
        pump_until(daemon, submitted(2))
        (tmp_path / "stop").touch()
        pump_until(daemon, lambda: first.code is not None)
    finally:
        left = [each for agent in agents if agent.code is None for each in psutil.Process(agent.pid).children()]
        for process in [*agents, *left]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        daemon.server.close()
        keeper.close()
    assert first.code == 0, (tmp_path / "agent1.log").read_text()
    assert worlds()[-2:] == [2, 1]
    told = json.loads((tmp_path / "rank0.json").read_text())
    assert told["began"]["clock"] == clock
    assert_is(told["began"]["weights"], anchor, daemon)
    assert told["resumed"] >= 4 and told["resumed"] % 4 == 0, "with its moments"
