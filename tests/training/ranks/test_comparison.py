"""Whether ranks hold one replica: checksums see a bit that differs, and training does not wait for them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import gossipdp
from gossipdp.training.ranks import actions
from gossipdp.training.ranks import comparison as comparisons
from gossipdp.training.ranks import group as groups
from gossipdp.training.ranks.announcements import Kind
from gossipdp.training.ranks.comparison import Comparison, checksums
from gossipdp.training.ranks.group import ReplicaGroup
from gossipdp.training.tensors.layout import Layout
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon
from tests.training.moments_daemon import MomentsDaemon


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.picture = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(7)
        self.brain = nn.Linear(7, 5, dtype=torch.bfloat16)
        self.short = nn.Linear(5, 5, dtype=torch.float16)
        self.long_ = nn.Linear(5, 3, dtype=torch.float64)


def test_one_bit_of_one_element_is_seen_and_buffers_are_not_asked_about() -> None:
    expected = checksums(Layout(Mixed()))
    names = [name for name, _ in Mixed().named_parameters()]
    for number, name in enumerate(names):
        model = Mixed()
        assert model.norm.running_mean is not None
        model.norm.running_mean.fill_(float(number))
        assert torch.equal(checksums(Layout(model)), expected)
        torch.empty(0, dtype=torch.uint8).set_(model.get_parameter(name).untyped_storage())[-1] ^= 1
        assert (checksums(Layout(model)) != expected).nonzero().flatten().tolist() == [number]


def test_the_order_of_elements_in_memory_and_the_size_of_a_piece_are_nothing_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = checksums(Layout(Mixed()))
    monkeypatch.setattr(comparisons, "STAGED", 10)
    model = Mixed().to(memory_format=torch.contiguous_format)
    assert torch.equal(checksums(Layout(model)), expected)


class Arriving(torch.Tensor):
    """As if it were on a device."""

    is_cuda = True


def test_an_answer_is_there_when_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, passed = Layout(Mixed()), [False]
    rows = torch.stack([checksums(layout)] * 3)
    rows[2, 1:3] += 1
    empty = torch.empty

    def pinned_empty(*size: Any, pin_memory: bool, **options: Any) -> torch.Tensor:
        assert pin_memory
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", pinned_empty)
    event = SimpleNamespace(query=lambda: passed[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=lambda: event))
    comparison = Comparison(layout, rows.as_subclass(Arriving))
    assert comparison.difference is None and not comparison.equal
    passed[0] = True
    seen = "rank 2 of 3; 2 of 10 parameters differ from rank 0, the first is picture.bias"
    assert comparison.difference == seen and not comparison.equal
    assert Comparison(layout, rows[:2]).equal


# -- in a group ---------------------------------------------------------------------------------------------------


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def test_ranks_are_compared_at_attach_and_at_a_few_snapshots(
    pumped: PumpedDaemon, group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, times = nn.Linear(4, 3), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def counted(layout: Layout) -> torch.Tensor:
        times[0] += 1
        return checksums(layout)

    monkeypatch.setattr(actions, "checksums", counted)
    peer = gossipdp.attach(model, optimizer)
    assert times == [1]
    for _ in range(30):
        descend(model, optimizer, 1)
        pumped.pump()
    assert pumped.snapshot > 5 and times == [1 + actions.COMPARED]
    peer.detach()


def test_a_group_that_waits_for_its_round_hears_so_now_and_then(
    tmp_path: Path, group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank without an announcement for minutes gives up, and a round may take an hour."""
    daemon = LedgerDaemon(tmp_path, every=3, mode="sync", deadline=0.2)
    monkeypatch.setattr(groups, "ANNOUNCE_EVERY", 0.02)
    heard: list[int] = []
    read = ReplicaGroup._read

    def noted(group: ReplicaGroup) -> Any:
        heard.append((word := read(group)).kind)
        return word

    monkeypatch.setattr(ReplicaGroup, "_read", noted)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with daemon.running():
        peer = gossipdp.attach(model, optimizer, home=tmp_path)
        descend(model, optimizer, 4)
        assert daemon.snapshot == 1 and heard.count(Kind.WAIT) >= 3 and not peer.alone
        assert peer.stall_seconds >= 0.2
        peer.detach()
    daemon.server.close()


def test_no_rank_is_given_moments_while_another_still_loads_the_model(
    tmp_path: Path, group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = MomentsDaemon(tmp_path, every=2)
    done: list[str] = []
    barrier, wait = dist.barrier, actions.wait_for_moments
    monkeypatch.setattr(dist, "barrier", lambda **options: done.append("all") or barrier(**options))  # type: ignore[func-returns-value]
    monkeypatch.setattr(actions, "wait_for_moments", lambda session: done.append("moments") or wait(session))  # type: ignore[func-returns-value]
    with daemon.running():
        for _ in range(2):
            model = nn.Linear(4, 3)
            optimizer = torch.optim.AdamW(model.parameters())
            done.clear()
            peer = gossipdp.attach(model, optimizer, home=tmp_path)
            for _ in range(50):
                descend(model, optimizer, 4)
                if daemon.held is not None:
                    break
            peer.detach()
    assert done == ["all", "moments", "all"] and np.isfinite(model.weight.detach().numpy()).all()
    daemon.server.close()
