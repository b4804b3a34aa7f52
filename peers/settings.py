"""The operator's configuration as the settings of the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossipdp import config as configuration
from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS
from gossipdp.config import Config
from gossipdp.protocol.epidemic.broadcast import RumoursConfig
from gossipdp.protocol.epidemic.epidemic import SpreadingConfig
from gossipdp.protocol.membership import membership
from gossipdp.protocol.pairwise.averaging import AveragingConfig
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.peer import PeerConfig
from gossipdp.protocol.transfer.source import TransferConfig
from peers.memory import usable

__all__ = ["TIMINGS", "algorithm_of", "peer_config"]

BYTES_PER_PARAMETER = 10
"""anchor, momentum and some: what a daemon needs at the least"""
TIMINGS: dict[str, dict[str, Any]] = {
    "local": {
        "membership": membership.LOCAL,
        "deadlines": Deadlines(ask=0.5, silence=4.0, doubt=1.0),
        "matching": MatchingConfig(answer=0.5, pause=0.02, longest_pause=0.5),
        "transfer": TransferConfig(manifest=10.0, chunk=1.0, silence=4.0, witness=2.0),
        "rumours": RumoursConfig(again=1.0, wait=0.3, patience=1.5, sync=1.0),
        "resume_after": 10.0,
    },
    "lan": {
        "membership": membership.LAN,
        "deadlines": Deadlines(ask=1.0, silence=10.0, doubt=3.0),
        "matching": MatchingConfig(),
        "transfer": TransferConfig(),
        "rumours": RumoursConfig(again=2.0, wait=0.5, patience=3.0, sync=2.0),
        "resume_after": 30.0,
    },
    "wan": {
        "membership": membership.WAN,
        "deadlines": Deadlines(ask=4.0, silence=30.0, doubt=10.0),
        "matching": MatchingConfig(answer=2.0, pause=0.1, longest_pause=4.0),
        "transfer": TransferConfig(manifest=60.0, chunk=20.0, silence=60.0, window=16, witness=30.0),
        "rumours": RumoursConfig(),
        "resume_after": 30.0,
        "links": {"handshake": 4.0, "connect": 8.0, "hello": 6.0},  # three round trips, and lost packets
    },
}
"""What [membership] timing means beyond membership itself; seconds."""


def algorithm_of(config: Config) -> Pairwise | Epidemic:
    if config.exchange.strategy == "pairwise":
        return Pairwise(clip=config.safety.clip_factor)
    return Epidemic(bad=config.exchange.robust_share)


def peer_config(config: Config) -> PeerConfig:
    """What the operator wrote, as the protocol takes it."""
    timing = TIMINGS[config.membership.timing]
    exchange, outer = config.exchange, config.outer
    memory, settings = usable(), configuration.settings_digest(config)
    # Where increments land epochs later nothing is gained by short rounds.
    warmup_steps = 0 if exchange.rule else exchange.warmup_steps
    return PeerConfig(
        membership=timing["membership"],
        algorithm=exchange.strategy,
        spreading=SpreadingConfig(
            rumours=replace(
                timing["rumours"],
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
                timing["matching"],
                schedule="" if exchange.partners == "random" else exchange.partners,
                ahead=exchange.mode != "sync",
            ),
            deadlines=timing["deadlines"],
        ),
        transfer=replace(timing["transfer"], max_parameters=memory // BYTES_PER_PARAMETER),
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
        resume_after=timing["resume_after"],
        apart_rounds=exchange.apart_rounds,
    )
