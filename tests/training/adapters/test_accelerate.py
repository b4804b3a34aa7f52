"""The adapter of accelerate: where its steps, samples and ends differ from a loop's."""

from typing import Any

import pytest
import torch

import gossipdp
from gossipdp.runtime import link as links
from tests.training.adapters.frameworks import (
    Line,
    Rows,
    Tail,
    exchanged,
    framework,
    handed_over,
    is_what_was_handed_over,
    seen,
)
from tests.training.ledger_daemon import LedgerDaemon

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


@pytest.fixture
def accelerator_of() -> Any:
    """Makes an Accelerator."""
    framework("accelerate")
    from accelerate import Accelerator

    return lambda **settings: Accelerator(cpu=True, **settings)


def test_accelerate__accumulated_and_skipped_steps_are_none(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    gossip = framework("accelerate")
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)  # as fp16 has it on a GPU
    model = Line()
    loader = torch.utils.data.DataLoader(Rows(30), batch_size=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with pytest.raises(AttributeError):
        optimizer.register_step_post_hook(print)  # the wrapper is none: so the adapter looks inside
    peer = gossip.attach(accelerator, model, optimizer, loader)
    skipped = 0
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss * torch.inf if number == 4 else loss)
            optimizer.step()
            skipped += accelerator.sync_gradients and optimizer.step_was_skipped
            optimizer.zero_grad()
    assert skipped == 1 and peer.steps == 4, "ten batches, two a step, and one of the steps was skipped"
    accelerator.log({"loss": 0.25, "epoch": 1})
    accelerator.log({"accuracy": 1.0})
    assert accelerator.get_tracker("gossipdp").tracker is peer
    accelerator.end_training()
    assert peer.alone and handed_over(daemon) == (4, 4 * 3 * 2)
    assert seen(daemon, links.Reported)[-1].loss == 0.25
    assert is_what_was_handed_over(accelerator.unwrap_model(model), daemon)


def test_accelerate__the_last_step_of_an_epoch_counts_what_it_was_given(
    daemon: LedgerDaemon, accelerator_of: Any
) -> None:
    accelerator = accelerator_of(gradient_accumulation_steps=3)
    model = Line()
    loader = torch.utils.data.DataLoader(Rows(31), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    with framework("accelerate").attach(accelerator, model, optimizer, loader):
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
    assert handed_over(daemon) == (6, 2 * (12 + 12 + 7)), "8 batches, the last of 3"


def test_accelerate__an_exception_detaches_who_says_with(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    accelerator = accelerator_of()
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    peer = framework("accelerate").attach(accelerator, model, optimizer, samples_per_step=5)
    with pytest.raises(ZeroDivisionError), peer:
        accelerator.backward(model(torch.ones(5, 1), torch.ones(5, 1))["loss"])
        optimizer.step()
        raise ZeroDivisionError
    assert peer.alone and handed_over(daemon) == (1, 5)


@pytest.mark.parametrize("off", [False, True])
def test_accelerate__what_it_prepared_can_be_given_to_the_plain_attach(
    daemon: LedgerDaemon, accelerator_of: Any, monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    if off:
        monkeypatch.setenv("GOSSIPDP_OFF", "1")
    model = Line()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = accelerator_of()
    model, optimizer = accelerator.prepare(model, inner)
    peer = gossipdp.attach(model, optimizer)
    for _ in range(3):
        accelerator.backward(model(torch.ones(5, 1), torch.ones(5, 1))["loss"])
        optimizer.step()
    peer.detach()
    assert peer.steps == 3 and handed_over(daemon)[0] == (0 if off else 3)
    assert not inner._optimizer_step_post_hooks


def test_accelerate__several_optimizers_are_one_step(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    model = Line()
    loader = torch.utils.data.DataLoader(Rows(30), batch_size=3)
    made = [torch.optim.SGD([model.linear.weight], lr=0.1), torch.optim.AdamW([model.linear.bias], lr=0.1)]
    model, first, second, loader = accelerator.prepare(model, *made, loader)
    with framework("accelerate").attach(accelerator, model, [first, second], loader) as peer:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
    assert peer.steps == 5 and handed_over(daemon) == (5, 30)
    assert is_what_was_handed_over(accelerator.unwrap_model(model), daemon)


def test_accelerate__function_that_is_called_again_with_a_smaller_batch_attaches_again(
    daemon: LedgerDaemon, accelerator_of: Any
) -> None:
    gossip, accelerator, sizes = framework("accelerate"), accelerator_of(), []
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=8)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        accelerator.free_memory()
        sizes.append(batch_size)
        model = Line()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        peer = gossip.attach(accelerator, model, optimizer, samples_per_step=batch_size)
        for step in range(3):
            accelerator.backward(model(**Rows(1)[0])["loss"])
            optimizer.step()
            if batch_size > 4 and step:
                raise RuntimeError("CUDA out of memory.")
        accelerator.log({"loss": 0.5})
        return peer.steps

    assert train() == 3 and sizes[0] == 8 and sizes[-1] <= 4
    assert len(accelerator.trackers) == 1
    accelerator.end_training()
    assert seen(daemon, links.Reported)[-1].loss == 0.5


def test_accelerate__excluded_tensors_are_not_exchanged(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    accelerator, tail = accelerator_of(), Tail()
    optimizer = torch.optim.SGD(tail.parameters(), lr=0.1)
    tail, optimizer = accelerator.prepare(tail, optimizer)
    framework("accelerate").attach(accelerator, tail, optimizer, exclude=["queue"])
    assert exchanged(daemon) == ["scale"]
    accelerator.end_training()
