"""The recipes for Slurm and Ray on small clusters of this machine, with real peers."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gossipdp.errors import GossipdpError
from peers.control import ask
from simulations.processes.namespaces.processes import TRAINING, Process, environment, gossipdp, kept_port
from simulations.processes.progress import until
from tests.peers.deploy import slurm_cluster
from tests.peers.deploy.files import SBATCH

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="gdp-") as made:
        yield Path(made)


def status(home: Path) -> dict[str, Any]:
    try:
        return ask(home, "status")
    except GossipdpError:
        return {}


def exchanges(*homes: Path) -> Callable[[], bool]:
    return lambda: all(status(home).get("exchanges", {}).get("done", 0) > 0 for home in homes)


@pytest.fixture
def slurm(short: Path) -> Iterator[slurm_cluster.Cluster]:
    made = slurm_cluster.Cluster(short / "slurm")
    yield made
    made.end("1")


@pytest.mark.needs("Slurm")
def test_slurm__at_the_signal_peers_leave_and_the_job_is_queued_again(
    slurm: slurm_cluster.Cluster, tmp_path: Path
) -> None:
    with kept_port() as keeper:  # the two ports that follow are rarely taken
        port = keeper.getsockname()[1] + 1
    run = tmp_path / "run"
    train = [sys.executable, str(TRAINING), "diary", "--pace", "0.01"]
    job = slurm.submit(SBATCH, train, RUN=str(run), PORT=str(port), GOSSIPDP_METRICS_LISTEN="off")
    assert job == "1"
    until("both peers exchange", exchanges(run / "peer-0", run / "peer-1"))
    slurm.ask("scancel", "--batch", "--signal=TERM", job)  # as Slurm does before the time limit
    until("it is queued again", lambda: slurm.ask("squeue", "--noheader", "-o", "%T") == "PENDING")
    said = slurm.log(job)
    assert "the peers have left, and the job is queued again" in said
    assert said.count(": left\n") == 2 and "has left" in said and "has failed" not in said
    assert all(list((run / f"peer-{n}" / "checkpoints").glob("checkpoint-*")) for n in (0, 1))


@pytest.fixture
def ray_address(short: Path) -> Iterator[str]:
    """A Ray cluster of two nodes on this machine. Each has a home, short / "home0" and short / "home1"."""
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    os.environ["RAY_TMPDIR"], before = str(short), os.environ.get("RAY_TMPDIR")
    cluster = Cluster()
    try:
        for number in range(2):
            variables = environment(GOSSIPDP_HOME=str(short / f"home{number}"), CUDA_VISIBLE_DEVICES="")
            cluster.add_node(num_cpus=3, include_dashboard=False, object_store_memory=80 << 20, env_vars=variables)
        yield cluster.address
    finally:
        cluster.shutdown()
        if before is None:
            del os.environ["RAY_TMPDIR"]
        else:
            os.environ["RAY_TMPDIR"] = before


def driver(short: Path, address: str, steps: int) -> Process:
    argv = [sys.executable, "-m", "peers.deploy.ray.cluster", "--peers", "2", "--storage", str(short / "storage")]
    argv += ["--settings", f'{{"steps": {steps}, "out": null}}', "--", "--preset", "local"]
    argv += ["--listen", "tcp://127.0.0.1:0", "--set", "metrics.listen=off"]
    variables = environment(RAY_ADDRESS=address, RAY_USAGE_STATS_ENABLED="0", CUDA_VISIBLE_DEVICES="")
    return Process(argv, short / "driver.log", variables)


@pytest.mark.filterwarnings("ignore")  # those of Ray are its own affair
def test_ray__peers_of_two_nodes_leave_at_sigterm_and_the_next_run_goes_on_to_a_final_model(
    short: Path, ray_address: str
) -> None:
    homes = [short / "home0", short / "home1"]
    first = driver(short, ray_address, 100_000)
    try:
        until("both peers exchange", exchanges(*homes))
        first.signal(signal.SIGTERM)
        assert first.ended() == 143
    finally:
        first.kill()
    assert not any(status(home) for home in homes)
    logs = [(home / "log" / "peer.log").read_text() for home in homes]
    assert all(log.rstrip().endswith("left") for log in logs), logs
    assert any("has left" in log for log in logs) and not any("has failed" in log for log in logs)
    second = driver(short, ray_address, 60)
    try:
        assert second.ended() == 0, (short / "driver.log").read_text()[-3000:]
    finally:
        second.kill()
    assert all((home / "final" / "final.json").exists() for home in homes)
    assert gossipdp("--home", str(homes[0]), "up").returncode == 3, "a finished home is not trained on"
