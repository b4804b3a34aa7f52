"""The carried state that `attach` sends with every snapshot and at the end, and that the next process gets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.codecs import named
from gossipdp.runtime import link as links
from gossipdp.training.tensors.carried import CarriedState
from tests.training.ledger_daemon import LedgerDaemon


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("mask", torch.tensor([-torch.inf, -1e9, float(seed)]))
    return model


def told(daemon: LedgerDaemon) -> int:
    """Batches seen by the state that the daemon holds."""
    data = named.unpack(daemon.carried.state)["1.num_batches_tracked"].data
    return int(np.frombuffer(data, np.int64)[0])


def test_state_follows_every_snapshot_and_the_next_process_begins_with_the_last(tmp_path: Path) -> None:
    daemon = LedgerDaemon(tmp_path, every=2)
    first = model_of(1)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    with daemon.running():
        peer = gossipdp.attach(first, optimizer, home=tmp_path)
    assert told(daemon) == 0
    for step in range(1, 8):
        first(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        daemon.pump()
        assert told(daemon) == step - step % 2
    with daemon.running():
        peer.detach()
    assert told(daemon) == 7, "the last steps too"
    daemon.pump()

    second = model_of(2)
    with daemon.running():
        gossipdp.attach(second, torch.optim.SGD(second.parameters(), lr=0.1), home=tmp_path).detach()
    assert int(second[1].num_batches_tracked) == 7
    assert second.mask.tolist() == [-torch.inf, -1e9, 1.0]
    daemon.server.close()


def state_of(batches: int) -> bytes:
    head = named.header([("1.num_batches_tracked", "I64", ())])
    return head + np.int64(batches).tobytes()


@pytest.mark.parametrize("states", [(50,), (50, 60)], ids=["between steps", "another while it is loaded"])
def test_state_of_another_model_that_the_daemon_took_over__is_loaded_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[int, ...]
) -> None:
    daemon = LedgerDaemon(tmp_path, every=100)
    model = model_of(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with daemon.running():
        peer = gossipdp.attach(model, optimizer, home=tmp_path)
    to_come = list(states)
    load = CarriedState.load

    def renew() -> None:
        if to_come:
            daemon.server.send(links.Renewed(daemon.session), [state_of(to_come.pop(0))])

    def load_and_renew(carried: CarriedState, data: bytes) -> None:
        load(carried, data)
        renew()
        peer._session.poll()

    monkeypatch.setattr(CarriedState, "load", load_and_renew)
    renew()
    for _ in range(3):
        optimizer.step()
    assert int(model[1].num_batches_tracked) == states[-1]
    daemon.server.close()
