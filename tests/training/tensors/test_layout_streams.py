"""Copies beside the training, and what waits for them, as far as that shows without a device."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.training.dialogue import Phase
from gossipdp.training.ranks import follower as followers
from gossipdp.training.ranks.follower import Follower
from gossipdp.training.session import Session
from gossipdp.training.tensors.layout import Layout
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
        self.parts: list[bool] = []
        """for each part that was pinned, whether all of it was"""
        self.boundaries = 1
        """boundaries that it takes to pin everything"""

    def pin(self, region: object, rank: int = 0, ranks: int = 1) -> None:
        self.pinned.append((rank, ranks))

    def pin_more(self, *, everything: bool = False) -> bool:
        self.parts.append(everything)
        return everything or len(self.parts) >= self.boundaries

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


@pytest.mark.parametrize("again", [False, True])
def test_a_process_that_trains_pins_a_part_at_each_boundary_and_writes_its_model_then(
    tmp_path: Path, again: bool
) -> None:
    """To pin 12 GB takes seconds: the first step may wait for that, and no later one."""
    daemon, layout = LedgerDaemon(tmp_path), Noted(batch_norms(0.0))
    layout.boundaries = 4
    session = Session(tmp_path, layout)
    session._loads = int(again)
    for _ in range(100):
        session.poll()
        daemon.pump()
        if session.phase is Phase.WRITING:
            break
    assert session.phase is Phase.WRITING and layout.parts == ([False] * 4 if again else [True])
    session.close()
    daemon.server.close()


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

        def receive(self) -> list[object]:
            return []

        def close(self) -> None:
            self.region = None

    monkeypatch.setattr(followers.links.Link, "connect", lambda home: Link())
    follower = Follower(tmp_path, layout, 2, 4)
    layout.region = lambda: follower.region
    assert follower.join(1) and layout.pinned == [(2, 4)] and layout.parts == [True]
    follower.close()
    assert layout.there == [True] and follower.region is None
    layout.parts.clear()
    assert follower.join(1)
    follower.poll()
    assert layout.parts == [False, False], "it trains: a part at each boundary"
