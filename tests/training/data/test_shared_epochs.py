"""Samplers and streams with daemons and real data loaders: the peers that are there share each epoch."""

import collections
import itertools
import json
import threading

import pytest
import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import DataLoader

from gossipdp.training.data import Sampler, Stream
from gossipdp.training.data import reader as reading
from gossipdp.training.data.passes import ReadingGroup
from gossipdp.training.data.plan import Plan
from tests.training.data.readers import SIZE, Numbers, daemon_reads, drawn, in_threads, rank_of


def test_two_ranks_with_a_daemon_share_each_epoch_once(monkeypatch, tmp_path, daemons):
    daemons.start(tmp_path / "a")
    with daemons.running():
        loaders, samplers = [], []
        for rank in range(2):
            rank_of(monkeypatch, 2, rank, tmp_path / "a")
            samplers.append(Sampler(Numbers(), block=64))
            loaders.append(DataLoader(Numbers(), batch_size=8, sampler=samplers[-1], num_workers=rank and 2))
        for epoch in range(3):
            parts = in_threads([lambda loader=loader: drawn(loader) for loader in loaders])
            assert len(parts[0]) == len(parts[1]) == SIZE // 2
            assert sorted(parts[0] + parts[1]) == list(range(SIZE))
            assert [sampler.epoch for sampler in samplers] == [epoch, epoch]


def _one_of_two(rank, directory):
    """A rank in its own process. Writes what it drew, and from what, to a file."""
    torch.set_num_threads(1)
    rendezvous = f"file://{directory}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    sampler = Sampler(Numbers(), block=64, home=directory / "a")
    parts = [drawn(DataLoader(Numbers(), batch_size=8, sampler=sampler)) for _ in range(2)]
    (directory / f"{rank}.json").write_text(json.dumps(parts))
    torch.distributed.destroy_process_group()


def test_two_processes_of_one_group_agree_on_who_they_are(tmp_path, daemons):
    daemon = daemons.start(tmp_path / "a")
    with daemons.running():
        torch.multiprocessing.spawn(_one_of_two, (tmp_path,), nprocs=2)
        for parts in zip(*(json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)), strict=True):
            assert len(parts[0]) == len(parts[1]) and sorted(parts[0] + parts[1]) == list(range(SIZE))
        # Both said goodbye as their processes ended: what they had been given last was used.
        daemons.until(lambda: daemon.peer.leasing.table(_plan(64).digest).epoch == 2)


@pytest.mark.parametrize(("world", "persistent"), [(2, False), (1, True)])
def test_loaders_processes_of_all_ranks_stream_each_epoch_once(monkeypatch, tmp_path, daemons, world, persistent):
    daemon = daemons.start(tmp_path / "a")
    with daemons.running():
        loaders = []
        for rank in range(world):
            rank_of(monkeypatch, world, rank, tmp_path / "a")
            stream = Stream(Numbers(), block=32, ahead=16)
            loaders.append(DataLoader(stream, batch_size=4, num_workers=2, persistent_workers=persistent))
        for _ in range(2):
            parts = in_threads([lambda loader=loader: drawn(loader) for loader in loaders])
            assert len({len(part) for part in parts}) == 1
            counts = collections.Counter(number for part in parts for number in part)
            assert sorted(counts) == list(range(SIZE)) and counts.total() <= SIZE + 2
        table = daemon.peer.leasing.table(stream.plan.digest)
        assert table.epoch + persistent == 2 and table.duplicates == 0


def test_two_hosts_share_each_epoch(monkeypatch, tmp_path, daemons):
    for number in range(2):
        daemons.start(tmp_path / str(number), number)
    with daemons.running():
        walks = []
        for number in range(2):
            group = ReadingGroup(bytes([number]) * 16, 1, 0, tmp_path / str(number))
            monkeypatch.setattr(ReadingGroup, "here", classmethod(lambda cls, _, group=group: group))
            walks.append(Sampler(SIZE, block=8, ahead=0))
        iterators = [iter(walk) for walk in walks]
        daemons.until(lambda: all(daemon_reads(each, walks[0], 2) for each in daemons.all))
        parts = [[], []]
        # The second is three times as fast.
        while iterators[0] or iterators[1]:
            for number, times in ((0, 1), (1, 3)):
                for _ in range(times):
                    if iterators[number] is not None:
                        sample = next(iterators[number], None)
                        if sample is None:
                            iterators[number] = None
                        else:
                            parts[number].append(sample)
                daemons.pass_time(0.2)
        counts = collections.Counter(parts[0] + parts[1])
        assert sorted(counts) == list(range(SIZE))
        assert counts.total() == SIZE and 1.5 < len(parts[1]) / len(parts[0]) <= 3.0
        assert [walk.epoch for walk in walks] == [0, 0]
        next(iter(walks[0]))
        assert walks[0].epoch == 1


def test_a_pass_has_a_length_where_no_others_read(monkeypatch, tmp_path, daemons):
    rank_of(monkeypatch, 3, 0, tmp_path / "a")
    sampler = Sampler(SIZE)
    loader = DataLoader(Numbers(), batch_size=8, sampler=sampler)
    assert len(sampler) == len(list(sampler)) == 334 and len(loader) == 42
    daemons.start(tmp_path / "a")
    with daemons.running():
        for each in (sampler, loader):
            with pytest.raises(TypeError, match="a number of steps"):
                len(each)
        assert len(list(loader)) == 42, "no other peer came"


def test_what_a_killed_reader_had_open_is_read_again_and_no_more(monkeypatch, tmp_path, daemons):
    daemons.start(tmp_path / "a")
    with daemons.running():
        rank_of(monkeypatch, 1, 0, tmp_path / "a")
        first = Sampler(SIZE, block=50, ahead=0)
        walk = iter(first)
        begun = [next(walk) for _ in range(501)]
        # As the kernel does at the end of a process that was killed: no word is said.
        first._reader._link.close()
        first._reader._kept.clear()
        monkeypatch.setattr(
            ReadingGroup, "here", classmethod(lambda cls, _: ReadingGroup(b"another" + bytes(9), 1, 0, tmp_path / "a"))
        )
        rest = list(Sampler(SIZE, block=50, ahead=0))
        assert sorted(begun[:500] + rest) == list(range(SIZE)) and begun[500] in rest


def test_a_daemon_started_anew_goes_on_with_the_pass(monkeypatch, tmp_path, daemons):
    before = daemons.start(tmp_path / "a")
    with daemons.running():
        rank_of(monkeypatch, 1, 0, tmp_path / "a")
        walk = iter(Sampler(SIZE, block=50, ahead=0))
        begun = [next(walk) for _ in range(500)]
        daemons.until(lambda: before.peer.leasing.table(_plan(50).digest).finished[0].bit_count() == 9)
        before.server.snapshot()
        before.server.save()
        daemons.kill(before)
        daemons.start(tmp_path / "a")
        rest = list(walk)
        # The training process takes the open block for finished, and no daemon knows.
        assert len(rest) == 550 and set(begun + rest) == set(range(SIZE))


def _plan(block):
    return Plan.of("data", "samples", SIZE, block, 0, True)


def test_a_daemon_that_stays_away_leaves_training_to_go_on_alone(monkeypatch, tmp_path, daemons):
    monkeypatch.setattr(reading, "RECONNECT_WITHIN", 0.0)
    daemon = daemons.start(tmp_path / "a")
    with daemons.running():
        rank_of(monkeypatch, 1, 0, tmp_path / "a")
        sampler = Sampler(SIZE, block=100)
        walk = iter(sampler)
        begun = [next(walk) for _ in range(150)]
        daemons.kill(daemon)
        assert len(begun + list(walk)) == SIZE
        assert sorted(sampler) == list(range(SIZE))


@pytest.mark.parametrize("between", [False, True], ids=["in the middle of a pass", "between two"])
def test_ranks_wait_for_their_daemon_and_none_goes_on_alone(monkeypatch, tmp_path, daemons, between):
    monkeypatch.setattr(reading, "RECONNECT_WITHIN", 0.0)
    waits = threading.Event()
    monkeypatch.setattr(reading.log, "warning", lambda *_: waits.set())
    before = daemons.start(tmp_path / "a")
    with daemons.running():
        samplers = []
        for rank in range(2):
            rank_of(monkeypatch, 2, rank, tmp_path / "a")
            samplers.append(Sampler(SIZE, block=50, ahead=0))
        walks = [iter(sampler) for sampler in samplers]
        parts = [list(itertools.islice(walk, SIZE if between else 200)) for walk in walks]
        before.server.snapshot()
        before.server.save()
        daemons.kill(before)
        rest = [iter(()), iter(())]

        def go_on(rank):
            rest[rank] = list(samplers[rank] if between else walks[rank])

        threads = [threading.Thread(target=go_on, args=(rank,)) for rank in range(2)]
        threads[0].start()
        waits.wait()
        daemons.start(tmp_path / "a")
        threads[1].start()
        for thread in threads:
            thread.join()
        assert len(rest[0]) == len(rest[1])
        assert {*rest[0], *rest[1]} | (set() if between else {*parts[0], *parts[1]}) == set(range(SIZE))
        assert not any(sampler._reader.alone for sampler in samplers)


def test_a_late_reader_begins_with_the_networks_epoch(monkeypatch, tmp_path, daemons):
    for number in range(2):
        daemons.start(tmp_path / str(number), number)
    with daemons.running():
        samplers = []
        for number in range(2):
            group = ReadingGroup(bytes([number]) * 16, 1, 0, tmp_path / str(number))
            monkeypatch.setattr(ReadingGroup, "here", classmethod(lambda cls, _, group=group: group))
            samplers.append(Sampler(SIZE, block=100))
        for _ in range(3):
            assert sorted(samplers[0]) == list(range(SIZE))
        begun = iter(samplers[0])
        next(begun)
        walk = iter(samplers[1])
        next(walk)
        assert samplers[1].epoch == 3
