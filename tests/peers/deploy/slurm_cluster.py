"""A Slurm cluster of two nodes that are both this machine, for a test with the mark `needs("Slurm")`. Not a test.

Both names of the nodes lead to loopback. Its daemons have their keys, ports and files in a folder of their own.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from simulations.processes.namespaces.processes import ROOT, Process, kept_port
from simulations.processes.progress import until
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
