"""Real attachments to simulated hosts: they exchange, hand the model on, and equal runs are equal."""

from pathlib import Path

import pytest
import torch

import gossipdp
from gossipdp.training.attachment import Attachment
from simulations.simulator.attached import AttachedHost, AttachedNetwork
from simulations.simulator.settings import peer_config
from tests.training.models import small, train, vector

Trained = tuple[AttachedHost, torch.nn.Module, torch.optim.Optimizer, Attachment]


@pytest.fixture(autouse=True)
def with_gossip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSIPDP_OFF", raising=False)


def joined(network: AttachedNetwork, seed: int) -> Trained:
    served, model = network.add(), small(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with served.answering():
        return served, model, optimizer, gossipdp.attach(model, optimizer, home=served.home, timeout=60.0)


def played(directory: Path, steps: int = 60) -> tuple[list[torch.nn.Module], list[int], float]:
    """The models of two hosts, their exchanges, and how far a joiner is from the first model when it attaches."""
    config = peer_config(every=5, warmup_steps=10, moments=True)
    with AttachedNetwork(directory, config, seed=0) as network:
        hosts = [joined(network, seed) for seed in range(2)]
        for step in range(steps):
            for number, (_, model, optimizer, _) in enumerate(hosts):
                train(model, optimizer, 1, seed=100 * number + step)
            network.pass_time(0.05)
        joiner = joined(network, 7)
        far = float(abs(vector(joiner[1]) - vector(hosts[0][1])).max())
        for served, *_, peer in (*hosts, joiner):
            with served.answering():
                peer.detach()
        return [model for _, model, *_ in hosts], [served.exchanges for served, *_ in hosts], far


def test_two_hosts_exchange_and_a_joiner_gets_their_model(tmp_path: Path) -> None:
    models, exchanges, far = played(tmp_path)
    assert min(exchanges) >= 5
    apart, started = (abs(vector(one) - vector(other)).max() for one, other in (models, (small(0), small(1))))
    assert apart < 0.3 * started and far < 0.3 * started


def test_equal_calls_give_equal_models(tmp_path: Path) -> None:
    first, second = (played(tmp_path / name, steps=20)[0] for name in ("one", "other"))
    assert all((vector(one) == vector(other)).all() for one, other in zip(first, second, strict=True))
