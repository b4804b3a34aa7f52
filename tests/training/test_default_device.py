"""`torch.set_default_device("cuda")` decides where a script makes tensors, not where a rank reads announcements.

Without a device it is "meta" here, of which nothing can be read at all.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.state_dict import optimizer_tensors, restore_optimizer
from gossipdp.training.step_counter import SkippedSteps
from gossipdp.training.tensors.layout import Layout
from tests.training.ledger_daemon import PumpedDaemon
from tests.training.optimizer_state.inheritance import handed, inherited


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 5)


def gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def test_a_rank_reads_its_words_from_memory_of_the_cpu(pumped: PumpedDaemon, group_of_one: None) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.device("meta"):
        peer = gossipdp.attach(model, optimizer)
        for step in range(12):
            gradients(model)
            optimizer.step()
            if step == 4:
                with pumped.lock:
                    pumped.mix(np.ones(pumped.region.size, np.float32))
                    pumped.seal()
            pumped.pump()
        peer.detach()
    assert pumped.drained == 1 and pumped.snapshot > 3


def test_moments_are_counted_and_put_back_on_the_cpu() -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    layout = Layout(model)
    moments = AdamMoments.find(layout, model, [optimizer])
    assert moments is not None
    with torch.device("meta"):
        assert inherited(moments, 1.0, 0.5, 12)
        assert len(handed(moments, 12).chunks) == 1
    assert [int(optimizer.state[parameter]["step"]) for parameter in model.parameters()] == [12, 12]


def test_numbers_that_an_optimizer_keeps_are_saved_on_the_cpu() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradients(model)
    optimizer.step()
    for state in optimizer.state.values():
        state["count"] = 3
    with torch.device("meta"):
        saved = optimizer_tensors(model, [optimizer])
        restore_optimizer(model, [optimizer], saved)
    assert saved["weight::count"].item() == 3 and len(saved) == 4


class OnCuda(torch.Tensor):
    """A flag like that of fused optimizers on a device."""

    is_cuda = True


def test_a_skipped_step_is_looked_for_in_pinned_memory_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def record_event(self) -> Any:
            return None

    empty, made = torch.empty, list[dict[str, Any]]()

    def pinned_empty(*size: int, pin_memory: bool, **options: Any) -> torch.Tensor:
        made.append(options)
        return empty(*size, **{"device": "meta"} | options)

    optimizer = torch.optim.SGD(model_of().parameters(), lr=0.1)
    monkeypatch.setattr(torch, "empty", pinned_empty)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    optimizer.found_inf = torch.ones(1).as_subclass(OnCuda)  # type: ignore[attr-defined]
    assert SkippedSteps().look(optimizer, 3) == (1, 3)
    assert made == [{"dtype": torch.float32, "device": "cpu"}]
