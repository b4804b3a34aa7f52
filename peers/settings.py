"""Turns the operator's configuration into the settings of the protocol."""

from __future__ import annotations

from dataclasses import replace

from gossipdp import config as configuration
from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS
from gossipdp.config import Config
from gossipdp.protocol.config import PRESETS, PeerConfig
from gossipdp.protocol.epidemic.epidemic import SpreadingConfig
from gossipdp.protocol.pairwise.averaging import AveragingConfig
from peers.memory import usable

__all__ = ["algorithm_of", "peer_config"]

BYTES_PER_PARAMETER = 10
"""Bytes of memory that a daemon needs per parameter, at least: anchor, momentum and buffers."""


def algorithm_of(config: Config) -> Pairwise | Epidemic:
    """The arithmetic of the chosen strategy."""
    if config.exchange.strategy == "pairwise":
        return Pairwise(clip=config.safety.clip_factor)
    return Epidemic(bad=config.exchange.robust_share)


def peer_config(config: Config) -> PeerConfig:
    """The protocol's settings. Times come from the preset that `[membership] timing` names."""
    timing = PRESETS[config.membership.timing]
    exchange, outer = config.exchange, config.outer
    memory, settings = usable(), configuration.settings_digest(config)
    # A robust rule applies increments epochs later, so short rounds gain nothing.
    warmup_steps = 0 if exchange.rule else exchange.warmup_steps
    return PeerConfig(
        membership=timing.membership,
        algorithm=exchange.strategy,
        spreading=SpreadingConfig(
            rumours=replace(
                timing.rumours,
                run=settings,
                span=exchange.epoch_steps,
                retain=config.safety.memory_limit(memory),
            ),
            compressor=exchange.compressor,
            whole_until=warmup_steps,
            lr=config.lr,
            beta=exchange.residual,
            rule=exchange.rule,
        ),
        averaging=AveragingConfig(
            fineness={name: codec.fineness for name, codec in CODECS.items()},
            settings=settings,
            keys=tuple(configuration.agreed(config)),
            weight=exchange.weight,
            rate=exchange.bandwidth,
            window=exchange.window,
            matching=replace(
                timing.matching,
                schedule="" if exchange.partners == "random" else exchange.partners,
                ahead=exchange.mode != "sync",
            ),
            deadlines=timing.deadlines,
        ),
        transfer=replace(timing.transfer, max_parameters=memory // BYTES_PER_PARAMETER),
        every=exchange.every,
        codec=exchange.codec,
        bits=exchange.bits,
        moments=exchange.moments,
        sync=exchange.mode == "sync",
        lr=outer.lr,
        momentum=outer.momentum,
        kappa=exchange.kappa,
        warmup_steps=warmup_steps,
        early_steps=exchange.early_until,
        early_exchanges=exchange.early_exchanges,
        resume_after=timing.resume_after,
        apart_rounds=exchange.apart_rounds,
    )
