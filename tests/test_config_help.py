"""Help for every key of the configuration."""

from __future__ import annotations

import re
import tomllib

import pytest

from gossipdp import config
from gossipdp.config import SECTIONS, Config, agreed
from gossipdp.config_help import HELP, Key, known_keys, section_help
from peers import home

KEYS = {key.name: key for key in known_keys()}


def test_every_key_has_help_in_the_order_of_a_dump_and_no_other_has() -> None:
    assert list(KEYS) == list(HELP) == ["preset", *config.RULES]


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_help_is_complete(key: Key) -> None:
    for text in (key.meaning, key.when):
        assert text.endswith(".") and "  " not in text, text
    for sentence in re.split(r"(?<=[.:]) ", f"{key.meaning} {key.when}"):
        assert len(sentence.split()) <= 25, sentence
    assert " if " in key.when or " to " in key.when or " after " in key.when, "no situation"
    assert key.range and tomllib.loads(f"x = {key.default}")
    assert re.fullmatch("GOSSIPDP_[A-Z_]+", key.variable)


def test_every_section_has_one_sentence() -> None:
    assert all(section_help(section).endswith(".") for section in SECTIONS)


def test_units_belong_to_quantities_only() -> None:
    assert KEYS["exchange.every"].unit == "steps" and KEYS["exchange.bandwidth"].unit == "bytes/second"
    assert KEYS["checkpoint.every"].unit == "seconds" and KEYS["checkpoint.every"].default == '"10m"'
    for key in KEYS.values():
        if key.range.startswith(("one of", "true", "a path")):
            assert key.unit == "", key


def test_keys_that_peers_share_are_those_of_the_digest() -> None:
    shared = {name for name, key in KEYS.items() if key.shared}
    assert shared == agreed(Config()).keys() - {"exchange.algorithm"}


def test_the_presets_are_those_of_the_package() -> None:
    assert set(re.findall(r'"(\w+)"', KEYS["preset"].range)) == set(home.presets())
