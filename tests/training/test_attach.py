"""attach(): the ledger's invariant, and the bare optimizer bit for bit."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gossipdp.runtime import link as links
from tests.training.ledger_daemon import LedgerDaemon
from tests.training.models import attach, equal, small, train, vector

Optimizer = torch.optim.Optimizer


@pytest.mark.parametrize("seed", range(6))
def test_x_plus_pending_minus_a_is_the_progress_since_the_snapshot(daemon: LedgerDaemon, seed: int) -> None:
    """Algorithms section 1, after every event, in any order of events."""
    random = np.random.default_rng(seed)
    daemon.every = int(random.integers(1, 5))
    daemon.alpha, daemon.mu = [(0.7, 0.8), (1.0, 0.0), (0.9, 0.0)][seed % 3]
    model = small(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    peer = attach(daemon, model, optimizer)
    session = peer._session
    assert session is not None
    size = daemon.region.size
    progress = np.zeros(size)
    at_snapshot = {0: progress.copy()}
    sealed = 0
    for _ in range(250):
        event = random.integers(0, 5)
        if event <= 1:
            for parameter in model.parameters():
                parameter.grad = torch.from_numpy(random.standard_normal(tuple(parameter.shape), dtype=np.float32))
            gradient = np.concatenate([p.grad.double().reshape(-1).numpy() for p in model.parameters()])  # type: ignore[union-attr]
            number = session._times.number
            optimizer.step()
            progress = progress - 0.01 * gradient
            if session._times.number > number:
                at_snapshot[session._times.number] = progress.copy()
        elif event == 2:
            daemon.pump()
        elif event == 3:
            delta = np.zeros(size, np.float32)
            for chunk in random.choice(daemon.region.size // 256 + 1, 2, replace=False):
                span = slice(256 * chunk, min(256 * (chunk + 1), size))
                delta[span] = 0.05 * random.standard_normal(span.stop - span.start)
            daemon.mix(delta)
        else:
            sealed += daemon.seal()
        assert daemon.a is not None
        pending = daemon.outstanding(session._corrections.applied).astype(np.float64)
        found = vector(model) + pending - daemon.a
        assert np.abs(found - (progress - at_snapshot[daemon.snapshot])).max() < 2e-5
    assert sealed > 5 and daemon.drained > 5 and daemon.snapshot > 10, "the events did happen"


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=["adamw", "foreach", "fused"])
def test_a_drain_changes_parameters_and_nothing_of_the_optimizer(daemon: LedgerDaemon, way: dict[str, bool]) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **way)  # type: ignore[arg-type]
    attach(daemon, model, optimizer, every=1000)
    train(model, optimizer, 3)
    daemon.mix(np.full(daemon.region.size, 0.25, np.float32))
    daemon.seal()
    for parameter in model.parameters():
        parameter.grad = None  # a step without gradients moves nothing: what changes is the drain
    before = vector(model)
    state = {key: {k: v.clone() for k, v in entry.items()} for key, entry in optimizer.state.items()}
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.step()
    assert np.array_equal(vector(model).astype(np.float32), before.astype(np.float32) + np.float32(0.25))
    for key, entry in state.items():
        assert all(torch.equal(value, optimizer.state[key][name]) for name, value in entry.items())
    assert groups == [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    daemon.pump()
    assert daemon.drained == 1


def test_the_snapshot_of_bf16_is_the_parameter_and_its_residual(daemon: LedgerDaemon) -> None:
    model = small().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(daemon, model, optimizer)
    start = vector(model)
    for _ in range(100):
        daemon.mix(np.full(daemon.region.size, 1e-5, np.float32))
        daemon.seal()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        daemon.pump()
    assert daemon.a is not None
    assert np.abs(daemon.a - (start + 1e-3)).max() < 2e-6, "nothing was lost on the way down and up"
    assert np.abs(vector(model) - daemon.a).max() <= 2.0**-9


@pytest.mark.parametrize(
    "build",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-2, fused=True),
        lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True),
        lambda parameters: torch.optim.NAdam(parameters, lr=1e-3),
        lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4),
    ],
    ids=["sgd", "adamw", "foreach adamw", "fused adamw", "fused adam", "adagrad", "rmsprop", "nadam", "lbfgs"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_lone_peer_is_the_bare_optimizer_bit_for_bit(
    daemon: LedgerDaemon, build: Callable[..., Optimizer], dtype: torch.dtype
) -> None:
    models = [nn.Sequential(small(), nn.Identity()).to(dtype) for _ in range(2)]
    optimizers = [build(model.parameters()) for model in models]
    peer = attach(daemon, models[0], optimizers[0], every=3)
    for model, optimizer in zip(models, optimizers, strict=True):
        generator = torch.Generator().manual_seed(3)
        for _ in range(10):
            data = torch.randn(8, 20, generator=generator).to(dtype)

            def closure(model: nn.Module = model, data: torch.Tensor = data, optimizer: Optimizer = optimizer) -> float:
                optimizer.zero_grad()
                loss = model(data).float().square().mean()
                loss.backward()
                return loss.item()

            optimizer.step(closure)
            daemon.pump()
    assert equal(*models)
    assert optimizers[0].state_dict()["state"].keys() == optimizers[1].state_dict()["state"].keys()
    assert not peer.alone and daemon.snapshot == 3


def test_schedulers_and_accumulation_are_as_ever(daemon: LedgerDaemon) -> None:
    models = [small(), small()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in optimizers]
    peer = attach(daemon, models[0], optimizers[0], every=2)
    for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
        generator = torch.Generator().manual_seed(5)
        for micro in range(12):
            model(torch.randn(4, 20, generator=generator)).square().mean().backward()
            if micro % 3 == 2:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                daemon.pump()
    assert equal(*models)
    assert peer.steps == 4, "a step is an optimizer step, not a backward pass"
    assert optimizers[0].param_groups[0]["lr"] == 0.025


def test_a_step_skipped_by_a_grad_scaler_is_no_step(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    peer = attach(daemon, model, optimizer)
    for broken in (False, True, False):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 20)).square().mean()
        scaler.scale(loss * torch.inf if broken else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        daemon.pump()
    assert peer.steps == 2
    assert [event.steps for event in daemon.events if isinstance(event, links.Submitted)] == [1, 1]


class Tied(nn.Module):
    """Tied, frozen, and with running averages."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(9, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.frozen(self.norm(self.embedding(tokens))))
        return logits


def test_tied_weights_take_a_correction_once_frozen_ones_none_buffers_as_averages(daemon: LedgerDaemon) -> None:
    models = [Tied(), Tied()]
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1) for m in models]
    attach(daemon, models[0], optimizers[0])
    tokens = torch.arange(9)
    for _ in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), tokens).backward()
            optimizer.step()
        daemon.pump()
    assert equal(*models) and models[0].norm.num_batches_tracked == 4
    assert daemon.schema is not None and daemon.a is not None
    assert daemon.schema.trainable == 256
    assert np.array_equal(daemon.a[256:262], models[0].norm.running_mean.numpy())  # type: ignore[union-attr]
    daemon.mix(np.ones(daemon.region.size, np.float32))
    daemon.seal()
    optimizers[0].zero_grad()
    optimizers[0].step()
    before, after = models[1].state_dict(), models[0].state_dict()
    for name, tensor in after.items():
        corrected = "frozen" not in name and "num_batches" not in name
        assert torch.equal(tensor, before[name] + 1 if corrected else before[name]), name
    assert models[0].head.weight is models[0].embedding.weight
