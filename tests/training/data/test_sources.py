"""Token files, blocks, and data that is refused."""

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import DataLoader

from gossipdp.errors import ConfigError, DataError
from gossipdp.protocol.wire.messages import MAX_BLOCKS
from gossipdp.training.data import Sampler, Stream, TokenFile
from gossipdp.training.data.plan import Plan
from tests.training.data.readers import Lines, rank_of


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
        (lambda home: TokenFile(_written(home, 9), 4), "not a file of tokens"),
        (lambda home: TokenFile(_written(home, 8), 8), "not a file of tokens"),
        (lambda home: Sampler(0), "empty"),
        (lambda home: Sampler(iter([1])), "needs a data set with a length"),
        (lambda home: Sampler(10**6, block=10), "too many blocks"),
        (lambda home: Sampler(10, name="n" * 49), "1 to 48 bytes"),
        (lambda home: Sampler(10, ahead=-1), "fewer than 0 samples"),
        (lambda home: Stream(iter([1]), size=3), "more than once"),
        (lambda home: Stream(Lines()), "number of samples of this stream is unknown"),
        (lambda home: Stream(Lines(), by="shards"), "divided by shards"),
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
