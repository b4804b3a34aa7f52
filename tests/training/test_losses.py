"""`report` and losses on a device: no report waits, none of the last ones is lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gossipdp.training import attachment as module
from gossipdp.training.attachment import Losses
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, small


class OnDevice(SimpleNamespace):
    """A tensor on CUDA, as far as a report looks at it."""

    is_cuda = True

    def detach(self) -> OnDevice:
        return self

    def reshape(self, shape: tuple[int, ...]) -> OnDevice:
        return self


class Copies:
    """Copies that come when `come` is called."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.here = threading.Event()

    def __call__(self, value: OnDevice) -> Any:
        self.begun.append(value.number)
        self.here.clear()
        here = self.here

        def read() -> float:
            return float(value.number)

        return SimpleNamespace(ready=here.is_set, read=read)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    made = Copies()
    monkeypatch.setattr(module, "_Copy", made)
    monkeypatch.setattr(module, "Tensor", (torch.Tensor, OnDevice))
    return made


def test_a_loss_on_a_device_is_read_when_it_has_come(copies: Copies) -> None:
    losses: Any = Losses()
    for number in range(4):
        losses.take("loss", OnDevice(number=number))
    assert copies.begun == [0] and losses.known == {}, "one copy under way, however many reports come"
    copies.here.set()
    losses.poll()
    assert losses.known == {"loss": 0.0} and copies.begun == [0, 3], "then the last of them"
    losses.take("eval_loss", OnDevice(number=7))
    losses.finish()
    assert losses.known == {"loss": 3.0, "eval_loss": 7.0}


def test_a_number_replaces_what_is_under_way(copies: Copies) -> None:
    losses: Any = Losses()
    losses.take("loss", OnDevice(number=1))
    losses.take("loss", OnDevice(number=2))
    losses.take("loss", 0.5)
    losses.finish()
    assert losses.known == {"loss": 0.5} and copies.begun == [1]
    losses.take("loss", torch.tensor([0.25], requires_grad=True))
    assert losses.known == {"loss": 0.25}


def test_the_last_loss_on_a_device_reaches_the_daemon_at_the_end(daemon: LedgerDaemon, copies: Copies) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer: Any = attach(daemon, model, optimizer)
    for number in range(3):
        peer.report(loss=OnDevice(number=number))
        optimizer.step()
    assert copies.begun == [0] and peer._losses.known == {}
    peer.detach()
    daemon.pump()
    assert peer._losses.known == {"loss": 2.0}
    assert [event.loss for event in daemon.events if hasattr(event, "loss")][-1] == 2.0
