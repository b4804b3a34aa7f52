"""Streams of lines, files and Hugging Face data sets: every sample once, by the peers that are there."""

import collections
import json

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import DataLoader

from gossipdp.training.data import Stream
from gossipdp.training.data.passes import ReadingGroup
from tests.training.data.readers import SIZE, Lines, daemon_reads, drawn, in_threads, rank_of


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
