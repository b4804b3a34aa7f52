"""Training tests run on one thread, with gossip on, and retry at once. Fixtures give daemons to attach to."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gossipdp.training import attach, connection
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GOSSIPDP_OFF", "GOSSIPDP_HOME", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "RETRY", 0.0)
    monkeypatch.setattr(connection, "RETRY_REFUSED", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if accelerate := sys.modules.get("accelerate.state"):  # Accelerate's state is one per process
        accelerate.AcceleratorState._reset_state(True)
        accelerate.GradientState._reset_state()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LedgerDaemon]:
    daemon = LedgerDaemon(tmp_path)
    yield daemon
    daemon.server.close()


@pytest.fixture
def pumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PumpedDaemon]:
    """Runs in a thread meanwhile; `attach` finds it."""
    monkeypatch.setenv("GOSSIPDP_HOME", str(tmp_path))
    daemon = PumpedDaemon(tmp_path, every=2)
    with daemon.running():
        yield daemon
    daemon.server.close()
    torch.compiler.reset()


@pytest.fixture
def group_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one rank, which takes the code path of several."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    monkeypatch.setattr(attach, "several_ranks", lambda: True)
    yield
    dist.destroy_process_group()
