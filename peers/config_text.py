"""The configuration as text for people: every key with its meaning, or one key with all that is known of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from gossipdp import config as configuration
from gossipdp.config import DEFAULT_PRESET, RULES, SECTIONS, Config
from gossipdp.config_help import Key, known_keys, section_help
from gossipdp.config_loading import load, unknown
from peers.tables import TERMINAL_WIDTH

__all__ = ["annotated", "explained", "find_keys", "in_presets", "value_in"]

LABEL = 12
"""width of the labels of `explained`"""


def value_in(config: Config, key: str) -> str:
    """The value of `key` as a TOML literal."""
    if key == "preset":
        return f'"{config.preset}"'
    return RULES[key].show(configuration.value_of(config, key))


def annotated(config: Config) -> Iterator[str]:
    """Yield the lines of `config` as TOML, with meaning, unit and origin of each key as comments."""
    section = ""
    for key in known_keys():
        found, _, name = key.name.rpartition(".")
        if found != section:
            section = found
            yield from ("", f"[{section}]", *_comment(section_help(section)))
        if section:
            yield ""
        yield from _comment(_first_sentence(key.meaning))
        setting = _setting(name, value_in(config, key.name))
        origin = _origin(config, key.name)
        notes = f"# {key.unit}; {origin}" if key.unit else f"# {origin}"
        beside = f"{setting:<28} {notes}"
        if len(beside) <= TERMINAL_WIDTH:
            yield beside
        else:
            yield from (notes, *setting.splitlines())


def find_keys(name: str) -> list[Key]:
    """The keys that `name` means: "section.key", a key, a section or an environment variable.

    Raises:
        ConfigError: GD-312, there is none. It names the nearest key.
    """
    keys = list(known_keys())
    found = [
        key
        for key in keys
        if name in (key.name, key.variable, key.name.rpartition(".")[2], key.name.rpartition(".")[0])
    ]
    if not found:
        raise unknown("key", name, [*(key.name for key in keys), *SECTIONS])
    return found


def explained(key: Key, config: Config | None, presets: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines that say everything about `key`.

    Args:
        config: the configuration in use; None if it cannot be read.
        presets: name -> TOML text.
    """
    section, _, name = key.name.rpartition(".")
    if config is None:
        yield key.name
    else:
        yield from _setting(key.name, value_in(config, key.name)).splitlines()
        yield from _labelled("from", _origin(config, key.name))
    yield ""
    yield from textwrap.wrap(key.meaning, TERMINAL_WIDTH)
    yield ""
    yield from _labelled("change it", key.when)
    yield from _labelled("allowed", key.range)
    if key.unit:
        yield from _labelled("unit", key.unit)
    yield from _labelled("default", "; ".join([key.default, *in_presets(key.name, presets)]))
    yield from _labelled("peers", "all peers need the same value" if key.shared else "values may differ")
    yield from _labelled("flag", f"--set {key.name}=..." if section else "--preset ...")
    yield from _labelled("variable", key.variable)
    yield from _labelled("run.toml", f"[{section}] {name} = ..." if section else f"{name} = ...")


def _origin(config: Config, key: str) -> str:
    if key == "preset":
        return "default" if config.preset == DEFAULT_PRESET else "chosen"
    return config.origins.get(key, "default")


def in_presets(key: str, presets: Mapping[str, str]) -> Iterator[str]:
    """Yield the values that presets give to `key`, each with the preset's name."""
    for name in presets if key != "preset" else ():
        config = load(flags={"preset": name}, presets=presets)
        if config.origins.get(key) == f"preset {name}":
            yield f"{value_in(config, key)} with preset {name}"


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."


def _setting(name: str, value: str) -> str:
    """`name = value`. A list that is too long for a line has one element a line."""
    setting = f"{name} = {value}"
    if len(setting) > TERMINAL_WIDTH and value.startswith("["):
        setting = f"{name} = [\n    " + value[1:-1].replace(", ", ",\n    ") + ",\n]"
    return setting


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, TERMINAL_WIDTH, initial_indent="# ", subsequent_indent="# ")


def _labelled(label: str, text: str) -> list[str]:
    """`label` and `text`, wrapped beside it."""
    indent = " " * (LABEL + 1)
    return textwrap.wrap(
        text,
        TERMINAL_WIDTH,
        initial_indent=f"{label:<{LABEL}} ",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
