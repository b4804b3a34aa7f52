"""attach(): the ledger's invariant, the bare optimizer bit for bit, and the pace of snapshots."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.runtime import link as links
from gossipdp.training import session as sessions
from gossipdp.training import snapshots
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon
from tests.training.models import attach, equal, small, submits, train, vector

Optimizer = torch.optim.Optimizer


# -- the ledger -------------------------------------------------------------------------------------------------


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


# -- pace -------------------------------------------------------------------------------------------------------


def test_submits_follow_the_daemons_pace_and_count_samples(daemon: LedgerDaemon) -> None:
    daemon.every, daemon.clock = 3, 1000
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, samples_per_step=8)
    assert peer.progress == (1000, 0)
    train(model, optimizer, 7, daemon.pump)
    assert submits(daemon) == [(3, 24), (3, 24)]
    assert (peer.steps, peer.progress) == (7, (1007, 56))
    daemon.server.send(links.Pace(1, 2000, 5000))
    train(model, optimizer, 2, daemon.pump)
    assert submits(daemon)[2:] == [(2, 16), (1, 8)]
    assert peer.progress.clock >= 2002 and peer.progress.samples >= 5016


@pytest.mark.parametrize("ranks", [False, True], ids=["one process", "ranks"])
def test_a_schedule_follows_the_networks_clock_from_the_first_step_on(
    pumped: PumpedDaemon, request: pytest.FixtureRequest, ranks: bool
) -> None:
    if ranks:
        request.getfixturevalue("group_of_one")
    pumped.clock = 1000
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    peer = gossipdp.attach(model, optimizer, timeout=20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0 / peer.progress.clock)
    rates = schedule.get_last_lr()
    assert rates == [8.0 / 1000] and not peer.alone

    def follow() -> None:
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])

    train(model, optimizer, 6, follow)
    first = 1000 if ranks else 1001
    assert rates[1:] == [8.0 / clock for clock in range(first, first + 6)], "what ranks know is a step old"
    with pumped.lock:
        pumped.server.send(links.Pace(2, 5000, 0))
    train(model, optimizer, 3, follow)
    assert 8.0 / 5010 < rates[-1] <= 8.0 / 5000, "others are ahead"
    peer.detach()


def test_no_snapshot_is_written_before_the_last_was_taken(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=1)
    train(model, optimizer, 5)  # the daemon is busy
    held = daemon.region.x.copy()
    train(model, optimizer, 5)
    assert np.array_equal(daemon.region.x, held)
    daemon.pump()
    train(model, optimizer, 1)
    daemon.pump()
    assert submits(daemon) == [(1, 1), (10, 10)]
    assert daemon.a is not None and np.array_equal(daemon.a, vector(model).astype(np.float32))


def test_a_refused_snapshot_gives_its_steps_to_the_next(daemon: LedgerDaemon) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=2)
    session = daemon.session
    daemon.session = -1
    train(model, optimizer, 2)
    daemon.pump()
    daemon.session = session
    train(model, optimizer, 1, daemon.pump)
    assert submits(daemon) == [(2, 2), (3, 3)]


def test_slow_steps_are_submitted_after_a_while(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(daemon, model, optimizer, every=100)
    train(model, optimizer, 2, daemon.pump)
    assert submits(daemon) == []
    monkeypatch.setattr(snapshots, "SUBMIT_WITHIN", 0.0)
    train(model, optimizer, 1, daemon.pump)
    assert submits(daemon) == [(3, 3)]


def test_messages_wait_for_copies_under_way(daemon: LedgerDaemon) -> None:
    """On CUDA a copy ends later: no message about it may leave before."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=2)
    assert peer._layout is not None
    copied = False
    read = peer._layout.read
    peer._layout.fence = lambda: lambda: copied  # type: ignore[method-assign]
    peer._layout.read = lambda into: (read(into), lambda: copied)[1]  # type: ignore[method-assign]
    daemon.mix(np.ones(daemon.region.size, np.float32))
    daemon.seal()
    train(model, optimizer, 3, daemon.pump)
    assert submits(daemon) == [] and daemon.drained == 0
    copied = True
    train(model, optimizer, 1, daemon.pump)
    kinds = [type(event) for event in daemon.events[2:4]]
    assert kinds == [links.SlotApplied, links.Submitted], "in the order begun"
    assert submits(daemon)[0] == (2, 2)


def test_nan_never_raises_and_is_refused(daemon: LedgerDaemon, caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
    attach(daemon, model, optimizer)
    anchor = daemon.a
    assert anchor is not None
    with caplog.at_level(logging.WARNING, "gossipdp"):
        train(model, optimizer, 3, daemon.pump)
    assert not np.isfinite(vector(model)).all()
    assert np.array_equal(daemon.a, anchor)  # type: ignore[arg-type]
    assert "GD-402 a snapshot was not used: nan" in caplog.text


def test_reports_reach_the_daemon(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REPORT_EVERY", 0.0)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = attach(daemon, model, optimizer, every=100)
    train(model, optimizer, 2)
    peer.report(loss=torch.tensor(1.5, requires_grad=True))
    daemon.pump()
    (reported,) = [event for event in daemon.events if isinstance(event, links.Reported)]
    assert reported.loss == 1.5 and 0.0 < reported.stall_seconds <= peer.stall_seconds < 5.0


# -- off --------------------------------------------------------------------------------------------------------


def test_gossipdp_off_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    models = [small(), small()]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    with gossipdp.attach(models[0], optimizers[0], home=tmp_path / "nowhere") as peer:
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, 3)
        peer.report(loss=1.0)
        assert peer.alone and peer.stall_seconds == 0.0 and peer.lost_steps == 0
        assert peer.steps == peer.progress.clock == 3, "a schedule that follows the clock goes on"
    assert not optimizers[0]._optimizer_step_post_hooks
    assert equal(*models) and list(tmp_path.iterdir()) == []


def test_several_ranks_without_a_process_group_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = small()
    with pytest.raises(ConfigError, match="GD-306") as caught:
        gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), home=tmp_path)
    assert "init_process_group" in caught.value.do


UNCAUGHT = """
import sys, atexit, torch, gossipdp
def before(kind, error, trace): sys.stderr.write(f"before: {error}\\n")
sys.excepthook = before
atexit.register(print, "finalized")
model = torch.nn.Linear(2, 2)
for _ in range(2):
    try: gossipdp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), home=sys.argv[1], timeout=0)
    except gossipdp.GossipdpError as error: last = error
raise last if sys.argv[2] == "ours" else ValueError("theirs")
"""


@pytest.mark.parametrize(("whose", "code"), [("ours", 4), ("theirs", 1)])
def test_error_of_gossipdp_that_nobody_catches_ends_the_script_with_its_text_and_code(
    tmp_path: Path, whose: str, code: int
) -> None:
    command = [sys.executable, "-c", UNCAUGHT, str(tmp_path / "none"), whose]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (code, "finalized\n")
    if whose == "theirs":
        assert run.stderr == "before: theirs\n"
    else:
        assert run.stderr.startswith("GD-105 ") and "\n  do:   " in run.stderr and "Traceback" not in run.stderr


@pytest.mark.parametrize("prompt", ["-i", "ps1"])
def test_error_of_gossipdp_leaves_an_interpreter_with_a_prompt_as_it_is(tmp_path: Path, prompt: str) -> None:
    begin = "import sys; sys.ps1 = '>>> '\n" if prompt == "ps1" else ""
    code = f"{begin}from gossipdp.training.exit_code import set_exit_codes; from gossipdp.errors import ConfigError\n"
    code += "set_exit_codes()\n"
    if prompt == "ps1":
        code += "sys.excepthook(ConfigError, ConfigError('GD-306', 'no'), None); print('goes on')"
        command, typed = [sys.executable, "-c", code], ""
    else:
        command, typed = [sys.executable, "-i", "-c", code + "raise ConfigError('GD-306', 'no')"], "print('goes on')\n"
    run = subprocess.run(command, input=typed, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "goes on\n")
    assert "GD-306 no\n" in run.stderr and "Traceback" not in run.stderr and "SystemExit" not in run.stderr


def test_importing_gossipdp_imports_no_torch() -> None:
    code = (
        "import sys, gossipdp; assert 'torch' not in sys.modules and 'attach' in dir(gossipdp);"
        "assert gossipdp.__all__ == sorted(gossipdp.__all__);"
        "print([hasattr(gossipdp, name) for name in gossipdp.__all__], 'torch' in sys.modules, hasattr(gossipdp, 'x'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[True, True, True, True] True False\n"
