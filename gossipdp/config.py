"""What an operator may set: one frozen struct a section, and where each value came from.

A value is looked for in this order: flag, environment (``GOSSIPDP_SECTION_KEY``), file, preset, default. Every key has
one rule that reads it, shows it and names its range, so that an error can say file, line, value, range and the
nearest known key. Nothing here opens a file or reads the environment by itself: texts and mappings are arguments.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

import msgspec

from gossipdp.errors import ConfigError

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
    "differences",
    "dump",
    "load",
    "settings_digest",
]

AUTO: Final = "auto"
DEFAULT_PRESET: Final = "wan"
AUTO_CLIP: Final = 2.0
"""factor on the clipping bound (algorithms section 3) when `clip` is "auto\""""
EARLY_SHARE: Final = 0.4
"""of a run whose length is known, the part whose rounds make more than one exchange"""


# -- rules: how one key is read, shown and explained -------------------------------------------------------------


class Rule:
    """Reads one key. `read` takes what TOML gives and raises ValueError; `allowed` completes "must be ..."."""

    allowed: str

    def read(self, value: object) -> Any:
        raise NotImplementedError

    def from_text(self, text: str) -> object:
        """A flag's or environment variable's text as the TOML value it stands for."""
        return text

    def show(self, value: Any) -> str:
        """The value as a TOML literal that `read` takes again."""
        return json.dumps(value, ensure_ascii=False)


class Integer(Rule):
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.allowed = f"a whole number from {low} to {high}"

    def read(self, value: object) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text.strip()) else text


class Number(Rule):
    """A number, or one of `words`."""

    def __init__(self, low: float, high: float, *words: str) -> None:
        self.low, self.high, self.words = low, high, words
        self.allowed = " or ".join([f"a number from {low:g} to {high:g}", *(f'"{word}"' for word in words)])

    def read(self, value: object) -> float | str:
        if isinstance(value, str) and value in self.words:
            return value
        if type(value) not in (int, float) or not self.low <= value <= self.high:  # type: ignore[operator]
            raise ValueError
        return float(value)  # type: ignore[arg-type]

    def from_text(self, text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text


class Choice(Rule):
    def __init__(self, *words: str) -> None:
        self.words = words
        self.allowed = "one of " + ", ".join(f'"{word}"' for word in words)

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value


class Text(Rule):
    def __init__(self, pattern: str, allowed: str) -> None:
        self.pattern, self.allowed = re.compile(pattern), allowed

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise ValueError
        return value


class Endpoint(Text):
    """``host:port``; an IPv6 address stands in brackets."""

    def __init__(
        self, allowed: str, *words: str, prefix: str = "", portless: bool = False, any_port: bool = True
    ) -> None:
        self.words, self.any_port = words, any_port
        port = r"(?::(?P<port>\d{1,5}))" + ("?" if portless else "")
        super().__init__(rf"{prefix}(?P<host>\*|[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%a-z]+\]){port}", allowed)

    def read(self, value: object) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        text = super().read(value)
        port = self.pattern.fullmatch(text)["port"]  # type: ignore[index]
        if port is not None and not (0 if self.any_port else 1) <= int(port) <= 65535:
            raise ValueError
        return text


class Many(Rule):
    """A list of what `each` reads; commas separate its text form."""

    def __init__(self, each: Rule, most: int) -> None:
        self.each, self.most = each, most
        self.allowed = f"a list of at most {most}, each {each.allowed}"

    def read(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > self.most:
            raise ValueError
        return tuple(self.each.read(item) for item in value)

    def from_text(self, text: str) -> object:
        return [item.strip() for item in text.split(",") if item.strip()]

    def show(self, value: Any) -> str:
        return "[" + ", ".join(self.each.show(item) for item in value) + "]"


class Measure(Rule):
    """A number with a unit, such as "10m"; held in the base unit (the one worth 1)."""

    def __init__(self, units: Mapping[str, float], low: float, high: float, noun: str, words: Mapping[str, float] = {}):
        self.units, self.words, self.low, self.high = dict(units), dict(words), low, high
        spelled = [f"{noun} from {self._spell(low)} to {self._spell(high)}", *(f'"{word}"' for word in words)]
        self.allowed = " or ".join(spelled)

    def _spell(self, value: float) -> str:
        fitting = [
            unit for unit, worth in self.units.items() if value >= worth and value / worth == round(value / worth)
        ]
        unit = max(fitting or self.units, key=lambda unit: self.units[unit] if fitting else -self.units[unit])
        return f"{value / self.units[unit]:.12g}{unit}"

    def read(self, value: object) -> float:
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", value) if isinstance(value, str) else None
        worth = self.units.get(found[2]) if found else None
        if found is None or worth is None or not self.low <= float(found[1]) * worth <= self.high:
            raise ValueError
        return float(found[1]) * worth

    def show(self, value: Any) -> str:
        for word, meaning in self.words.items():
            if value == meaning:
                return f'"{word}"'
        return f'"{self._spell(value)}"'


_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_RATES: Final = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}
_NAME: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", "1 to 48 letters, digits, '.', '_' or '-', the first no sign")
_PATH: Final = Text(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,1024}", "a path without control characters")
_SEED: Final = Endpoint('"host:port"', any_port=False)


# -- the sections ------------------------------------------------------------------------------------------------


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Network(Section, frozen=True, kw_only=True):
    name: Annotated[str, _NAME] = "gossipdp"
    """which network this is; the home is ~/.gossipdp/NAME unless told otherwise"""
    peer: Annotated[str, _NAME] = AUTO
    """what `members` calls this peer; "auto" is the host's name"""
    listen: Annotated[str, Endpoint('"tcp://host:port", "tcp://*:port" or "off"', "off", prefix="tcp://")] = (
        "tcp://*:4710"
    )
    """where the peer's one TCP port is bound; port 0 takes a free one; "off": this peer only dials out"""
    advertise: Annotated[str, Endpoint('"auto", "none", "host" or "host:port"', AUTO, "none", portless=True)] = AUTO
    """what others dial; "auto" chooses and prints it; "none": nobody can dial this peer"""
    seeds: Annotated[tuple[str, ...], Many(_SEED, 64)] = ()
    """members to ask first; any one alive is enough"""


class Exchange(Section, frozen=True, kw_only=True):
    algorithm: Annotated[str, Choice(AUTO, "pairwise")] = AUTO
    mode: Annotated[Literal["async", "overlap", "sync"], Choice("async", "overlap", "sync")] = "async"
    """when corrections reach the live parameters: as they come, at the next round's end, or before training goes on"""
    deadline: Annotated[float, Measure(_SECONDS, 0.1, 3600, "a time")] = 30.0
    """with mode "sync": how long training waits for a round's exchanges at most"""
    every: Annotated[int, Integer(1, 100_000)] = 50
    """H: inner steps a round"""
    codec: Annotated[str, Choice("modulo", "fp32", "bf16", "fp16", "int8")] = "modulo"
    """how differences travel; of two peers' wishes the finer is used"""
    bits: Annotated[int, Integer(2, 16)] = 4
    """of the modulo codec"""
    warmup_steps: Annotated[int, Integer(0, 10**9)] = 200
    """by the network's clock: until then exchanges run back to back with lr 1 and momentum 0"""
    early_steps: Annotated[int, Integer(0, 10**12)] = 1000
    """by the network's clock: until then a round makes min(3, ceil(log2 N)) exchanges; unused if run_steps is set"""
    partners: Annotated[str, Choice("hypercube", "random")] = "hypercube"
    """whom early rounds meet: along the hypercube if N is a power of two and the view full and fresh, or at random"""
    run_steps: Annotated[int, Integer(0, 10**12)] = 0
    """length of the run by the network's clock, 0 if unknown; early rounds are then its first 40 %"""
    bandwidth: Annotated[float, Measure(_RATES, 125e3, 125e9, "a rate", {"unlimited": math.inf})] = math.inf
    """bytes per second this peer may send in exchanges; infinity: no limit"""
    kappa: Annotated[float, Number(0, 1)] = 0.3
    """share of the mixing displacement that enters the outer momentum"""
    weight: Annotated[float, Number(0.01, 0.5)] = 0.5
    """gamma: how far both anchors move towards each other; 0.5 is their average"""
    window: Annotated[int, Integer(1, 256)] = 8
    """chunks of one exchange in the air at once (credit)"""

    @property
    def strategy(self) -> Literal["pairwise"]:
        """The algorithm meant: "auto" is pairwise."""
        return "pairwise"

    @property
    def early_until(self) -> int:
        """The network's clock, in steps, at which early rounds end."""
        return int(EARLY_SHARE * self.run_steps) if self.run_steps else self.early_steps


class Outer(Section, frozen=True, kw_only=True):
    lr: Annotated[float, Number(0.01, 2)] = 0.7
    """alpha"""
    momentum: Annotated[float, Number(0, 0.99)] = 0.8
    """mu; from 0.9 on disagreement between peers grows"""


class Safety(Section, frozen=True, kw_only=True):
    clip: Annotated[float | str, Number(1, 1000, AUTO, "off")] = AUTO
    """factor on the bound of what one chunk of one exchange may move; "auto" is 2"""
    memory: Annotated[float, Measure(_BYTES, 2.0**24, 2.0**44, "a size", {AUTO: 0.0})] = 0.0
    """bytes that may wait to be sent, to all peers together; 0 ("auto"): a quarter of the memory, at most 1 GiB"""

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
    every: Annotated[float, Measure(_SECONDS, 1, 7 * 86400, "a time", {"off": math.inf})] = 600.0
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
codecs the finer is used, and a fast host takes more steps a round."""

_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)$")
"""Kubernetes puts such variables into every container for a service named, say, gossipdp-metrics."""


# -- loading -----------------------------------------------------------------------------------------------------

_Value: TypeAlias = tuple[str, object, str]
"""key, value, origin"""


def load(
    text: str = "",
    *,
    file: str = "",
    environment: Mapping[str, str] = {},
    flags: Mapping[str, str] = {},
    presets: Mapping[str, str] = {},
) -> Config:
    """The configuration that all sources together give.

    Args:
        text: the TOML file's text.
        file: its name, for errors.
        environment: variables; those that do not name a section are ignored, but for GOSSIPDP_PRESET.
        flags: "section.key" (or "preset") -> text.
        presets: name -> TOML text.

    Raises:
        ConfigError: exit code 3; names file:line, the value, the range, the nearest key.
    """
    name = file or "configuration"
    tables, lines = _parse(text, name)
    top = tables.pop("preset", None)
    wanted: list[tuple[object, str]] = [(DEFAULT_PRESET, "default")]
    if top is not None:
        wanted.append((top, f"{name}:{lines.get('preset', 1)}"))
    if "GOSSIPDP_PRESET" in environment:
        wanted.append((environment["GOSSIPDP_PRESET"], "environment GOSSIPDP_PRESET"))
    if "preset" in flags:
        wanted.append((flags["preset"], "flag"))
    preset, origin = wanted[-1]
    if presets and (not isinstance(preset, str) or preset not in presets):
        raise _wrong("preset", preset, Choice(*presets).allowed, origin)

    values: list[_Value] = []
    if isinstance(preset, str) and preset in presets:
        values += _from_file(*_parse(presets[preset], f"preset {preset}"), f"preset {preset}", line_in_origin=False)
    values += _from_file(tables, lines, name)
    values += _from_environment(environment)
    values += _from_flags(flags)

    read: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value, origin in values:
        try:
            read[key] = RULES[key].read(value)
        except ValueError:
            raise _wrong(key, value, RULES[key].allowed, origin) from None
        origins[key] = origin
    sections = {
        section: kind(**{key.partition(".")[2]: value for key, value in read.items() if key.startswith(f"{section}.")})
        for section, kind in SECTIONS.items()
    }
    return Config(**sections, preset=str(preset), origins=origins)  # type: ignore[arg-type]


def _parse(text: str, file: str) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        return tomllib.loads(text), _lines(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", where)
        number = int(line[1]) if line else text.count("\n") + 1
        raise ConfigError(
            "GD-310", f"{file}:{number} is not valid TOML", seen=what, do="texts stand in quotes, one key a line"
        ) from None


def _lines(text: str) -> dict[str, int]:
    """Where each "section" and "section.key" stands; tomllib does not tell."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            section = header[1]
            found.setdefault(section, number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            found.setdefault(f"{section}.{key[1]}".lstrip("."), number)
    return found


def _from_file(
    tables: Mapping[str, Any], lines: Mapping[str, int], file: str, *, line_in_origin: bool = True
) -> Iterator[_Value]:
    for section, table in tables.items():
        origin = f"{file}:{lines.get(section, 1)}"
        if section not in SECTIONS:
            raise _unknown("section" if isinstance(table, dict) else "key", section, [*SECTIONS, "preset"], origin)
        if not isinstance(table, dict):
            raise _wrong(section, table, f"a section: [{section}]", origin)
        for key, value in table.items():
            full = f"{section}.{key}"
            origin = f"{file}:{lines.get(full, lines.get(section, 1))}"
            if full not in RULES:
                raise _unknown("key", full, RULES, origin)
            yield full, value, origin if line_in_origin else file


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Value]:
    names = {"GOSSIPDP_" + key.replace(".", "_").upper(): key for key in RULES}
    for variable in sorted(environment):
        section = variable.removeprefix("GOSSIPDP_").partition("_")[0].lower()
        if not variable.startswith("GOSSIPDP_") or section not in SECTIONS or _SERVICE_LINK.search(variable):
            continue
        if variable not in names:
            raise _unknown("variable", variable, names, "environment")
        key = names[variable]
        yield key, RULES[key].from_text(environment[variable]), f"environment {variable}"


def _from_flags(flags: Mapping[str, str]) -> Iterator[_Value]:
    for key, text in flags.items():
        if key == "preset":
            continue
        if key not in RULES:
            raise _unknown("key", key, RULES, "flag")
        yield key, RULES[key].from_text(text), "flag"


def _wrong(key: str, value: object, allowed: str, origin: str) -> ConfigError:
    return ConfigError("GD-311", f"{origin}: {key} = {_toml(value)} is not allowed", do=f"{key} must be {allowed}")


def _unknown(noun: str, name: str, known: Sequence[str] | Mapping[str, Any], origin: str) -> ConfigError:
    elsewhere = [key for key in known if "." in name and key.endswith("." + name.partition(".")[2])]
    near = (elsewhere or difflib.get_close_matches(name, known, 1, 0.6))[:1]
    do = f"did you mean {near[0]}?" if near else "see `gossipdp config show` for every key there is"
    return ConfigError("GD-312", f"{origin}: unknown {noun} {name}", do=do)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -- what peers must agree on, and showing -----------------------------------------------------------------------


def value_of(config: Config, key: str) -> Any:
    """The value of "section.key"."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def agreed(config: Config) -> dict[str, Any]:
    """The settings that all peers of one network have alike."""
    return {"exchange.algorithm": config.exchange.strategy, **{key: value_of(config, key) for key in AGREED}}


def settings_digest(config: Config) -> bytes:
    """16 bytes that are equal exactly if `agreed` is; peers compare them before they exchange anything (GD-303)."""
    text = json.dumps(agreed(config), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"gossipdp setting").digest()


def differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    """(key, a's value, b's value) of what peers must agree on and these two do not."""
    ours, theirs = agreed(a), agreed(b)
    return [(key, ours[key], theirs[key]) for key in ours if ours[key] != theirs[key]]


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
