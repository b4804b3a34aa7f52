"""The recipes for Slurm and Ray on small clusters of this machine, with real peers.

Both nodes of the Slurm cluster are this machine: their names lead to loopback. Its daemons have their keys, ports and
files in a folder of their own.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from gossipdp.errors import GossipdpError
from peers.control import ask
from simulations.processes.namespaces.processes import ROOT, TRAINING, Process, environment, gossipdp, kept_port
from simulations.processes.progress import until
from tests.peers.deploy.files import SBATCH
from tests.peers.deploy.shell import program

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=1000
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=1000
PartitionName=main Nodes={host},localhost Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """The daemons run from here until `end`.

    Args:
        folder: on a short path, since it has a socket. It is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, []
        (folder / "state").mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._keepers = [kept_port() for _ in range(3)]
        ports = [keeper.getsockname()[1] for keeper in self._keepers]
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname(), folder=folder, controller=ports[0], first=ports[1], second=ports[2]
            )
        )
        program(folder / "bin" / "gossipdp", f'exec {sys.executable} -m peers.cli "$@"')
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GOSSIPDP_", "SLURM_"))}
        path = f"{folder / 'bin'}:{kept['PATH']}"
        self._variables = {**kept, "PATH": path, "SLURM_CONF": str(configuration), "PYTHONPATH": str(ROOT)}
        self._variables["OMP_NUM_THREADS"] = "1"
        files = [
            f"--{name}-file={folder}/munge.{end}" for name, end in (("pid", "pid"), ("log", "log"), ("seed", "seed"))
        ]
        self._start("munged", "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={key}", *files)
        until("munge listens", (folder / "munge.sock").exists)
        self._start("slurmctld", "-D", "-f", str(configuration))
        for node in (socket.gethostname(), "localhost"):
            self._start("slurmd", "-D", "-N", node, "-f", str(configuration))
        until("both nodes are idle", lambda: self.ask("sinfo", "--noheader", "-o", "%D %T") == "2 idle")

    def _start(self, *argv: str) -> None:
        self._processes.append(Process(argv, self._folder / f"{argv[0]}.log", self._variables))

    def ask(self, *argv: str, **variables: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            argv, env={**self._variables, **variables}, cwd=self._folder, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def submit(self, script: Path, command: Sequence[str], **variables: str) -> str:
        """Submit a job. Return its number."""
        return self.ask("sbatch", "--parsable", str(script), *command, **variables)

    def log(self, job: str) -> str:
        path = self._folder / f"gossipdp-{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self, job: str = "") -> None:
        """End the job, if there is one, and all daemons."""
        if job:
            self.ask("scancel", job)
            until("the job is over", lambda: not self.ask("squeue", "--noheader", "--states=R,CG"))
        started = [psutil.Process(process.pid) for process in self._processes if process.code is None]
        left = [child for process in started for child in process.children(recursive=True)]
        for process in reversed(self._processes):
            process.kill()
        for child in left:
            if child.is_running():
                child.kill()
        for keeper in self._keepers:
            keeper.close()


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
def slurm(short: Path) -> Iterator[Cluster]:
    made = Cluster(short / "slurm")
    yield made
    made.end("1")


@pytest.mark.needs("Slurm")
def test_slurm__at_the_signal_peers_leave_and_the_job_is_queued_again(slurm: Cluster, tmp_path: Path) -> None:
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
