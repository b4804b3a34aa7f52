"""The workers of a Ray Train `TorchTrainer` as a peer: `attach` inside the function that every worker runs.

    from gossipdp.training.adapters import ray as gossip
    model = ray.train.torch.prepare_model(model)
    peer = gossip.attach(model, optimizer, samples_per_step=batch)

All workers of one trainer are one process group, and so on one host: each host has its own trainer, and gossip joins
the hosts. Importing this file imports ray.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import torch

from gossipdp.errors import ConfigError
from gossipdp.training import attach as training
from gossipdp.training.adapters import missing
from gossipdp.training.attach import Attachment
from gossipdp.training.tensors.parts import Modules

try:
    import ray.train
except ImportError as error:
    raise missing("ray", "ray", error) from None

__all__ = ["attach"]


def attach(
    model: Modules,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    home: str | os.PathLike[str] | None = None,
    every: int | None = None,
    samples_per_step: int | None = None,
    timeout: float | None = None,
    compare_frozen: bool = True,
) -> Attachment:
    """Train `model` together with the network whose daemon runs on this host; call it in every worker.

    Detaches when the training function returns or raises: Ray keeps its process for a while, then kills it.

    Args:
        home: as `gossipdp.attach` takes it. Workers have the environment that Ray was started in on this host, which
            need not be the one of the script: where GOSSIPDP_HOME is not in it, say it here.
        every, samples_per_step, timeout, compare_frozen: as `gossipdp.attach` takes them.

    Raises:
        GossipdpError: what `gossipdp.attach` raises; GD-308 if the workers are on several hosts.
        RuntimeError: Ray's own, where the script itself calls this, which is no worker (Ray Train V2).
    """
    ray.train.get_context()
    try:
        peer = training.attach(
            model,
            optimizer,
            home=home,
            every=every,
            samples_per_step=samples_per_step,
            timeout=timeout,
            compare_frozen=compare_frozen,
        )
    except ConfigError as error:
        if error.code != "GD-308":
            raise
        do = "one TorchTrainer for each host: ScalingConfig(placement_strategy='STRICT_PACK'); gossip joins the hosts"
        raise ConfigError(error.code, error.cause, seen=error.seen, do=do) from None
    function = threading.current_thread()
    if function is not threading.main_thread():
        # Ray runs the function in a thread of its own, and calls nobody when it is over.
        threading.Thread(target=_detach_after, args=(function, peer), name="gossipdp detach", daemon=True).start()
    return peer


def _detach_after(function: threading.Thread, peer: Attachment) -> None:
    function.join()
    peer.detach()
