"""Samplers and streams, with real data loaders and their processes: every sample once, by the peers that are there."""

from __future__ import annotations

import collections
import itertools
import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import DataLoader, Dataset

from gossipdp.errors import ConfigError, DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.protocol.wire.messages import MAX_BLOCKS
from gossipdp.training.data import Sampler, Stream, TokenFile
from gossipdp.training.data import reader as reading
from gossipdp.training.data.passes import ReadingGroup
from gossipdp.training.data.plan import Plan, shuffled
from tests.training.data_daemons import DataDaemon, DataDaemons

SIZE = 1000


class Numbers(Dataset):
    """Sample i is i."""

    def __len__(self):
        return SIZE

    def __getitem__(self, number):
        return number


@pytest.fixture
def daemons() -> Iterator[DataDaemons]:
    yield DataDaemons()


def rank_of(monkeypatch, world, rank, home):
    """Readers made from now on are those of one rank of a group of `world`."""
    group = ReadingGroup(b"one training run"[:16], world, rank, home)
    monkeypatch.setattr(ReadingGroup, "here", classmethod(lambda cls, _: group))


def drawn(loader):
    return [int(number) for batch in loader for number in batch]


# -- alone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_alone_holds_every_sample_once_in_an_order_of_the_epoch(monkeypatch, tmp_path, workers):
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    orders = []
    for kind in (Sampler, Stream):
        source = kind(Numbers(), block=64, home=tmp_path)
        if kind is Sampler:
            loader = DataLoader(Numbers(), batch_size=8, sampler=source, num_workers=workers)
        else:
            loader = DataLoader(source, batch_size=8, num_workers=workers)
        for epoch in (0, 1, 0):
            source.set_epoch(epoch)
            orders.append(drawn(loader))
            assert sorted(orders[-1]) == list(range(SIZE))
        assert orders[-3] == orders[-1] != orders[-2]


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("kind", [Sampler, Stream])
def test_ranks_alone_take_disjoint_parts_of_one_length(monkeypatch, world, kind):
    parts = []
    for rank in range(world):
        rank_of(monkeypatch, world, rank, None)
        source = kind(Numbers(), block=64)
        source.set_epoch(3)
        chosen = {"dataset": source} if kind is Stream else {"dataset": Numbers(), "sampler": source}
        parts.append(drawn(DataLoader(**chosen, batch_size=8)))
    assert {len(part) for part in parts} == {-(-SIZE // world)}
    counts = collections.Counter(number for part in parts for number in part)
    assert sorted(counts) == list(range(SIZE)) and sum(counts.values()) - SIZE == -SIZE % world


def test_a_pass_without_shuffle_is_in_order(monkeypatch):
    rank_of(monkeypatch, 1, 0, None)
    assert list(Sampler(100, block=7, shuffle=False)) == list(range(100))


def test_a_pass_goes_on_in_the_middle(monkeypatch):
    rank_of(monkeypatch, 2, 1, None)
    sampler = Sampler(SIZE, block=64, ahead=10)
    sampler.set_epoch(5)
    walk = iter(sampler)
    begun = [next(walk) for _ in range(111)]
    state = sampler.state_dict()
    again = Sampler(SIZE, block=64, ahead=10)
    again.load_state_dict(state)
    again.set_epoch(5)
    rest = list(again)
    assert state["used"] == 100 and rest[:10] == begun[100:110] and begun[:100] + rest == list(_full(5))


def _full(epoch):
    sampler = Sampler(SIZE, block=64)
    sampler.set_epoch(epoch)
    return sampler


def test_state_of_other_data_is_refused(monkeypatch):
    rank_of(monkeypatch, 1, 0, None)
    with pytest.raises(DataError) as error:
        Sampler(100).load_state_dict(Sampler(101).state_dict())
    assert error.value.code == "GD-309"


# -- with daemons -----------------------------------------------------------------------------------------------------


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


def in_threads(actions):
    found = [None] * len(actions)

    def run(place):
        found[place] = actions[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


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
            with pytest.raises(TypeError, match="how many steps"):
                len(each)
        assert len(list(loader)) == 42, "no other peer came"


def daemon_reads(daemon: DataDaemon, walk, readers):
    return len(daemon.peer.leasing.table(walk.plan.digest).owners) == readers


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
        assert waits.wait(20)
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


# -- streams of other kinds -------------------------------------------------------------------------------------------


class Lines:
    """An iterable that begins anew, shuffled by the epoch as HF data sets are."""

    def __init__(self, size=SIZE):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.size).tolist())


class Files(Lines):
    """The same in shards. It divides itself among the processes of a loader."""

    num_shards = 100

    def __init__(self, numbers=range(SIZE)):
        self.numbers = list(numbers)

    def shard(self, num_shards, index):
        return Files(self.numbers[index::num_shards])

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from self.numbers if info is None else self.numbers[info.id :: info.num_workers]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("source", "size"), [(Lines(), 1000), (Lines(), 700), (Lines(), 1300), (Files(), None)])
def test_streams_give_every_sample_once(monkeypatch, tmp_path, daemons, workers, source, size):
    daemons.start(tmp_path / "a")
    with daemons.running():
        for home in (tmp_path / "a", None):
            parts = []
            for rank in range(2):
                rank_of(monkeypatch, 2, rank, home)
                stream = Stream(source, size=size, block=None if size is None else 50, ahead=8)
                parts.append(DataLoader(stream, batch_size=4, num_workers=workers))
            first, second = in_threads([lambda part=part: drawn(part) for part in parts])
            counts = collections.Counter(first + second)
            assert sorted(counts) == list(range(SIZE)) and counts.total() <= SIZE + max(1, workers)


def test_stream_of_two_hosts_is_shared(monkeypatch, tmp_path, daemons):
    for number in range(2):
        daemons.start(tmp_path / str(number), number)
    with daemons.running():
        streams = []
        for number in range(2):
            group = ReadingGroup(bytes([number]) * 16, 1, 0, tmp_path / str(number))
            monkeypatch.setattr(ReadingGroup, "here", classmethod(lambda cls, _, group=group: group))
            streams.append(Stream(Lines(), size=SIZE, block=10, ahead=0))
        walks = [iter(stream) for stream in streams]
        daemons.until(lambda: all(daemon_reads(each, streams[0], 2) for each in daemons.all))
        parts = in_threads([lambda walk=walk: list(walk) for walk in walks])
        counts = collections.Counter(parts[0] + parts[1])
        assert sorted(counts) == list(range(SIZE)) and counts.total() <= 1.1 * SIZE


@pytest.mark.filterwarnings("ignore")  # those of datasets are its own affair
@pytest.mark.parametrize(("files", "by"), [(1, "examples"), (12, "shards")])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_streamed_hf_data_set_is_read_once_from_its_files(monkeypatch, tmp_path, daemons, files, by, workers):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    paths = [tmp_path / f"{number:02}.jsonl" for number in range(files)]
    for number, path in enumerate(paths):
        path.write_text("".join(json.dumps({"sample": each}) + "\n" for each in range(number, SIZE, files)))
    files_of = {"data_files": [str(path) for path in paths], "cache_dir": str(tmp_path)}

    def source():
        """One rank only: data sets that several threads read at once lose their place."""
        return datasets.load_dataset("json", split="train", streaming=True, **files_of).shuffle(seed=3, buffer_size=50)

    daemons.start(tmp_path / "a")
    with daemons.running():
        parts = []
        for rank in range(2):
            rank_of(monkeypatch, 2, rank, tmp_path / "a")
            size, block = (SIZE, 50) if by == "examples" else (None, None)
            stream = Stream(source(), by=by, size=size, block=block, ahead=8)
            parts.append(DataLoader(stream, batch_size=4, num_workers=workers))
        orders = []
        for _ in range(2):
            batches = in_threads([lambda part=part: [*part] for part in parts])
            orders.append([batch["sample"].tolist() for rank in batches for batch in rank])
            counts = collections.Counter(number for batch in orders[-1] for number in batch)
            assert sorted(counts) == list(range(SIZE)) and counts.total() <= SIZE + max(1, workers)
        assert orders[0] != orders[1], "shuffled by the epoch"


class SharedEpoch:
    """Examples in an order that depends on the epoch, which all processes of a loader share, as in HF data sets."""

    def __init__(self):
        self.kept = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self.kept += epoch - self.kept

    def __iter__(self):
        return iter(np.random.default_rng(int(self.kept)).permutation(SIZE).tolist())


def test_loaders_processes_do_not_set_each_others_epoch(monkeypatch, tmp_path):
    rank_of(monkeypatch, 1, 0, None)
    source = SharedEpoch()
    stream = Stream(source, size=SIZE, block=50, shuffle=False, ahead=8)
    loader = DataLoader(stream, batch_size=4, num_workers=2)
    source.set_epoch(7)  # as another process might at any moment
    stream.set_epoch(1)
    order = np.random.default_rng(1).permutation(SIZE).reshape(-1, 2, 50)
    first, second = order[:, 0].reshape(-1, 4).tolist(), order[:, 1].reshape(-1, 4).tolist()
    assert [batch.tolist() for batch in loader] == [batch for pair in zip(first, second, strict=True) for batch in pair]
    assert int(source.kept) == 7, "nor the main process's"


def test_streams_of_one_source_do_not_set_each_others_epoch(monkeypatch, tmp_path):
    rank_of(monkeypatch, 1, 0, None)
    source = SharedEpoch()
    streams = [Stream(source, size=SIZE, block=50, shuffle=False, ahead=8) for _ in range(2)]
    source.set_epoch(7)
    for epoch, stream in enumerate(streams):
        stream.set_epoch(epoch)
        assert next(iter(stream)) == np.random.default_rng(epoch).permutation(SIZE)[0]
        assert int(source.kept) == 7, "as another rank has set it, and may be about to read"


# -- token files ------------------------------------------------------------------------------------------------------


def test_a_token_file_is_windows_side_by_side_each_once(monkeypatch, tmp_path):
    rank_of(monkeypatch, 1, 0, None)
    tokens = np.arange(1001, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    windows = TokenFile(tmp_path / "train.bin", 20)
    assert len(windows) == 50
    x, y = windows[49]
    assert x.tolist() == list(range(980, 1000)) and y.tolist() == list(range(981, 1001)) and x.dtype == torch.int64
    with pytest.raises(IndexError):
        windows[50]
    loader = DataLoader(Stream(windows, block=5), batch_size=4, num_workers=2)
    targets = torch.cat([y for _, y in loader]).flatten()
    assert sorted(targets.tolist()) == list(range(1, 1001))


@pytest.mark.parametrize(("size", "cut"), [(10, 256), (1 << 22, 256), ((1 << 22) + 1, 257), (10**9, 61036)])
def test_an_epoch_has_as_many_blocks_as_it_may_but_none_are_tiny(size, cut):
    plan = Plan.of("data", "samples", size, None, 0, True)
    assert plan.block == cut and plan.blocks <= MAX_BLOCKS


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda home: TokenFile(home / "none.bin", 8), "no such token file"),
        (lambda home: TokenFile(_written(home, 9), 4), "no file of tokens"),
        (lambda home: TokenFile(_written(home, 8), 8), "no file of tokens"),
        (lambda home: Sampler(0), "empty"),
        (lambda home: Sampler(iter([1])), "needs a data set with a length"),
        (lambda home: Sampler(10**6, block=10), "too many blocks"),
        (lambda home: Sampler(10, name="n" * 49), "1 to 48 bytes"),
        (lambda home: Sampler(10, ahead=-1), "fewer than 0 samples"),
        (lambda home: Stream(iter([1]), size=3), "more than once"),
        (lambda home: Stream(Lines()), "not known how many"),
        (lambda home: Stream(Lines(), by="shards"), "no shards"),
        (lambda home: Stream(Lines(), by="words"), "by shards or by examples"),
    ],
)
def test_bad_data_is_refused_with_what_was_seen(tmp_path, make, cause):
    with pytest.raises(DataError, match=cause) as error:
        make(tmp_path)
    assert error.value.code == "GD-309"


def _written(home, size):
    (home / "short.bin").write_bytes(bytes(size))
    return home / "short.bin"


def test_several_ranks_without_a_process_group_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as error:
        Sampler(10)
    assert error.value.code == "GD-306"


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000, 4097])
def test_the_shuffle_is_a_permutation_that_differs_with_epoch_and_seed(size):
    numbers = np.arange(size)
    orders = {tuple(shuffled(numbers, size, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert len(orders) == 6 or size < 64


def test_the_shuffle_is_the_same_everywhere():
    assert shuffled(np.arange(8), 1000, 7, 3).tolist() == PINNED
    assert Plan.of("data", "samples", 1000, 8, 7, True).samples(Lease(3, 0)).tolist() == PINNED


PINNED = [440, 7, 677, 735, 74, 404, 72, 394]
