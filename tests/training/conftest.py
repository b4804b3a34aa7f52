"""Training tests run on one thread, with gossip on, and never retry by the wall clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gossipdp.training import session


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GOSSIPDP_OFF", "GOSSIPDP_HOME", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "RETRY", 0.0)
    monkeypatch.setattr(session, "RETRY_REFUSED", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
