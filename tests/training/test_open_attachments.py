"""attach() more than once in one process: a sweep, a cell run again, a second model; and forks of the process."""

import atexit
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gossipdp.errors import HardwareError
from gossipdp.runtime import link as links
from gossipdp.training.attachment import Attachment
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, submits, train

Made = tuple[nn.Module, torch.optim.Optimizer, Attachment]


def cell(daemon: LedgerDaemon) -> Made:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # with cycles, as most loops have
    return model, optimizer, attach(daemon, model, optimizer, every=4)


def detached(daemon: LedgerDaemon) -> int:
    daemon.pump()
    return sum(isinstance(event, links.Detached) for event in daemon.events)


KEPT: dict[str, Callable[[Made], object]] = {
    "everything": lambda made: made,
    "the handle alone": lambda made: made[2],
    "the optimizer alone": lambda made: made[1],
}


@pytest.mark.parametrize("kept", KEPT)
def test_attach_while_the_first_model_is_in_use_is_gd_503_of_this_process(daemon: LedgerDaemon, kept: str) -> None:
    held = KEPT[kept](cell(daemon))
    with pytest.raises(HardwareError, match="GD-503 this process is attached already") as caught:
        cell(daemon)
    assert "detach()" in caught.value.do and not detached(daemon) and held is not None


def test_second_model_in_one_home_is_named_with_clock_and_distance(
    daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer, peer = cell(daemon)
    train(model, optimizer, 5, daemon.pump)
    peer.detach()
    daemon.pump()
    attach(daemon, model, optimizer).detach()
    assert "GD-326" not in caplog.text, "the same model goes on"
    fold = small()
    with torch.no_grad():
        for parameter in fold.parameters():
            parameter.mul_(3.0)
    attach(daemon, fold, torch.optim.AdamW(fold.parameters())).detach()
    away = f"{daemon.apart:.1%} of the network model's norm away"
    assert f"GD-326 the network's model of step 5 replaced the script's, which was {away}" in caplog.text
    assert daemon.apart > 1.0


def test_attach_after_the_first_model_is_gone_works_and_its_last_steps_were_handed_over(daemon: LedgerDaemon) -> None:
    def trial() -> weakref.ref[Attachment]:
        model, optimizer, peer = cell(daemon)
        train(model, optimizer, 5, daemon.pump)
        return weakref.ref(peer)

    peers = [trial() for _ in range(3)]
    assert detached(daemon) == 2 and submits(daemon) == [(4, 4), (1, 1), (4, 4), (1, 1), (4, 4)]
    assert [each() is None for each in peers] == [True, True, False]


def test_attach_after_detach_works_though_the_first_model_is_in_use(daemon: LedgerDaemon) -> None:
    model, optimizer, peer = cell(daemon)
    peer.detach()
    second = cell(daemon)
    train(model, optimizer, 3)
    assert detached(daemon) == 1 and not second[2].alone and peer.steps == 0


class Glimpses(Dataset[tuple[int, bool]]):
    """Each item: the process that loads it, and whether it has the shared memory. That process overwrites what it can.

    Args:
        region: the peer's.
    """

    def __init__(self, region: links.Region) -> None:
        self.region = region

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, bool]:
        gc.collect()
        for buffer in self.region.buffers:
            buffer[:] = 7.0
        return os.getpid(), mapped()


def mapped() -> bool:
    return "gossipdp region" in Path("/proc/self/maps").read_text()


def test_a_data_loaders_forked_workers_never_touch_the_shared_memory(daemon: LedgerDaemon) -> None:
    model, optimizer, peer = cell(daemon)
    train(model, optimizer, 4, daemon.pump)
    region = daemon.server.region
    assert region is not None
    before = [buffer.copy() for buffer in region.buffers]
    loader = DataLoader(
        Glimpses(region), num_workers=2, multiprocessing_context="fork", persistent_workers=True, collate_fn=list
    )
    loaded = [item for batch in loader for item in batch]
    assert len({pid for pid, _ in loaded} - {os.getpid()}) == 2 and not any(there for _, there in loaded)
    assert mapped() and all(np.array_equal(*pair) for pair in zip(before, region.buffers, strict=True))
    train(model, optimizer, 4, daemon.pump)
    del loader  # the workers end
    gc.collect()
    train(model, optimizer, 4, daemon.pump)
    assert mapped() and detached(daemon) == 0 and not peer.alone
    assert submits(daemon) == [(4, 4)] * 3
    peer.detach()


def test_a_fork_that_trains_and_ends_is_no_part_of_the_peer(daemon: LedgerDaemon) -> None:
    model, optimizer, peer = cell(daemon)
    train(model, optimizer, 4, daemon.pump)
    if not (child := os.fork()):
        code = 1
        try:
            train(model, optimizer, 4)
            atexit._run_exitfuncs()
            peer.detach()
            code = 0 if peer.alone and peer.clock == 8 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    train(model, optimizer, 4, daemon.pump)
    assert detached(daemon) == 0 and not peer.alone
    assert submits(daemon) == [(4, 4), (4, 4)]
    assert [type(event) for event in daemon.events].count(links.Attached) == 1
    peer.detach()
