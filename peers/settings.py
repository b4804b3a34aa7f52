"""Turns the operator's configuration into the settings of the protocol."""

from __future__ import annotations

from dataclasses import replace

from gossipdp import config as configuration
from gossipdp.algorithms.ledger import Keep
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS
from gossipdp.config import Config
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.pairwise.config import AveragingConfig
from gossipdp.protocol.presets import PRESETS, TimingPreset
from gossipdp.runtime.cores import threads_for, usable_cores
from gossipdp.runtime.memory_need import MemoryPlan
from peers.memory import usable

__all__ = ["memory_plan", "pairwise", "peer_config", "workers"]


def memory_plan(config: Config) -> MemoryPlan:
    """The settings on which the daemon's need of memory depends."""
    return MemoryPlan(moments=config.exchange.moments, window=config.exchange.window, workers=workers(config))


def workers(config: Config) -> int:
    """Compute threads of the daemon."""
    return config.compute.workers or threads_for(usable_cores())


def pairwise(config: Config, keep: Keep) -> Pairwise:
    """The arithmetic of averaging. keep: see `Pairwise`."""
    return Pairwise(clip=config.safety.clip_factor, keep=keep)


def peer_config(config: Config, timing: TimingPreset | None = None) -> PeerConfig:
    """The protocol's settings. Times come from `timing`, or from the preset that `[membership] timing` names."""
    timing = timing or PRESETS[config.membership.timing]
    exchange, memory = config.exchange, usable()
    return PeerConfig(
        membership=replace(timing.membership, proven_after=config.safety.proven_after),
        averaging=_averaging(config, timing),
        settings=configuration.settings_digest(config),
        keys=tuple(configuration.agreed(config)),
        # A model that is sure to be none is refused here. `Room` judges all others, by the memory that is free.
        transfer=replace(timing.transfer, max_parameters=memory),
        ahead=1 if workers(config) == 1 else 2 * workers(config),
        every=exchange.every,
        moments=exchange.moments,
        sync=exchange.mode == "sync",
        lr=config.lr,
        momentum=config.momentum,
        warmup_steps=exchange.warmup_steps,
        early_steps=exchange.early_until,
        resume_after=timing.resume_after,
        apart_rounds=exchange.apart_rounds,
        finish_wait=config.finish.wait,
        finish_follow=config.finish.follow,
    )


def _averaging(config: Config, timing: TimingPreset) -> AveragingConfig:
    exchange = config.exchange
    return AveragingConfig(
        fineness={name: codec.fineness for name, codec in CODECS.items()},
        codec=exchange.codec,
        bits=exchange.bits,
        weight=exchange.weight,
        kappa=exchange.kappa,
        rate=exchange.bandwidth,
        window=exchange.window,
        early_exchanges=exchange.early_exchanges,
        late_exchanges=exchange.late_exchanges,
        schedule="" if exchange.partners == "random" else exchange.partners,
        matching=timing.matching,
        deadlines=timing.deadlines,
    )
