"""Makes the workers of a Ray Train `TorchTrainer` a peer: call `attach` in the function that every worker runs.

    from gossipdp.training.adapters import ray as gossip
    model = ray.train.torch.prepare_model(model)
    peer = gossip.attach(model, optimizer, samples_per_step=batch)

All workers of one trainer are one process group, so they must be on one host. Each host has its own trainer, and gossip
joins the hosts. Importing this file imports ray.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import torch

from gossipdp.errors import ConfigError
from gossipdp.training import attach as training
from gossipdp.training.adapters import missing
from gossipdp.training.attachment import Attachment
from gossipdp.training.tensors.excluded import Exclude
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
    exclude: Exclude = (),
) -> Attachment:
    """Train `model` together with the network whose daemon runs on this host. Call it in every worker.

    Detaches when the training function returns or raises, because Ray keeps the process for a while and then kills it.

    Args:
        model, optimizer, every, samples_per_step, timeout, compare_frozen, exclude: as `gossipdp.attach` takes them.
        home: as `gossipdp.attach` takes it. Workers have the environment in which Ray was started on this host. If
            GOSSIPDP_HOME is not set there, give the home here.

    Returns:
        The attachment, which also is a context manager that detaches.

    Raises:
        GossipdpError: as `gossipdp.attach`; ConfigError GD-308, the workers are on several hosts.
        RuntimeError: Ray's own, if the calling process is no worker (Ray Train V2).

    Example:
        model = ray.train.torch.prepare_model(model)
        peer = attach(model, optimizer, samples_per_step=batch)
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
            exclude=exclude,
        )
    except ConfigError as error:
        if error.code != "GD-308":
            raise
        do = "run a TorchTrainer on each host: ScalingConfig(placement_strategy='STRICT_PACK'); gossip joins the hosts"
        raise ConfigError(error.code, error.cause, seen=error.seen, do=do) from None
    function = threading.current_thread()
    if function is not threading.main_thread():
        # Ray runs the function in its own thread, and has no callback for its end.
        threading.Thread(target=_detach_after, args=(function, peer), name="gossipdp detach", daemon=True).start()
    return peer


def _detach_after(function: threading.Thread, peer: Attachment) -> None:
    function.join()
    peer.detach()
