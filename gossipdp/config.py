"""The operator's settings: one frozen struct per section, and the origin of each value.

`config_loading` fills them. Every key has one rule (`config_rules`) that reads it, shows it and names its range.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec

from gossipdp.config_rules import (
    BYTES,
    RATES,
    SECONDS,
    Choice,
    Endpoint,
    Integer,
    Many,
    Measure,
    Number,
    Rule,
    Switch,
    Text,
)
from gossipdp.protocol.settings_digest import digest_of

__all__ = [
    "Checkpoint",
    "Config",
    "Exchange",
    "Membership",
    "Metrics",
    "Network",
    "Outer",
    "Safety",
    "agreed",
    "dump",
    "settings_digest",
]

AUTO: Final = "auto"
DEFAULT_PRESET: Final = "wan"
AUTO_CLIP: Final = 1.5
"""factor on the clipping bound (algorithms section 3) for `clip = "auto"`"""
EPIDEMIC_LR: Final = 2.0
"""alpha of epidemic (algorithms section 4) unless `lr` is set, for runs of tens of rounds; use 1 for hundreds.

A guard limits overshoot (`algorithms.epidemic`). The share of the residual that is sent has no influence on it."""
COMPRESSORS: Final = (
    "topk64", "topk128", "topk256", "dct64", "dct128", "dct256", "threshold3", "sign", "twobit", "lowrank4", "whole",
)  # fmt: skip
ROBUST_LR: Final = 1.0
"""alpha of epidemic with a robust rule, which applies increments late"""
ROBUST_RULES: Final = ("nnm-trimmed", "nnm-median", "median")
"""robust rules that suit sparse increments (`algorithms.epidemic.robust`)"""
EARLY_SHARE: Final = 0.4
"""share of a run of known length in which a round makes more than one exchange"""

_NAME: Final = Text(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", "1 to 48 letters, digits, '.', '_' or '-', the first a letter or digit"
)
_PATH: Final = Text(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,1024}", "a path without control characters")
_ID: Final = Text(r"[0-9a-f]{64}", "a peer's id of 64 digits, as `gossipdp keys show` prints it")
_SEED: Final = Endpoint('"host:port"', any_port=False)


# -- the sections ------------------------------------------------------------------------------------------------


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Network(Section, frozen=True, kw_only=True):
    name: Annotated[str, _NAME] = "gossipdp"
    """the network's name; the home is ~/.gossipdp/NAME by default"""
    peer: Annotated[str, _NAME] = AUTO
    """this peer's name in `members`; "auto": the host's name and the first digits of the peer's id"""
    listen: Annotated[str, Endpoint('"tcp://host:port", "tcp://*:port" or "off"', "off", prefix="tcp://")] = (
        "tcp://*:4710"
    )
    """address of the peer's one TCP port; port 0 takes a free port; "off": this peer only dials out"""
    advertise: Annotated[str, Endpoint('"auto", "none", "host" or "host:port"', AUTO, "none", portless=True)] = AUTO
    """address that other peers dial; "auto" chooses and logs it; "none": no peer can dial this one"""
    seeds: Annotated[tuple[str, ...], Many(_SEED, 64)] = ()
    """members to dial first; one live member is enough"""


class Exchange(Section, frozen=True, kw_only=True):
    algorithm: Annotated[str, Choice(AUTO, "pairwise", "epidemic")] = AUTO
    """pairwise averages the anchors of two peers, at a cost that does not grow with the number of peers. epidemic sends
    every increment to all peers, and replicas are identical. "auto" is pairwise."""
    mode: Annotated[Literal["async", "overlap", "sync"], Choice("async", "overlap", "sync")] = "async"
    """when corrections reach the live parameters: on arrival, at the end of the next round, or before training
    continues"""
    deadline: Annotated[float, Measure(SECONDS, 0.1, 3600, "a time")] = 30.0
    """seconds that training waits, with mode "sync", for the exchanges of a round; with epidemic, for an increment of
    every other publisher"""
    every: Annotated[int, Integer(1, 100_000)] = 50
    """H: inner steps per round of a host of typical speed. With pairwise in modes async and overlap, other hosts make
    more or fewer according to their speed."""
    codec: Annotated[str, Choice("modulo", "fp32", "bf16", "fp16", "int8")] = "modulo"
    """codec of differences; two peers use the finer of their codecs"""
    bits: Annotated[int, Integer(2, 16)] = 4
    """bits per parameter of the modulo codec"""
    compressor: Annotated[str, Choice(*COMPRESSORS)] = "topk256"
    """compressor of epidemic's increments. topk256 sends 0.11 bytes per parameter and contributor, topk64 a quarter of
    that."""
    residual: Annotated[float, Number(0, 1)] = 0.95
    """beta of epidemic: share of the unsent residual that is kept for the next round"""
    epoch_steps: Annotated[int, Integer(1, 100_000)] = 50
    """length of an epoch of epidemic, in steps of the network's clock; best that of a round. An increment that is more
    than three epochs late is ignored. A peer that was cut off for longer fetches the model."""
    robust: Annotated[str, Choice("off", *ROBUST_RULES)] = "off"
    """of epidemic: "off" applies increments on arrival. A rule waits until the epoch has settled, four to five epochs,
    and leaves out outliers. It excludes the warm start and mode sync."""
    robust_share: Annotated[float, Number(0, 0.49)] = 0.2
    """of epidemic with `robust`: share of publishers that may be bad. At 0.2, none of fewer than five may be."""
    warmup_steps: Annotated[int, Integer(0, 10**9)] = 200
    """end of the warm start, in steps of the network's clock. During it exchanges run back to back, with lr 1 and
    momentum 0. With epidemic, rounds are short, and models of up to about 30 million parameters send whole increments.
    """
    early_steps: Annotated[int, Integer(0, 10**12)] = 1000
    """end of the early rounds, in steps of the network's clock; unused if `run_steps` is set"""
    early_exchanges: Annotated[int, Integer(1, 3)] = 3
    """exchanges of an early round; ceil(log2 N) if that is less"""
    partners: Annotated[str, Choice("hypercube", "base2", "random")] = "hypercube"
    """choice of partners while the view is complete and fresh. "hypercube" applies in early rounds if N is a power of
    two, "base2" in all rounds for any N. Otherwise, and with "random", the partner is a random member."""
    run_steps: Annotated[int, Integer(0, 10**12)] = 0
    """length of the run in steps of the network's clock; 0: unknown. Early rounds are its first 40 %."""
    bandwidth: Annotated[float, Measure(RATES, 125e3, 125e9, "a rate", {"unlimited": math.inf})] = math.inf
    """bytes per second of one pairwise exchange, each way; infinity: no limit. Both peers keep to the lower of their
    limits. It limits neither transfers of the model nor epidemic."""
    kappa: Annotated[float, Number(0, 1)] = 0.3
    """share of the mixing displacement that enters the outer momentum"""
    weight: Annotated[float, Number(0.01, 0.5)] = 0.5
    """gamma: how far each anchor moves towards the other; 0.5 is their average"""
    window: Annotated[int, Integer(1, 256)] = 8
    """chunks of one exchange in flight at once (credit)"""
    apart_rounds: Annotated[int, Integer(1, 10**6)] = 10
    """rounds of separate training after which two sides of a healed partition are not averaged. The smaller side saves
    its model and fetches that of the larger side."""
    moments: Annotated[bool, Switch()] = True
    """keep Adam's moments (2 bytes per parameter) for a restarted training process and for joiners. A joiner waits for
    them as for the model."""

    @property
    def strategy(self) -> Literal["pairwise", "epidemic"]:
        """The chosen algorithm; "auto" is pairwise."""
        return "epidemic" if self.algorithm == "epidemic" else "pairwise"

    @property
    def rule(self) -> str:
        """Name of the robust rule; "" for none."""
        return "" if self.robust == "off" else self.robust

    @property
    def early_until(self) -> int:
        """End of the early rounds, in steps of the network's clock."""
        return int(EARLY_SHARE * self.run_steps) if self.run_steps else self.early_steps


class Outer(Section, frozen=True, kw_only=True):
    lr: Annotated[float, Number(0.01, 2)] = 0.7
    """alpha. With epidemic the default is 2.0, and 1 in its warm start or with a robust rule."""
    momentum: Annotated[float, Number(0, 0.99)] = 0.7
    """mu; from 0.9 on, peers drift apart"""


class Safety(Section, frozen=True, kw_only=True):
    clip: Annotated[float | str, Number(1, 1000, AUTO, "off")] = AUTO
    """factor on the bound of the change that one chunk of one exchange may make; "auto" is 1.5"""
    memory: Annotated[float, Measure(BYTES, 2.0**24, 2.0**44, "a size", {AUTO: 0.0})] = 0.0
    """bytes that may wait to be sent, to all peers together; 0 ("auto"): a quarter of the memory, at most 1 GiB"""
    allow: Annotated[tuple[str, ...], Many(_ID, 16_384)] = ()
    """ids of the only peers that may have a link with this one; empty: all that know the secret"""
    ban: Annotated[tuple[str, ...], Many(_ID, 16_384)] = ()
    """ids of peers that may not have a link with this one"""
    heal: Annotated[bool, Switch()] = True
    """after three consecutive snapshots with NaN or Inf, load the network's model into the training process and reset
    its optimizer. At the next time within 100 rounds, end training (GD-403)."""

    @property
    def clip_factor(self) -> float:
        """`clip` as a number; infinity switches clipping off."""
        return self.clip if isinstance(self.clip, float) else AUTO_CLIP if self.clip == AUTO else math.inf

    def memory_limit(self, physical: int) -> int:
        """`memory` in bytes, on a host with `physical` bytes of memory."""
        return int(self.memory) or min(physical // 4, 2**30)


class Checkpoint(Section, frozen=True, kw_only=True):
    dir: Annotated[str, _PATH] = "checkpoints"
    """folder, relative to the peer's home"""
    every: Annotated[float, Measure(SECONDS, 1, 7 * 86400, "a time", {"off": math.inf})] = 600.0
    """seconds between checkpoints; infinity: only at the end and on request"""
    keep: Annotated[int, Integer(1, 1000)] = 3
    """newest checkpoints to keep"""


class Metrics(Section, frozen=True, kw_only=True):
    listen: Annotated[str, Endpoint('"host:port" or "off"', "off")] = "127.0.0.1:9470"
    """address of the metrics; a second daemon on the machine takes a free port"""


class Membership(Section, frozen=True, kw_only=True):
    timing: Annotated[str, Choice("local", "lan", "wan")] = "wan"
    """preset of timeouts (`protocol.presets.PRESETS`); members of one network may differ"""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    network: Network = Network()
    exchange: Exchange = Exchange()
    outer: Outer = Outer()
    safety: Safety = Safety()
    checkpoint: Checkpoint = Checkpoint()
    metrics: Metrics = Metrics()
    membership: Membership = Membership()
    preset: str = DEFAULT_PRESET
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    """"section.key" -> origin of its value, for every key that has not its default"""

    @property
    def lr(self) -> float:
        """alpha: `outer.lr`, or the default of epidemic."""
        default = self.exchange.strategy == "epidemic" and "outer.lr" not in self.origins
        return (ROBUST_LR if self.exchange.rule else EPIDEMIC_LR) if default else self.outer.lr


SECTIONS: Final[dict[str, type[Section]]] = {
    "network": Network,
    "exchange": Exchange,
    "outer": Outer,
    "safety": Safety,
    "checkpoint": Checkpoint,
    "metrics": Metrics,
    "membership": Membership,
}
RULES: Final[dict[str, Rule]] = {
    f"{section}.{key}": hint.__metadata__[0]
    for section, kind in SECTIONS.items()
    for key, hint in get_type_hints(kind, include_extras=True).items()
}
"""Rules by "section.key", in the order of a dump."""

AGREED: Final = ("exchange.weight", "exchange.kappa", "exchange.warmup_steps", "outer.lr", "outer.momentum")
"""Keys with the same value on all peers of a network, beside the algorithm.

`bits` and `every` may differ: two peers use the finer codec, and a fast host makes more steps per round. `early_steps`,
`early_exchanges`, `run_steps` and `partners` may differ too: such a peer waits in vain for its scheduled partner, and
then takes any other."""
AGREED_EPIDEMIC: Final = ("exchange.compressor", "exchange.residual", "exchange.epoch_steps", "exchange.warmup_steps")
"""The same for epidemic, beside the outer lr."""
AGREED_ROBUST: Final = (*AGREED_EPIDEMIC[:-1], "exchange.robust")
"""The same for a robust rule, with its share of bad peers. It has no warm start."""


# -- agreement and display ---------------------------------------------------------------------------------------


def value_of(config: Config, key: str) -> Any:
    """The value of "section.key"."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def agreed(config: Config) -> dict[str, Any]:
    """The settings that must be equal on all peers of a network: "section.key" -> value."""
    strategy = config.exchange.strategy
    if strategy == "epidemic":
        keys = AGREED_ROBUST if config.exchange.rule else AGREED_EPIDEMIC
        shared = {key: value_of(config, key) for key in keys} | {"outer.lr": config.lr}
        if config.exchange.rule:
            shared["exchange.robust"] = [config.exchange.rule, config.exchange.robust_share]
    else:
        shared = {key: value_of(config, key) for key in AGREED}
    return {"exchange.algorithm": strategy, **shared}


def settings_digest(config: Config) -> bytes:
    """16 bytes, equal if `agreed` is equal. Peers compare them before their first exchange (GD-303)."""
    return digest_of({key: json.dumps(value) for key, value in agreed(config).items()})


def dump(config: Config) -> str:
    """The whole configuration as TOML, with the origin of each value as a comment."""
    parts = [f"preset = {json.dumps(config.preset)}\n"]
    for section in SECTIONS:
        rows = []
        for key, rule in RULES.items():
            if key.startswith(f"{section}."):
                setting = f"{key.partition('.')[2]} = {rule.show(value_of(config, key))}"
                rows.append(f"{setting:<36} # {config.origins.get(key, 'default')}\n")
        parts.append(f"\n[{section}]\n" + "".join(rows))
    return "".join(parts)
