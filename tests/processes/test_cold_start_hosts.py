"""A power cut of a whole network: it goes on from the latest checkpoint, whichever host is up first (I14)."""

from collections.abc import Callable

import pytest

from gossipdp.runtime.storage.store import Store
from peers import control
from tests.processes.running import Host, Network, until

pytestmark = pytest.mark.processes


def saved(host: Host) -> int:
    """The clock of its newest checkpoint."""
    newest = Store(host.home / "checkpoints").newest()
    return 0 if newest is None else newest[1].clock


def kill_all(hosts: list[Host]) -> list[int]:
    """Kill every process. Return the length of each daemon's log."""
    for host in hosts:
        for process in (host.training, host.daemon):
            assert process is not None
            process.kill()
    return [len(host.text()) for host in hosts]


def origin(host: Host, since: int) -> str:
    """How it got its model, by the log of its present life."""
    return next((word for word in ("founded", "restored", "received") if f"model {word}" in host.text()[since:]), "")


@pytest.mark.long
def test_all_killed__the_latest_checkpoint_is_restored_and_all_others_follow(network: Callable[..., Network]) -> None:
    three = network(3)
    three.start()
    three.until_it_runs()
    # Neither the founder nor the first host up has the latest checkpoint.
    latest = three.hosts[2]
    before = saved(latest)
    until("the clocks have gone on", lambda: latest.status()["clock"] > before + 200, three.hosts)
    control.ask(latest.home, "checkpoint")
    until("it is saved", lambda: saved(latest) > max(map(saved, three.hosts[:2])), three.hosts)
    written = kill_all(three.hosts)
    for host in three.hosts:
        host.start_daemon()
        host.start_training()
    three.until_it_runs()
    came = [origin(host, since) for host, since in zip(three.hosts, written, strict=True)]
    assert came == ["received", "received", "restored"]
    assert min(host.status()["clock"] for host in three.hosts) >= saved(latest) - 100
