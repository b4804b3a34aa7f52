"""One peer on each node of a Ray cluster: its daemon under an actor, its training by a TorchTrainer on that node.

    python -m peers.deploy.ray.cluster --peers 2 --workers 8 --gpu --loop my_training:loop

Run it on a node of the cluster. A placement group with STRICT_SPREAD puts an actor on each of `--peers` nodes. The
actor starts `gossipdp up` or `gossipdp join` without a training command: Ray starts and restarts the training. The
loop is the function that TorchTrainer takes. It calls `attach` of `gossipdp.training.adapters.ray`, as
`peers/jobs/recipes/ray_train_gossip.py` does. A node's home is GOSSIPDP_HOME, if Ray was started there with it, else
~/.gossipdp/NETWORK. When all trainings are over, the network comes to its final model. At SIGTERM, at Ctrl-C and
after a failure all peers leave in order.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gossipdp import launch
from gossipdp.errors import UnreachableError
from peers.control import ask
from peers.home import find_home, network_of

__all__ = ["Host", "main", "train"]

STARTS_WITHIN = 120.0
LEAVES_WITHIN = 120.0
LOOK = 0.2
"""seconds"""


class Host:
    """The peer of the node on which this actor runs."""

    def __init__(self, network: str) -> None:
        self._network, self._home = network, find_home(None, network)
        self._peer: subprocess.Popen[bytes] | None = None

    def node(self) -> str:
        """Ray's id of this node."""
        return str(ray.get_runtime_context().get_node_id())

    def belongs(self) -> bool:
        """Whether an earlier run has left a home here."""
        return network_of(self._home) is not None

    def start(self, options: Sequence[str], invite: str = "") -> str:
        """Start the peer: it joins by `invite`, or without one founds the network. Return its own invite.

        Args:
            options: of `gossipdp up` and `gossipdp join`.

        Raises:
            RuntimeError: the peer has ended, or its daemon does not answer in time.
        """
        words = ["join", *options, "-"] if invite else ["up", "--network", self._network, *options]
        argv = [*launch.command("peers.cli"), "--home", str(self._home), *words]
        self._peer = subprocess.Popen(argv, stdin=subprocess.PIPE)
        assert self._peer.stdin is not None
        with self._peer.stdin as stdin:
            stdin.write(invite.encode())
        deadline = time.monotonic() + STARTS_WITHIN
        while self._peer.poll() is None and time.monotonic() < deadline:
            try:
                return Path(ask(self._home, "invite")["path"]).read_text()
            except UnreachableError:
                time.sleep(LOOK)
        raise RuntimeError(
            f"the peer of {self._home} does not start (exit code {self._peer.poll()}): see {self._home}/log"
        )

    def finish(self) -> None:
        """Ask all members to end the run."""
        ask(self._home, "finish", calls=True)

    def ended(self) -> int | None:
        """Wait until the peer has ended. Return its exit code."""
        return None if self._peer is None else self._peer.wait()

    def leave(self) -> int | None:
        """Let the peer leave, if it runs. Return its exit code."""
        if self._peer is not None and self._peer.poll() is None:
            self._peer.send_signal(signal.SIGTERM)
        return self.ended()


def train(loop: Callable[[dict[str, Any]], None], settings: dict[str, Any], node: str, name: str, options: Any) -> None:
    """Run `loop` in workers on `node` alone: they are the ranks of that node's peer."""
    scaling = ScalingConfig(
        num_workers=options.workers,
        use_gpu=options.gpu,
        placement_strategy="STRICT_PACK",
        label_selector={"ray.io/node-id": node},
    )
    run = RunConfig(name=name, storage_path=options.storage, failure_config=FailureConfig(max_failures=-1))
    TorchTrainer(loop, train_loop_config=settings, scaling_config=scaling, run_config=run).fit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the peers until their trainings are over. Return the exit code."""
    options = parse(argv)
    module, _, name = options.loop.partition(":")
    loop, settings = getattr(importlib.import_module(module), name), json.loads(options.settings)
    ray.init()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())  # Ray has set a handler of its own
    spread = placement_group([{"CPU": 1}] * options.peers, strategy="STRICT_SPREAD")
    ray.get(spread.ready())
    # A thread of its own for `leave` while another call waits.
    hosts = [
        ray.remote(Host)
        .options(num_cpus=1, max_concurrency=2, scheduling_strategy=PlacementGroupSchedulingStrategy(spread, index))
        .remote(options.network)
        for index in range(options.peers)
    ]
    try:
        # The network goes on where it has a home. Otherwise the first host founds it.
        known = ray.get([host.belongs.remote() for host in hosts])
        founder = hosts[known.index(True) if True in known else 0]
        invite = ray.get(founder.start.remote(options.peer_options))
        ray.get([host.start.remote(options.peer_options, invite) for host in hosts if host is not founder])
        nodes = ray.get([host.node.remote() for host in hosts])
        task = ray.remote(train).options(num_cpus=0)
        trained = [task.remote(loop, settings, node, f"{options.network}-{node[:8]}", options) for node in nodes]
        while trained:
            ended, trained = ray.wait(trained, timeout=LOOK)
            ray.get(ended)  # raises what broke it
            if stopped.is_set():
                return 128 + signal.SIGTERM
        ray.get(founder.finish.remote())
        codes = ray.get([host.ended.remote() for host in hosts])
    finally:
        ray.get([host.leave.remote() for host in hosts], timeout=LEAVES_WITHIN)
    return max(int(code) for code in codes)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers.deploy.ray.cluster", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--peers", type=int, default=2, help="nodes, each a peer (%(default)s)")
    add("--workers", type=int, default=1, help="workers of each TorchTrainer (%(default)s)")
    add("--gpu", action="store_true", help="a GPU for each worker")
    add("--network", default="tiny", help="name of the network (%(default)s)")
    add(
        "--loop",
        default="peers.jobs.recipes.ray_train_gossip:loop",
        help="MODULE:FUNCTION for TorchTrainer (%(default)s)",
    )
    add("--settings", default="{}", help="JSON: what the loop is called with (%(default)s)")
    add("--storage", help="RunConfig's storage_path, which all nodes share")
    add(
        "peer_options", nargs="*", metavar="-- OPTION", help="options of `gossipdp up` and `join`, such as --preset lan"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
