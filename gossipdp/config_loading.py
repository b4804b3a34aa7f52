"""Reads the configuration from its sources.

The order of precedence is flag, environment (``GOSSIPDP_SECTION_KEY``), file, preset, default. An error names file,
line, value, range and the nearest known key. Texts and mappings are arguments: nothing here opens a file.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from gossipdp.config import DEFAULT_PRESET, RULES, SECTIONS, Config
from gossipdp.config_rules import Choice
from gossipdp.errors import ConfigError

__all__ = ["load", "unknown", "variable_of"]

PREFIX: Final = "GOSSIPDP_"
"""prefix of gossipdp's variables"""
OTHERS: Final = frozenset(
    f"{PREFIX}{name}" for name in ("ATTEMPT", "CHILD", "HOME", "INVITE", "KILL_AT", "OFF", "PRESET")
)
"""variables that are not keys of the configuration"""
REMOVED: Final[Mapping[str, Sequence[str]]] = {
    "exchange.algorithm": ("auto", "pairwise"),
    "exchange.compressor": ("topk256",),
    "exchange.residual": ("0.95",),
    "exchange.epoch_steps": ("50",),
    "exchange.robust": ("off",),
    "exchange.robust_share": ("0.2",),
}
"""keys of earlier versions -> the values with which these did what this version does"""
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)$")
"""variables that Kubernetes sets in every container for a service with a name such as gossipdp-metrics"""
_LOGIN = re.compile(r"//.*@", re.DOTALL)
"""user and password in a URL: errors go to logs, which hold no secret"""
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
    """Combine all sources into one configuration.

    Args:
        text: text of the TOML file.
        file: its name, for errors.
        environment: variables. A GOSSIPDP_ variable that is neither a key nor in `OTHERS` is an error.
        flags: "section.key" (or "preset") -> text.
        presets: name -> TOML text.

    Raises:
        ConfigError: GD-310 invalid TOML, GD-311 a value out of range, GD-312 an unknown or removed key.
    """
    name = file or "configuration"
    tables, lines = _parse(text, name)
    top = tables.pop("preset", None)
    in_file = [] if top is None else [(top, f"{name}:{lines.get('preset', 1)}")]
    preset = _preset(in_file, environment, flags, presets)
    values: list[_Value] = []
    if preset in presets:
        values += _from_file(*_parse(presets[preset], f"preset {preset}"), f"preset {preset}", line_in_origin=False)
    values += _from_file(tables, lines, name)
    values += _from_environment(environment)
    values += _from_flags(flags)
    known = [each for each in values if each[0] in RULES]
    removed = {key: _harmless(key, value, origin) for key, value, origin in values if key not in RULES}
    return msgspec.structs.replace(_config(known, preset), removed=removed)


def variable_of(key: str) -> str:
    """The environment variable that sets `key`."""
    return PREFIX + key.replace(".", "_").upper()


def _preset(
    in_file: Sequence[tuple[object, str]],
    environment: Mapping[str, str],
    flags: Mapping[str, str],
    presets: Mapping[str, str],
) -> str:
    """The name of the preset: that of the flag, of the environment, of the file, or the default."""
    chosen: list[tuple[object, str]] = [(DEFAULT_PRESET, "default"), *in_file]
    if "GOSSIPDP_PRESET" in environment:
        chosen.append((environment["GOSSIPDP_PRESET"], "environment GOSSIPDP_PRESET"))
    if "preset" in flags:
        chosen.append((flags["preset"], "flag"))
    preset, origin = chosen[-1]
    if presets and (not isinstance(preset, str) or preset not in presets):
        raise _wrong("preset", preset, Choice(*presets).allowed, origin)
    return str(preset)


def _config(values: Sequence[_Value], preset: str) -> Config:
    """Read the values by their rules. A later value of a key replaces an earlier one."""
    read: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value, origin in values:
        try:
            read[key] = RULES[key].read(value)
        except ValueError as error:
            raise _wrong(key, value, str(error) or RULES[key].allowed, origin) from None
        origins[key] = origin
    sections = {
        section: kind(**{key.partition(".")[2]: value for key, value in read.items() if key.startswith(f"{section}.")})
        for section, kind in SECTIONS.items()
    }
    return Config(**sections, preset=preset, origins=origins)  # type: ignore[arg-type]


def _parse(text: str, file: str) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        return tomllib.loads(text), _lines(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", where)
        number = int(line[1]) if line else text.count("\n") + 1
        raise ConfigError(
            "GD-310", f"{file}:{number} is not valid TOML", seen=what, do="put texts in quotes, and one key on a line"
        ) from None
    except RecursionError:
        do = "write sections, and in them one key on a line"
        raise ConfigError("GD-310", f"{file} is not valid TOML", seen="it is nested too deep", do=do) from None


def _lines(text: str) -> dict[str, int]:
    """The line of each "section" and "section.key", which tomllib does not report."""
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
            noun, names = ("section", list(SECTIONS)) if isinstance(table, dict) else ("key", list(RULES))
            raise unknown(noun, section, [*names, "preset"], origin)
        if not isinstance(table, dict):
            raise _wrong(section, table, f"a section: [{section}]", origin)
        for key, value in table.items():
            full = f"{section}.{key}"
            origin = f"{file}:{lines.get(full, lines.get(section, 1))}"
            if full not in RULES and full not in REMOVED:
                raise unknown("key", full, [*RULES, "preset"], origin)
            yield full, value, origin if line_in_origin else file


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Value]:
    names = {variable_of(key): key for key in (*RULES, *REMOVED)}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in OTHERS or _SERVICE_LINK.search(variable):
            continue
        if variable not in names:
            raise unknown("variable", variable, [*map(variable_of, RULES), *sorted(OTHERS)], "environment")
        key = names[variable]
        yield key, _from_text(key, environment[variable]), f"environment {variable}"


def _from_flags(flags: Mapping[str, str]) -> Iterator[_Value]:
    for key, text in flags.items():
        if key == "preset":
            continue
        if key not in RULES and key not in REMOVED:
            raise unknown("key", key, [*RULES, "preset"], "flag")
        yield key, _from_text(key, text), "flag"


def _from_text(key: str, text: str) -> object:
    return RULES[key].from_text(text) if key in RULES else text


def _harmless(key: str, value: object, origin: str) -> str:
    """The origin of a value of `REMOVED` that changes nothing."""
    if str(value) not in REMOVED[key]:
        raise ConfigError(
            "GD-312",
            f"{origin}: {key} = {_toml(value)} belongs to an algorithm that this version does not have",
            do="remove the key: peers average in pairs. A network with that algorithm keeps its version to its end",
        )
    return origin


def _wrong(key: str, value: object, allowed: str, origin: str) -> ConfigError:
    return ConfigError("GD-311", f"{origin}: {key} = {_toml(value)} is not allowed", do=f"{key} must be {allowed}")


def unknown(noun: str, name: str, known: Sequence[str], origin: str = "") -> ConfigError:
    """GD-312, with the nearest of `known`: keys whose last part is equal, else a similar name."""
    whole = "." in name

    def compared(key: str) -> str:
        return key if whole else key.removeprefix(PREFIX).rpartition(".")[2]

    near = [key for key in known if "." in key + name and key.rpartition(".")[2] == name.rpartition(".")[2]]
    if not near:
        close = difflib.get_close_matches(compared(name), [compared(key) for key in known], 1, 0.6)
        near = [key for key in known if compared(key) in close]
    do = f"did you mean {' or '.join(near)}?" if near else "see `gossipdp config show` for all keys"
    where = f"{origin}: " if origin else ""
    return ConfigError("GD-312", f"{where}unknown {noun} {name}", do=do)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else str(value)
    text = _LOGIN.sub("//...@", text)
    return text if len(text) <= 80 else text[:77] + "..."
