"""attach(): modes of synchrony, and when corrections reach the live parameters in each."""

from pathlib import Path

import numpy as np
import torch

from gossipdp.runtime import link as links
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small, submits, train


def test_overlap__corrections_wait_for_the_end_of_a_round(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, every=5, mode="overlap")
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    peer = attach(daemon, model, optimizer)
    landed, before = [], [parameter.clone() for parameter in model.parameters()]
    for step in range(1, 18):
        if step in (2, 9):
            daemon.mix(np.ones(daemon.region.size, np.float32))
            daemon.seal()
        train(model, optimizer, 1, daemon.pump)
        if not all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)):
            landed.append(step)
            before = [parameter.clone() for parameter in model.parameters()]
    assert landed == [5, 10] and [event.applied for event in daemon.events if isinstance(event, links.Submitted)] == [
        1,
        2,
        2,
    ]
    peer.detach()
    daemon.server.close()


def test_sync__training_goes_on_when_its_round_is_settled_and_added(tmp_path: Path) -> None:
    def settles(daemon: LedgerDaemon) -> None:
        daemon.mix(np.ones(daemon.region.size, np.float32))
        daemon.seal()

    daemon = LedgerDaemon(tmp_path, every=3, mode="sync", settles=settles)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    peer = attach(daemon, model, optimizer)
    start = next(model.parameters()).clone()
    with daemon.running():
        for step in range(1, 13):
            train(model, optimizer, 1)
            assert torch.allclose(next(model.parameters()) - start, torch.tensor(step // 3 * 1.0), atol=1e-5)
    peer.detach()
    daemon.server.close()


def test_sync__waits_no_longer_than_the_deadline_and_not_for_a_daemon_that_is_gone(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, every=1, mode="sync", deadline=0.05)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer)
    train(model, optimizer, 2, daemon.pump)
    assert len(submits(daemon)) == 2 and peer.stall_seconds >= 0.1
    daemon.deadline = 60.0
    daemon.server.close()
    train(model, optimizer, 2)
    assert peer.alone and peer.stall_seconds < daemon.deadline
    peer.detach()
