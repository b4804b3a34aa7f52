"""Copies beside the training, and what waits for them, as far as that shows without a device."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.training.ranks import follower as followers
from gossipdp.training.ranks.follower import Follower
from gossipdp.training.session import Session
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.streams import NEAR, page_ranges, pin, pinned
from tests.training.ledger_daemon import LedgerDaemon


def batch_norms(mean: float) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4), nn.BatchNorm1d(4))
    for module in (model[1], model[3]):
        assert isinstance(module, nn.BatchNorm1d) and module.running_mean is not None
        module.running_mean.fill_(mean)
    return model


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_write_a_share_of_the_parameters_each_and_the_first_all_buffers(ranks: int) -> None:
    """As in DistributedDataParallel: the ranks' running averages differ, and the first rank's are saved."""
    layouts = [Layout(batch_norms(float(rank))) for rank in range(ranks)]
    size, trainable = layouts[0].schema.size, layouts[0].schema.trainable
    into, times = np.full(size, np.nan, np.float32), np.zeros(size, int)
    for rank, layout in enumerate(layouts):
        layout.read(into, rank, ranks)
        shares = list(layout.shares(rank, ranks))
        for _, _, start, stop in shares:
            times[start:stop] += 1
        assert sum(stop - start for *_, start, stop in shares if start < trainable) <= -(-trainable // ranks)
    expected = np.full(size, np.nan, np.float32)
    layouts[0].read(expected)
    assert np.array_equal(into, expected)
    padding = np.arange(size)[layouts[0].schema.padding]
    assert times.max() == 1 and np.array_equal(np.flatnonzero(times == 0), padding), "only padding belongs to no rank"


@pytest.mark.parametrize("change", ["load", "add"])
def test_no_correction_reaches_a_tensor_before_its_copy_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """With a second optimizer, or a slot right after a snapshot, no step comes between."""
    model = batch_norms(0.0)
    layout = Layout(model)
    before = [tensor.detach().clone() for tensor in layout.tensors]
    copied: list[list[torch.Tensor]] = []

    def wait() -> None:
        copied.append([tensor.detach().clone() for tensor in layout.tensors])

    monkeypatch.setattr(layout.streams, "wait", wait)
    getattr(layout, change)(0, torch.ones(layout.schema.size))
    assert copied and all(torch.equal(one, other) for one, other in zip(copied[0], before, strict=True))
    assert not any(torch.equal(tensor, kept) for tensor, kept in zip(layout.tensors[:2], before, strict=False))


# -- the memory goes --------------------------------------------------------------------------------------------


class Noted(Layout):
    """Records at `finish` whether the shared memory is still there."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.region: Callable[[], object] = lambda: None
        self.there: list[bool] = []
        self.pinned: list[tuple[int, int]] = []

    def pin(self, region: object, rank: int = 0, ranks: int = 1) -> None:
        self.pinned.append((rank, ranks))

    def finish(self) -> None:
        self.there.append(self.region() is not None)


@pytest.mark.parametrize("ending", ["the daemon dies", "close"])
def test_a_session_waits_for_its_copies_before_it_lets_the_memory_go(tmp_path: Path, ending: str) -> None:
    daemon, layout = LedgerDaemon(tmp_path), Noted(batch_norms(0.0))
    session = Session(tmp_path, layout, world=4)
    layout.region = lambda: getattr(session._connection.link, "region", None)
    while layout.region() is None:
        session.poll()
        daemon.pump()
    assert layout.pinned == [(0, 4)] and not layout.there
    if ending == "close":
        session.close()
    daemon.server.close()
    session.poll()
    assert layout.there == [True] and session._connection.link is None


def test_a_follower_waits_for_its_copies_before_it_lets_the_memory_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Noted(batch_norms(0.0))

    class Link:
        """The link to a daemon that shares its memory at once."""

        lost = ""

        def __init__(self) -> None:
            self.region: object = SimpleNamespace(size=layout.schema.size)

        def hello_as_rank(self, rank: int, leader: int) -> None: ...

        def send(self, message: object) -> bool:
            return True

        def close(self) -> None:
            self.region = None

    monkeypatch.setattr(followers.links.Link, "connect", lambda home: Link())
    follower = Follower(tmp_path, layout, 2, 4)
    layout.region = lambda: follower.region
    assert follower.join(1) and layout.pinned == [(2, 4)]
    follower.close()
    assert layout.there == [True] and follower.region is None


# -- what is pinned ---------------------------------------------------------------------------------------------


def test_whole_pages_are_pinned_none_twice_and_near_ones_in_one_go() -> None:
    page = mmap.PAGESIZE
    elements = page // 4
    assert page_ranges(10 * page, [(0, 1), (1, elements + 1)]) == [(10 * page, 2 * page)]
    far = (NEAR + 3 * page) // 4
    assert page_ranges(page, [(far, far + 5), (0, 5)]) == [(page, page), (page + 4 * far // page * page, page)]
    near = NEAR // 8
    assert page_ranges(0, [(near, near + 5), (0, 5)]) == [(0, (4 * near // page + 1) * page)]
    assert page_ranges(0, []) == []
    assert page_ranges(page, [(0, 0), (far, far), (0, 5)]) == [(page, page)], "a rank may hold nothing of a tensor"


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_rank_pins_what_it_moves(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(1000))
    layouts = [Layout(model) for _ in range(ranks)]
    nothing = np.zeros(0, np.float32)
    region: Any = SimpleNamespace(buffers=(nothing, nothing))
    asked: list[list[tuple[int, int]]] = []
    monkeypatch.setattr("gossipdp.training.tensors.layout.pin", lambda vector, spans, device: not asked.append(spans))
    for rank, layout in enumerate(layouts):
        monkeypatch.setattr(layout, "_devices", lambda: [torch.device("cuda", 0)])
        layout.pin(region, rank, ranks)
    counts = [sum(stop - start for start, stop in spans) for spans in asked]
    assert len(asked) == 2 * ranks, "of both buffers"
    assert sum(counts) == 2 * sum(tensor.numel() for tensor in layouts[0].tensors)
    assert max(counts) <= layouts[0].schema.size / ranks + 4000


class Runtime:
    """CUDA's, as far as pinning goes; the second call fails if `full`. It knows which device is current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: bool = False) -> None:
        self.full, self.held = full, dict[int, int]()
        self.current = 0
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "device", self._switched)

    @contextmanager
    def _switched(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def cudaHostRegister(self, address: int, length: int, flags: int) -> int:
        assert length and self.current == DEVICE.index, "rank 1 begins nothing on the device of rank 0"
        if self.full and self.held:
            return 2
        self.held[address] = length
        return 0

    def cudaHostUnregister(self, address: int) -> None:
        assert self.current == DEVICE.index
        del self.held[address]


DEVICE = torch.device("cuda", 1)
FAR = 2 * NEAR // 4


def mapped() -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, 4 * NEAR), np.float32)


@pytest.mark.parametrize("full", [False, True])
def test_memory_is_pinned_as_long_as_it_is_mapped_and_training_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    runtime, launched = Runtime(monkeypatch, full), []

    def launch(*_: object, device: torch.device) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "zeros", launch)
    vector = mapped()
    assert pin(vector, [(0, 10), (FAR, FAR + 10)], DEVICE) is not full
    assert launched == [DEVICE] * full, "the error of a call that failed is taken here, not by the next kernel"
    assert runtime.held == dict(page_ranges(vector.ctypes.data, [(0, 10), (FAR, FAR + 10)])[: 1 if full else 2])
    del vector
    assert not runtime.held


def test_a_slice_is_pinned_if_all_of_it_is_wherever_its_vector_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank pins its part, which seldom begins where the memory begins."""
    Runtime(monkeypatch)
    vector, there = mapped(), cast("torch.Tensor", SimpleNamespace(is_cuda=True))
    assert pin(vector, [(FAR, FAR + 5000)], DEVICE)
    flat = torch.from_numpy(vector)
    assert pinned(flat[FAR : FAR + 5000], there) and pinned(flat[FAR + 4999 : FAR + 5000], there)
    assert not pinned(flat[:10], there) and not pinned(flat[FAR : FAR + 50_000], there)
    assert not pinned(flat[FAR : FAR + 5000].clone(), there)
    assert not pinned(flat[FAR : FAR + 5000], torch.zeros(1)), "on the CPU there is nothing to wait for"


def test_memory_that_is_gone_is_not_pinned_and_a_forked_child_leaves_it_to_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, there = Runtime(monkeypatch), cast("torch.Tensor", SimpleNamespace(is_cuda=True))
    memory = torch.zeros(100_000)
    vector = memory.numpy()
    assert pin(vector, [(0, 100_000)], DEVICE) and pinned(memory, there)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        del vector
    assert runtime.held and not pinned(memory, there)
