"""What a peer needs of memory: said before it is taken, where a container's limit is too low; and measured."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import link as links
from gossipdp.runtime.memory_need import MemoryPlan
from peers.control import ask
from simulations.processes.benchmarks.gpu import daemon_of
from simulations.processes.two_daemons import one_daemon
from tests.processes.running import Host, Network, until

pytestmark = pytest.mark.processes

GROUPS = Path("/sys/fs/cgroup")
PARAMETERS = 40_000_000
MAY_HAVE = 700_000_000
"""bytes: a daemon without a model takes some 250 MB, and this model 0.9 GB"""
NEED = f"40,000,000 parameters need {MemoryPlan().need(PARAMETERS).total / 1e9:.2f} GB"


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[[list[str]], list[str]]]:
    """Makes a command run in a control group with little memory."""
    unified = (GROUPS / "cgroup.controllers").exists()
    folder = (GROUPS if unified else GROUPS / "memory") / f"gossipdp-test-{os.getpid()}"
    limit = folder / ("memory.max" if unified else "memory.limit_in_bytes")
    folder.mkdir()
    limit.write_text(str(MAY_HAVE))

    def within(argv: list[str]) -> list[str]:
        return ["sh", "-c", f"echo $$ > {folder}/cgroup.procs && exec {shlex.join(argv)}"]

    yield within
    until("its processes are gone", lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def refused(home: Path) -> links.Refused:
    """What the daemon answers to a training process with a model of `PARAMETERS`."""
    link = links.Link.connect(home)
    link.hello(Schema.of([("w", (PARAMETERS,), "float32", "parameter")]))
    until("the daemon answers", lambda: link.wait(0.1))
    (message,) = link.receive()
    assert isinstance(message, links.Refused)
    return message


@pytest.mark.needs("control groups")
def test_founding_a_model_for_which_there_is_no_memory_is_refused_with_figures(
    tmp_path: Path, limited: Callable[[list[str]], list[str]]
) -> None:
    host = Host(tmp_path, "h0", founder=True, within=limited)  # type: ignore[arg-type]
    try:
        host.settle_in(None)
        host.start_daemon()
        until("the daemon listens", host.status, [host])
        told = refused(host.home)
        assert told.code == "GD-502" and NEED in told.seen and "control group" in " ".join(told.seen.split())
        assert "a host with more" in told.do and "moments" not in told.do, "they are on disk"
        assert host.daemon is not None and host.daemon.code is None, "a smaller model may still attach"
    finally:
        host.end()


@pytest.mark.needs("control groups")
def test_joining_a_network_whose_model_does_not_fit_ends_with_the_figures(
    network: Callable[..., Network], tmp_path: Path, limited: Callable[[list[str]], list[str]]
) -> None:
    made = network(1, size=PARAMETERS, pace=0.1)
    made.start()
    until("the founder has its model", lambda: (made.founder.status() or {}).get("state") == "ready", made.hosts)
    joiner = Host(tmp_path, "small", founder=False, within=limited)  # type: ignore[arg-type]
    try:
        joiner.start_supervised([sys.executable, "-c", "import time; time.sleep(1000)"], join=f"@{made.invite()}")
        assert joiner.supervisor is not None and joiner.supervisor.ended() == 7
        said = joiner.log.read_text()
        assert "GD-502 the model does not fit in this host's memory" in said and NEED in said
    finally:
        joiner.end()


# -- the figures themselves -------------------------------------------------------------------------------------


class Peak(threading.Thread):
    """The most memory of a process that no other process shares, and that is in no file."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._file, self._over, self.bytes = Path(f"/proc/{pid}/smaps_rollup"), threading.Event(), 0

    def run(self) -> None:
        while not self._over.wait(0.02):
            found = {name: 1024 * int(size) for name, size in re.findall(r"(\w+): +(\d+) kB", self._file.read_text())}
            self.bytes = max(self.bytes, found["Pss_Anon"])

    def end(self) -> int:
        self._over.set()
        self.join()
        return self.bytes


PARTNER = """
import sys, time, torch, gossipdp
model = torch.nn.Linear(1000, int(sys.argv[2]), bias=False)
model.weight.grad = torch.randn_like(model.weight)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
gossipdp.attach(model, optimizer, home=sys.argv[1])
while True:
    optimizer.step()
    time.sleep(0.2)
"""


@pytest.mark.long
@pytest.mark.parametrize("millions", [5, 25])
def test_a_founder_that_serves_a_joiner_and_exchanges_takes_what_the_plan_says(millions: int) -> None:
    settings: Mapping[str, Any] = {"exchange.every": 2, "exchange.warmup_steps": 0, "exchange.early_steps": 0}
    with one_daemon("host", ["up", "--network", "bench"], settings) as home:
        model = nn.Linear(1000, 1000 * millions, bias=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        model.weight.grad = torch.randn_like(model.weight)
        peak = Peak(daemon_of(home).pid)
        peak.start()
        peer = gossipdp.attach(model, optimizer, home=home)

        def train_until(what: str, condition: Callable[[], bool]) -> None:
            first = ask(home, "status")["round"]

            def holds() -> bool:
                optimizer.step()
                return condition()

            until(what, holds, moves=lambda: min(ask(home, "status")["round"] - first, 12))

        train_until("moments are here", lambda: ask(home, "status")["round"] > 11)
        with one_daemon("partner", ["join", f"@{home / 'invite'}"], settings) as partner:
            train_until("the partner has joined", lambda: ask(partner, "status", timeout=60.0)["state"] == "ready")
            round_ = ask(home, "status")["round"]
            with subprocess.Popen([sys.executable, "-c", PARTNER, str(partner), str(1000 * millions)]) as child:
                train_until("exchanges", lambda: ask(home, "status")["exchanges"].get("done", 0) >= 5)
                train_until("moments are replaced", lambda: ask(home, "status")["round"] > round_ + 11)
                child.kill()
        peer.detach()
        need = MemoryPlan().need(1_000_000 * millions)
        measured = peak.end() + need.shared
    print(f"{millions} million: {measured / 1e9:.3f} GB measured, {need.total / 1e9:.3f} GB planned")
    assert 0.85 <= measured / need.total <= 1.15
