"""`gossipdp.attach` in a real training process, with daemons that die under it: byte_gpt with 11M parameters."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.running import Host, Network, byte_gpt, until
from tests.processes.running import byte_gpt_steps as steps

pytestmark = pytest.mark.processes


def until_back(network: Network, host: Host) -> None:
    def back() -> bool:
        status = host.status()
        return bool(status and status["training"] == "attached" and status["exchanges"].get("done", 0) > 0)

    until(f"{host.name} is attached again and exchanges", back, network.hosts)


@pytest.mark.long
def test_daemons_killed_under_byte_gpt__training_never_stops_and_attaches_again(
    network: Callable[..., Network],
) -> None:
    two = network(2)
    first, second = two.hosts
    two.settle_in()
    first.start_daemon()
    second.start_daemon(f"chunk 7 sent@2 if {second.home}.now")
    processes = [host.start_training(byte_gpt(host, "11M")) for host in two.hosts]
    two.until_it_runs(exchanges=2)
    until("both have stepped", lambda: min(len(steps(host)) for host in two.hosts) > 2, two.hosts)
    assert first.status()["last_exchange"]["of"] > 8, "more chunks than credit"

    # The joiner dies in the middle of an exchange, then the founder.
    since = [len(steps(host)) for host in two.hosts]
    Path(f"{second.home}.now").touch()
    assert second.daemon is not None and second.daemon.ended() == -9
    until("the founder sees it", lambda: first.member(second.name)["state"] == "failed", two.hosts)
    alone = len(steps(second))
    until("it trains alone", lambda: len(steps(second)) > alone + 2, two.hosts)
    second.start_daemon()
    until_back(two, second)
    assert first.daemon is not None
    first.daemon.kill()
    alone = len(steps(first))
    until("the first trains alone", lambda: len(steps(first)) > alone + 2, two.hosts)
    first.start_daemon()
    until_back(two, first)

    assert [process.code for process in processes] == [None, None], "training processes live through it"
    for host, start in zip(two.hosts, since, strict=True):
        lines = steps(host)[start - 1 :]
        assert all(math.isfinite(line["loss"]) for line in lines)
    assert sum(host.text().count("model founded") for host in two.hosts) == 1

    # attach reports a model that differs from the network's where the process was started.
    processes[1].kill()
    until("the daemon has noticed", lambda: second.status()["training"] == "none", two.hosts)
    other = second.start_training(byte_gpt(second, "0.25M"))
    assert other.ended() != 0
    assert re.search(r"GD-301.*\n?.*embedding\.weight", second.text())
