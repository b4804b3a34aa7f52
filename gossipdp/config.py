"""What an operator may set: one frozen struct a section, and where each value came from.

A value is looked for in this order: flag, environment (``GOSSIPDP_SECTION_KEY``), file, preset, default. Every key has
one rule that reads it, shows it and names its range, so that an error can say file, line, value, range and the
nearest known key. Nothing here opens a file or reads the environment by itself: texts and mappings are arguments.
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
"""factor on the clipping bound (algorithms section 3) when `clip` is "auto\""""
EPIDEMIC_LR: Final = 2.0
"""alpha of epidemic (algorithms section 4), unless `lr` is set: for runs of tens of rounds; 1 is for those of hundreds.
It is guarded against overshoot (`algorithms.epidemic`), and not tied to the share of the residual that is sent"""
COMPRESSORS: Final = (
    "topk64", "topk128", "topk256", "dct64", "dct128", "dct256", "threshold3", "sign", "twobit", "lowrank4", "whole",
)  # fmt: skip
ROBUST_LR: Final = 1.0
"""and with a robust rule, by which increments land late"""
RULES_OF_EPOCHS: Final = ("nnm-trimmed", "nnm-median", "median")
"""the robust ones that are of use where increments are sparse (`algorithms.epidemic.robust`)"""
EARLY_SHARE: Final = 0.4
"""of a run whose length is known, the part whose rounds make more than one exchange"""

_NAME: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", "1 to 48 letters, digits, '.', '_' or '-', the first no sign")
_PATH: Final = Text(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,1024}", "a path without control characters")
_ID: Final = Text(r"[0-9a-f]{64}", "a peer's id, 64 digits, as `gossipdp keys show` has it")
_SEED: Final = Endpoint('"host:port"', any_port=False)


# -- the sections ------------------------------------------------------------------------------------------------


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Network(Section, frozen=True, kw_only=True):
    name: Annotated[str, _NAME] = "gossipdp"
    """which network this is; the home is ~/.gossipdp/NAME unless told otherwise"""
    peer: Annotated[str, _NAME] = AUTO
    """what `members` calls this peer; "auto" is the host's name and the first digits of the peer's id"""
    listen: Annotated[str, Endpoint('"tcp://host:port", "tcp://*:port" or "off"', "off", prefix="tcp://")] = (
        "tcp://*:4710"
    )
    """where the peer's one TCP port is bound; port 0 takes a free one; "off": this peer only dials out"""
    advertise: Annotated[str, Endpoint('"auto", "none", "host" or "host:port"', AUTO, "none", portless=True)] = AUTO
    """what others dial; "auto" chooses and prints it; "none": nobody can dial this peer"""
    seeds: Annotated[tuple[str, ...], Many(_SEED, 64)] = ()
    """members to ask first; any one alive is enough"""


class Exchange(Section, frozen=True, kw_only=True):
    algorithm: Annotated[str, Choice(AUTO, "pairwise", "epidemic")] = AUTO
    """what peers tell each other: pairwise averages two anchors at a time, and any number of peers cost the same; with
    epidemic every peer gets all increments, and replicas are identical; "auto" is pairwise"""
    mode: Annotated[Literal["async", "overlap", "sync"], Choice("async", "overlap", "sync")] = "async"
    """when corrections reach the live parameters: as they come, at the next round's end, or before training goes on"""
    deadline: Annotated[float, Measure(SECONDS, 0.1, 3600, "a time")] = 30.0
    """with mode "sync": how long training waits at most for a round's exchanges; with epidemic, for an increment of
    everybody else who publishes"""
    every: Annotated[int, Integer(1, 100_000)] = 50
    """H: inner steps a round, of a host as fast as most; others' are by speed (pairwise, modes async and overlap)"""
    codec: Annotated[str, Choice("modulo", "fp32", "bf16", "fp16", "int8")] = "modulo"
    """how differences travel; of two peers' wishes the finer is used"""
    bits: Annotated[int, Integer(2, 16)] = 4
    """of the modulo codec"""
    compressor: Annotated[str, Choice(*COMPRESSORS)] = "topk256"
    """of epidemic: how increments travel; topk256 is 0.11 bytes a parameter and contributor, topk64 a quarter of it"""
    residual: Annotated[float, Number(0, 1)] = 0.95
    """beta, of epidemic: share of what was not sent that is kept for the next round"""
    epoch_steps: Annotated[int, Integer(1, 100_000)] = 50
    """of epidemic: steps of the network's clock in an epoch, best those of a round; what comes more than three epochs
    late counts no more, and whoever was cut off for longer fetches the model anew"""
    robust: Annotated[str, Choice("off", *RULES_OF_EPOCHS)] = "off"
    """of epidemic: "off" applies increments as they come; else each waits until its epoch has settled, four to five
    epochs, and this rule over all of them leaves out what is far from the others. No warm start then, nor mode sync"""
    robust_share: Annotated[float, Number(0, 0.49)] = 0.2
    """of epidemic, with `robust`: share of those who publish that may be bad; of fewer than five none may, at 0.2"""
    warmup_steps: Annotated[int, Integer(0, 10**9)] = 200
    """by the network's clock: until then exchanges run back to back with lr 1 and momentum 0; with epidemic rounds are
    short, and increments travel whole if the model is small (some 30 million parameters)"""
    early_steps: Annotated[int, Integer(0, 10**12)] = 1000
    """by the network's clock: until then a round makes several exchanges, then one; unused if run_steps is set"""
    early_exchanges: Annotated[int, Integer(1, 3)] = 3
    """several: so many, or ceil(log2 N) if that is less"""
    partners: Annotated[str, Choice("hypercube", "base2", "random")] = "hypercube"
    """whom to meet while the view is full and fresh: in early rounds, if N is a power of two, along the hypercube; in
    all rounds, for any N, along the Base-2 graph; else, and with "random", a random member"""
    run_steps: Annotated[int, Integer(0, 10**12)] = 0
    """length of the run by the network's clock, 0 if unknown; early rounds are then its first 40 %"""
    bandwidth: Annotated[float, Measure(RATES, 125e3, 125e9, "a rate", {"unlimited": math.inf})] = math.inf
    """bytes per second this peer may send in exchanges; infinity: no limit"""
    kappa: Annotated[float, Number(0, 1)] = 0.3
    """share of the mixing displacement that enters the outer momentum"""
    weight: Annotated[float, Number(0.01, 0.5)] = 0.5
    """gamma: how far both anchors move towards each other; 0.5 is their average"""
    window: Annotated[int, Integer(1, 256)] = 8
    """chunks of one exchange in the air at once (credit)"""
    apart_rounds: Annotated[int, Integer(1, 10**6)] = 10
    """rounds of this peer after which a side that trained on without it, and is back, is no more averaged with: the
    smaller side saves its model and fetches the larger's"""
    moments: Annotated[bool, Switch()] = True
    """keep Adam's moments (2 bytes a parameter), for a training process that is started again and for joiners, who wait
    for them as for the model"""

    @property
    def strategy(self) -> Literal["pairwise", "epidemic"]:
        """The algorithm meant: "auto" is pairwise."""
        return "epidemic" if self.algorithm == "epidemic" else "pairwise"

    @property
    def rule(self) -> str:
        """`robust` by its name; "" for none."""
        return "" if self.robust == "off" else self.robust

    @property
    def early_until(self) -> int:
        """The network's clock, in steps, at which early rounds end."""
        return int(EARLY_SHARE * self.run_steps) if self.run_steps else self.early_steps


class Outer(Section, frozen=True, kw_only=True):
    lr: Annotated[float, Number(0.01, 2)] = 0.7
    """alpha; with epidemic 2.0 unless it is set, and 1 in its warm start or with a robust rule"""
    momentum: Annotated[float, Number(0, 0.99)] = 0.7
    """mu; from 0.9 on disagreement between peers grows"""


class Safety(Section, frozen=True, kw_only=True):
    clip: Annotated[float | str, Number(1, 1000, AUTO, "off")] = AUTO
    """factor on the bound of what one chunk of one exchange may move; "auto" is 1.5"""
    memory: Annotated[float, Measure(BYTES, 2.0**24, 2.0**44, "a size", {AUTO: 0.0})] = 0.0
    """bytes that may wait to be sent, to all peers together; 0 ("auto"): a quarter of the memory, at most 1 GiB"""
    allow: Annotated[tuple[str, ...], Many(_ID, 16_384)] = ()
    """ids of the only peers this one has links with; none: any that knows the secret"""
    ban: Annotated[tuple[str, ...], Many(_ID, 16_384)] = ()
    """ids of peers this one has no link with"""
    heal: Annotated[bool, Switch()] = True
    """after three snapshots in a row with NaN or Inf: load the network's model into the training process, and reset its
    optimizer; end it (GD-403) if that comes again within 100 rounds"""

    @property
    def clip_factor(self) -> float:
        """`clip` as a number; infinity switches clipping off."""
        return self.clip if isinstance(self.clip, float) else AUTO_CLIP if self.clip == AUTO else math.inf

    def memory_limit(self, physical: int) -> int:
        """`memory` in bytes on a host with `physical` bytes of it."""
        return int(self.memory) or min(physical // 4, 2**30)


class Checkpoint(Section, frozen=True, kw_only=True):
    dir: Annotated[str, _PATH] = "checkpoints"
    """relative to the peer's home"""
    every: Annotated[float, Measure(SECONDS, 1, 7 * 86400, "a time", {"off": math.inf})] = 600.0
    """seconds; infinity: only when leaving or when told to"""
    keep: Annotated[int, Integer(1, 1000)] = 3


class Metrics(Section, frozen=True, kw_only=True):
    listen: Annotated[str, Endpoint('"host:port" or "off"', "off")] = "127.0.0.1:9470"
    """a second daemon on the machine takes a free port"""


class Membership(Section, frozen=True, kw_only=True):
    timing: Annotated[str, Choice("local", "lan", "wan")] = "wan"
    """which set of probe and suspicion times; members of one network may differ"""


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
    """"section.key" -> where its value came from, for every key that is not a default"""

    @property
    def lr(self) -> float:
        """alpha as it is meant."""
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
"""In the order of a dump."""

AGREED: Final = ("exchange.weight", "exchange.kappa", "exchange.warmup_steps", "outer.lr", "outer.momentum")
"""Keys that all peers of a network must have alike, beside the algorithm. `bits` and `every` may differ: of two
codecs the finer is used, and a fast host takes more steps a round. So may `early_steps`, `early_exchanges`, `run_steps`
and `partners`: who differs in these names other partners in a schedule than the others do, waits for them in vain, and
takes any."""
AGREED_EPIDEMIC: Final = ("exchange.compressor", "exchange.residual", "exchange.epoch_steps", "exchange.warmup_steps")
"""The same with epidemic, beside the outer lr."""
AGREED_ROBUST: Final = (*AGREED_EPIDEMIC[:-1], "exchange.robust")
"""The same with a robust rule, whose share of bad peers goes with it, and which has no warm start."""


# -- what peers must agree on, and showing -----------------------------------------------------------------------


def value_of(config: Config, key: str) -> Any:
    """The value of "section.key"."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def agreed(config: Config) -> dict[str, Any]:
    """The settings that all peers of one network have alike."""
    strategy = config.exchange.strategy
    if strategy == "epidemic":
        keys = AGREED_ROBUST if config.exchange.rule else AGREED_EPIDEMIC
        alike = {key: value_of(config, key) for key in keys} | {"outer.lr": config.lr}
        if config.exchange.rule:
            alike["exchange.robust"] = [config.exchange.rule, config.exchange.robust_share]
    else:
        alike = {key: value_of(config, key) for key in AGREED}
    return {"exchange.algorithm": strategy, **alike}


def settings_digest(config: Config) -> bytes:
    """16 bytes that are equal if `agreed` is; peers compare them before they exchange anything (GD-303)."""
    return digest_of({key: json.dumps(value) for key, value in agreed(config).items()})


def dump(config: Config) -> str:
    """The whole configuration as TOML; a comment on each line says where the value came from."""
    parts = [f"preset = {json.dumps(config.preset)}\n"]
    for section in SECTIONS:
        rows = []
        for key, rule in RULES.items():
            if key.startswith(f"{section}."):
                setting = f"{key.partition('.')[2]} = {rule.show(value_of(config, key))}"
                rows.append(f"{setting:<36} # {config.origins.get(key, 'default')}\n")
        parts.append(f"\n[{section}]\n" + "".join(rows))
    return "".join(parts)
