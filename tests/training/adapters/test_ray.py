"""The adapter of Ray Train: where its workers and ends differ from a loop's."""

import threading
from typing import Any

import pytest
import torch

from gossipdp.errors import ConfigError
from gossipdp.runtime import link as links
from tests.training.adapters.frameworks import Line, Tail, exchanged, framework, handed_over, seen
from tests.training.ledger_daemon import LedgerDaemon

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


@pytest.mark.parametrize("broken", [False, True])
def test_ray__the_function_that_returns_or_raises_is_detached(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    gossip = framework("ray")
    peers: list[Any] = []

    def loop() -> None:
        model = Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        peers.append(gossip.attach(model, optimizer, samples_per_step=5))
        for _ in range(3):
            model(torch.ones(5, 1), torch.ones(5, 1))["loss"].backward()
            optimizer.step()
        if broken:
            raise SystemExit

    monkeypatch.setattr(gossip.ray.train, "get_context", lambda: None)
    function = threading.Thread(target=loop)
    function.start()
    function.join()
    for thread in threading.enumerate():
        if thread.name == "gossipdp detach":
            thread.join()
    assert peers[0].alone and peers[0].steps == 3
    assert handed_over(daemon) == (3, 15)
    assert seen(daemon, links.Detached) == [links.Detached("it has detached", left=True)]


def test_ray__a_script_that_is_no_worker_is_told_by_ray(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    gossip = framework("ray")

    def refuse() -> None:
        raise RuntimeError("`get_context` cannot be used outside of a Ray Train training function.")

    monkeypatch.setattr(gossip.ray.train, "get_context", refuse)
    model = Line()
    with pytest.raises(RuntimeError, match="outside of a Ray Train"):
        gossip.attach(model, torch.optim.SGD(model.parameters()))
    assert not seen(daemon, links.Attached)


def test_ray__workers_on_several_hosts_are_told_what_to_do_with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    gossip = framework("ray")

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError(
            "GD-308", "the ranks of one group are on several hosts", seen="2 ranks on a, b", do="torchrun"
        )

    monkeypatch.setattr(gossip.ray.train, "get_context", lambda: None)
    monkeypatch.setattr(gossip.training, "attach", refuse)
    model = Line()
    with pytest.raises(ConfigError, match="GD-308") as caught:
        gossip.attach(model, torch.optim.SGD(model.parameters()))
    assert "STRICT_PACK" in caught.value.do and caught.value.seen == "2 ranks on a, b"


def test_ray__excluded_tensors_are_not_exchanged(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    gossip, tail = framework("ray"), Tail()
    monkeypatch.setattr(gossip.ray.train, "get_context", lambda: None)
    with gossip.attach(tail, torch.optim.SGD(tail.parameters(), lr=0.1), exclude=["queue"]):
        assert exchanged(daemon) == ["scale"]
