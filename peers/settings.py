"""Turns the operator's configuration into the settings of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gossipdp import config as configuration
from gossipdp.algorithms.algorithm import Algorithm
from gossipdp.algorithms.ledger import Keep
from gossipdp.algorithms.registry import Epidemic, Pairwise
from gossipdp.codecs import CODECS
from gossipdp.config import Config
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.presets import PRESETS, TimingPreset
from gossipdp.protocol.strategies import EpidemicConfig, PairwiseConfig
from gossipdp.protocol.strategy import StrategyConfig
from gossipdp.runtime.cores import threads_for, usable_cores
from gossipdp.runtime.memory_need import MemoryPlan
from peers.memory import usable

__all__ = ["algorithm_of", "memory_plan", "peer_config", "workers"]


def memory_plan(config: Config) -> MemoryPlan:
    """The settings on which the daemon's need of memory depends."""
    exchange = config.exchange
    return MemoryPlan(
        exact=exchange.strategy == "epidemic",
        robust=bool(exchange.rule),
        moments=exchange.moments,
        window=exchange.window,
        workers=workers(config),
    )


def workers(config: Config) -> int:
    """Compute threads of the daemon."""
    return config.compute.workers or threads_for(usable_cores())


def algorithm_of(config: Config, keep: Keep) -> Algorithm:
    """The arithmetic of the configured strategy. keep: see `Algorithm`."""
    if config.exchange.strategy == "pairwise":
        return Pairwise(clip=config.safety.clip_factor, keep=keep)
    return Epidemic(bad=config.exchange.robust_share, keep=keep)


def peer_config(config: Config) -> PeerConfig:
    """The protocol's settings. Times come from the preset that `[membership] timing` names."""
    timing = PRESETS[config.membership.timing]
    exchange, memory = config.exchange, usable()
    return PeerConfig(
        membership=timing.membership,
        strategy=STRATEGY_SETTINGS[exchange.strategy](config, timing),
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
        warmup_steps=_warmup_steps(config),
        early_steps=exchange.early_until,
        resume_after=timing.resume_after,
        apart_rounds=exchange.apart_rounds,
        finish_wait=config.finish.wait,
        finish_follow=config.finish.follow,
    )


def _warmup_steps(config: Config) -> int:
    # With a robust rule increments land epochs later. Short rounds would gain nothing.
    return 0 if config.exchange.rule else config.exchange.warmup_steps


def _pairwise(config: Config, timing: TimingPreset) -> PairwiseConfig:
    exchange = config.exchange
    return PairwiseConfig(
        fineness={name: codec.fineness for name, codec in CODECS.items()},
        codec=exchange.codec,
        bits=exchange.bits,
        weight=exchange.weight,
        kappa=exchange.kappa,
        rate=exchange.bandwidth,
        window=exchange.window,
        early_exchanges=exchange.early_exchanges,
        late_exchanges=exchange.late_exchanges,
        matching=replace(
            timing.matching,
            schedule="" if exchange.partners == "random" else exchange.partners,
            ahead=exchange.mode != "sync",
        ),
        deadlines=timing.deadlines,
    )


def _epidemic(config: Config, timing: TimingPreset) -> EpidemicConfig:
    exchange, lr = config.exchange, config.lr
    assert lr is not None, "only pairwise chooses it"
    return EpidemicConfig(
        broadcast=replace(
            timing.broadcast,
            run=configuration.settings_digest(config),
            span=exchange.epoch_steps,
            retain=config.safety.memory_limit(usable()),
        ),
        compressor=exchange.compressor,
        whole_until=_warmup_steps(config),
        lr=lr,
        beta=exchange.residual,
        rule=exchange.rule,
    )


STRATEGY_SETTINGS: dict[str, Callable[[Config, TimingPreset], StrategyConfig]] = {
    "pairwise": _pairwise,
    "epidemic": _epidemic,
}
"""by the strategy's name"""
