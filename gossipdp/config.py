"""The operator's settings: one frozen struct per section, and the origin of each value.

`config_loading` fills them. Every key has one rule (`config_rules`) that reads it, shows it and names its range.
`config_help` says what each key means.
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
    OneOrMany,
    Rule,
    Switch,
    Text,
)
from gossipdp.protocol.settings_digest import digest_of

__all__ = [
    "Checkpoint",
    "Compute",
    "Config",
    "Exchange",
    "Finish",
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
AUTO_RELAY: Final = 12.5e6
"""bytes a second that a relay carries with `relay = "auto"`: 100 Mbit/s"""
AUTO_CLIP: Final = 1.5
"""factor on the clipping bound (algorithms section 3) for `clip = "auto"`"""
EARLY_SHARE: Final = 0.4
"""share of a run of known length in which a round makes more than one exchange"""

_NAME: Final = Text(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", "1 to 48 letters, digits, '.', '_' or '-', the first a letter or digit"
)
_PATH: Final = Text(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,1024}", "a path without control characters")
_PATH_OR_NONE: Final = Text(r"[^\x00-\x1f\x7f\ud800-\udfff]{0,1024}", "a path without control characters, or empty")
_FULL_PATH_OR_NONE: Final = Text(
    r"(?:~?/[^\x00-\x1f\x7f\ud800-\udfff]{1,1022})?", "a path that begins with / or ~/, or empty"
)
_ID: Final = Text(r"[0-9a-f]{64}", "a peer's id of 64 digits, as `gossipdp keys show` prints it")
_SEED: Final = Endpoint('"host:port"', any_port=False)


# -- the sections ------------------------------------------------------------------------------------------------


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Network(Section, frozen=True, kw_only=True):
    """Names and addresses of this peer."""

    name: Annotated[str, _NAME] = "gossipdp"
    peer: Annotated[str, _NAME] = AUTO
    listen: Annotated[str, Endpoint('"tcp://host:port", "tcp://*:port" or "off"', "off", prefix="tcp://")] = (
        "tcp://*:4710"
    )
    advertise: Annotated[
        tuple[str, ...],
        OneOrMany(Endpoint('"auto", "none", "host" or "host:port"', AUTO, "none", portless=True, any_port=False), 4),
    ] = (AUTO,)
    nat: Annotated[Literal["off", "auto"], Choice("off", "auto")] = "off"
    relay: Annotated[float, Measure(RATES, 125e3, 125e9, "a rate", {"off": 0.0, AUTO: AUTO_RELAY})] = 0.0
    relay_only: Annotated[bool, Switch()] = False
    proxy: Annotated[
        str,
        Endpoint(
            '"socks5://host:port" (user and password: see network.proxy_login), or empty',
            "",
            prefix="socks5://",
            any_port=False,
        ),
    ] = ""
    proxy_login: Annotated[str, _FULL_PATH_OR_NONE] = ""
    seeds: Annotated[tuple[str, ...], Many(_SEED, 64)] = ()

    @property
    def carries(self) -> float:
        """Bytes a second that this peer carries for others."""
        return self.relay or (AUTO_RELAY if self.relay_only else 0.0)


class Exchange(Section, frozen=True, kw_only=True):
    """How peers average their replicas."""

    mode: Annotated[Literal["async", "overlap", "sync"], Choice("async", "overlap", "sync")] = "async"
    deadline: Annotated[float, Measure(SECONDS, 0.1, 3600, "a time")] = 30.0
    every: Annotated[int, Integer(1, 100_000)] = 50
    codec: Annotated[str, Choice("modulo", "fp32", "bf16", "fp16", "int8")] = "modulo"
    bits: Annotated[int, Integer(2, 16)] = 3
    warmup_steps: Annotated[int, Integer(0, 10**9)] = 200
    early_steps: Annotated[int, Integer(0, 10**12)] = 1000
    early_exchanges: Annotated[int, Integer(1, 8)] = 3
    late_exchanges: Annotated[int, Integer(1, 8)] = 2
    partners: Annotated[str, Choice("hypercube", "base2", "random")] = "hypercube"
    run_steps: Annotated[int, Integer(0, 10**12)] = 0
    bandwidth: Annotated[float, Measure(RATES, 125e3, 125e9, "a rate", {"unlimited": math.inf})] = math.inf
    kappa: Annotated[float, Number(0, 1)] = 0.3
    weight: Annotated[float, Number(0.01, 0.5)] = 0.5
    window: Annotated[int, Integer(1, 256)] = 8
    apart_rounds: Annotated[int, Integer(1, 10**6)] = 10
    moments: Annotated[bool, Switch()] = True

    @property
    def early_until(self) -> int:
        """End of the early rounds, in steps of the network's clock."""
        return int(EARLY_SHARE * self.run_steps) if self.run_steps else self.early_steps


class Outer(Section, frozen=True, kw_only=True):
    """The outer optimizer, which steps once a round."""

    lr: Annotated[float | str, Number(0.01, 2, AUTO)] = AUTO
    momentum: Annotated[float | str, Number(0, 0.99, AUTO)] = AUTO


class Safety(Section, frozen=True, kw_only=True):
    """What other members and a diverging script may cause."""

    clip: Annotated[float | str, Number(1, 1000, AUTO, "off")] = AUTO
    memory: Annotated[float, Measure(BYTES, 2.0**24, 2.0**44, "a size", {AUTO: 0.0})] = 0.0
    allow: Annotated[tuple[str, ...], Many(_ID, 16_384)] = ()
    ban: Annotated[tuple[str, ...], Many(_ID, 16_384)] = ()
    heal: Annotated[bool, Switch()] = True
    proven_after: Annotated[float, Measure(SECONDS, 1, 30 * 86400, "a time")] = 1800.0

    @property
    def clip_factor(self) -> float:
        """`clip` as a number; infinity switches clipping off."""
        return self.clip if isinstance(self.clip, float) else AUTO_CLIP if self.clip == AUTO else math.inf

    def memory_limit(self, physical: int) -> int:
        """`memory` in bytes, on a host with `physical` bytes of memory."""
        return int(self.memory) or min(physical // 4, 2**30)


class Checkpoint(Section, frozen=True, kw_only=True):
    """Checkpoints of the daemon on this host's disk."""

    dir: Annotated[str, _PATH] = "checkpoints"
    every: Annotated[float, Measure(SECONDS, 1, 7 * 86400, "a time", {"off": math.inf})] = 600.0
    keep: Annotated[int, Integer(1, 1000)] = 3


class Finish(Section, frozen=True, kw_only=True):
    """How a run ends."""

    wait: Annotated[float, Measure(SECONDS, 1, 7 * 86400, "a time", {"off": 0.0})] = 600.0
    follow: Annotated[bool, Switch()] = True
    base: Annotated[str, _PATH_OR_NONE] = ""


class Metrics(Section, frozen=True, kw_only=True):
    """Prometheus metrics of the daemon."""

    listen: Annotated[str, Endpoint('"host:port" or "off"', "off")] = "127.0.0.1:9470"


class Compute(Section, frozen=True, kw_only=True):
    """How many cores of this host the daemon takes."""

    workers: Annotated[int, Integer(1, 16, {AUTO: 0})] = 0


class Membership(Section, frozen=True, kw_only=True):
    """How soon a lost peer is noticed."""

    timing: Annotated[str, Choice("local", "lan", "wan")] = "wan"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    network: Network = Network()
    exchange: Exchange = Exchange()
    outer: Outer = Outer()
    safety: Safety = Safety()
    checkpoint: Checkpoint = Checkpoint()
    finish: Finish = Finish()
    metrics: Metrics = Metrics()
    compute: Compute = Compute()
    membership: Membership = Membership()
    preset: str = DEFAULT_PRESET
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    """"section.key" -> origin of its value, for every key that has not its default"""
    removed: dict[str, str] = msgspec.field(default_factory=dict)
    """"section.key" -> where it was found, for every key that earlier versions had and that changes nothing"""

    @property
    def lr(self) -> float | None:
        """alpha: `outer.lr`; None if peers choose it."""
        return self.outer.lr if isinstance(self.outer.lr, float) else None

    @property
    def momentum(self) -> float | None:
        """mu: `outer.momentum`; None if peers choose it."""
        return self.outer.momentum if isinstance(self.outer.momentum, float) else None


SECTIONS: Final[dict[str, type[Section]]] = {
    "network": Network,
    "exchange": Exchange,
    "outer": Outer,
    "safety": Safety,
    "checkpoint": Checkpoint,
    "finish": Finish,
    "metrics": Metrics,
    "compute": Compute,
    "membership": Membership,
}
RULES: Final[dict[str, Rule]] = {
    f"{section}.{key}": hint.__metadata__[0]
    for section, kind in SECTIONS.items()
    for key, hint in get_type_hints(kind, include_extras=True).items()
}
"""Rules by "section.key", in the order of a dump."""

ALGORITHM: Final = {"exchange.algorithm": "pairwise"}
"""A key that earlier versions had. It stays in the digest, or their peers would refuse this one (GD-303)."""
AGREED: Final = ("exchange.weight", "exchange.kappa", "exchange.warmup_steps", "outer.lr", "outer.momentum")
"""Keys with the same value on all peers of a network.

`bits` and `every` may differ: two peers use the finer codec, and a fast host makes more steps per round. `early_steps`,
`early_exchanges`, `late_exchanges`, `run_steps` and `partners` may differ too: such a peer waits in vain for its
scheduled partner, and then takes any other. Its momentum rises at another step, if it is "auto"."""


# -- agreement and display ---------------------------------------------------------------------------------------


def value_of(config: Config, key: str) -> Any:
    """The value of "section.key"."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def agreed(config: Config) -> dict[str, Any]:
    """The settings that must be equal on all peers of a network: "section.key" -> value."""
    return ALGORITHM | {key: value_of(config, key) for key in AGREED}


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
