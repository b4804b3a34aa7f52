"""attach(): snapshots and corrections use two shared buffers in turn, and no side writes where the other one reads."""

import numpy as np
import pytest
import torch

from gossipdp.runtime import link as links
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, submits, train, vector


def ones(daemon: LedgerDaemon, chunk: int = 0) -> np.ndarray:
    """A correction of one chunk."""
    delta = np.zeros(daemon.region.size, np.float32)
    delta[256 * chunk : 256 * (chunk + 1)] = 1.0
    return delta


def test_slot_is_sealed_after_the_snapshot_in_the_buffer_it_needs_was_read(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(daemon, model, optimizer, every=1)
    train(model, optimizer, 1)
    daemon.mix(ones(daemon))
    assert not daemon.seal() and daemon.open == 1, "the snapshot is written and not read"
    daemon.pump()
    assert daemon.out == 1, "it was sealed as soon as that was read"
    before = vector(model)
    train(model, optimizer, 3, daemon.pump)
    assert np.count_nonzero(vector(model) != before) == 256 and [event.applied for event in submitted(daemon)] == [
        0,
        1,
        1,
        1,
    ]


def test_snapshot_waits_for_a_slot_whose_message_has_not_come(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(daemon, model, optimizer, every=1)
    train(model, optimizer, 2, daemon.pump)
    late: list[links.FromDaemon] = []
    with monkeypatch.context() as patch:
        patch.setattr(daemon.server, "send", late.append)
        daemon.mix(ones(daemon))
        assert daemon.seal()
    kept, number = [buffer.copy() for buffer in daemon.region.buffers], len(submits(daemon))
    train(model, optimizer, 4, daemon.pump)
    assert len(submits(daemon)) == number
    assert all(map(np.array_equal, kept, daemon.region.buffers)), "nothing is written before the slot is drained"
    for message in late:
        daemon.server.send(message)
    train(model, optimizer, 1, daemon.pump)
    assert submits(daemon)[number:] == [(5, 5)] and submitted(daemon)[-1].applied == 1


def test_what_an_old_snapshot_left_on_other_chunks_is_not_added(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(daemon, model, optimizer, every=1)
    start = vector(model)
    for step, chunk in enumerate((0, 2, 1, 2)):
        daemon.mix(ones(daemon, chunk))
        for other in set(range(4)) - {chunk}:  # what a daemon that zeroes touched chunks alone would leave there
            daemon.pending[daemon.open][256 * other : 256 * (other + 1)] = np.nan
        assert daemon.seal(), step
        train(model, optimizer, 2, daemon.pump)
    wanted = sum(ones(daemon, chunk) for chunk in (0, 2, 1, 2))
    assert np.allclose(vector(model) - start, wanted[: len(start)], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_last_snapshot_contains_the_slot_that_is_out__and_the_parameters_stay(
    daemon: LedgerDaemon, dtype: torch.dtype
) -> None:
    model = small().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=4)
    for _ in range(6):
        model(torch.ones(1, 20, dtype=dtype)).sum().backward()
        optimizer.step()
        daemon.pump()
    correction, before = ones(daemon, 1), vector(model)
    daemon.mix(correction)
    assert daemon.seal()
    peer.detach()
    daemon.pump()
    assert np.array_equal(vector(model), before)
    last = submitted(daemon)[-1]
    assert (last.steps, last.applied) == (2, 1) and daemon.drained == 1 and daemon.last is not None
    assert np.array_equal(daemon.last[: len(before)], before.astype(np.float32) + correction[: len(before)])


def submitted(daemon: LedgerDaemon) -> list[links.Submitted]:
    return [event for event in daemon.events if isinstance(event, links.Submitted)]
