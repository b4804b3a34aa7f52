"""Configuration: the settings that peers must share, and their digest."""

from __future__ import annotations

import pytest

from gossipdp import config
from gossipdp.codecs import CODECS
from gossipdp.config import Config
from gossipdp.config_loading import REMOVED, load, variable_of
from gossipdp.errors import ConfigError
from gossipdp.protocol.settings_digest import keys_apart


def test_what_peers_must_share_is_in_the_digest_and_the_rest_is_not() -> None:
    base = load()
    assert len(config.settings_digest(base)) == 16
    for key, text in {
        "exchange.every": "7",
        "exchange.bits": "8",
        "network.name": "x",
        "exchange.bandwidth": "1mbit",
    }.items():
        other = load(flags={key: text})
        assert config.settings_digest(other) == config.settings_digest(base)
    for key, text in {
        "outer.lr": "0.6",
        "outer.momentum": "0",
        "exchange.kappa": "0",
        "exchange.weight": "0.4",
    }.items():
        other = load(flags={key: text})
        assert config.settings_digest(other) != config.settings_digest(base)
        assert differing(base, other) == [key]


def differing(one: Config, other: Config) -> list[str]:
    """The differing keys, as a peer finds them."""
    return keys_apart(config.settings_digest(one), config.settings_digest(other), tuple(config.agreed(one)))


def test_the_digest_does_not_change_between_releases() -> None:
    assert config.settings_digest(Config()).hex() == "46517e13a7ff76325e2ec2d5f710b057"


def test_every_codec_may_be_set() -> None:
    """A new codec needs its name in `Exchange.codec`. Modulo codecs are set by `codec` and `bits`."""
    named, bits = config.RULES["exchange.codec"], config.RULES["exchange.bits"]
    modulo = {f"modulo{bits.read(width)}" for width in range(2, 17)}
    assert {str(named.read(name)) for name in CODECS.keys() - modulo} | modulo == set(CODECS)


@pytest.mark.parametrize("key", REMOVED)
def test_removed_key_with_a_value_that_changes_nothing_is_passed_over_and_named(key: str) -> None:
    section, _, name = key.partition(".")
    for value in REMOVED[key]:
        text = value if value[0].isdigit() else f'"{value}"'
        config_file = load(f"[{section}]\n{name} = {text}\n", file="run.toml")
        assert config_file.removed == {key: "run.toml:2"} and config_file.exchange == config.Exchange()
        assert load(flags={key: value}).removed == {key: "flag"}
        variable = variable_of(key)
        assert load(environment={variable: value}).removed == {key: f"environment {variable}"}
        assert config.settings_digest(config_file) == config.settings_digest(load())


@pytest.mark.parametrize("text", ['algorithm = "epidemic"', 'robust = "median"', "epoch_steps = 40", "residual = true"])
def test_removed_key_with_another_value_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(ConfigError, match=r"GD-312 peer\.toml:2: exchange\.\w+ = .* does not have\n  do:   remove"):
        load(f"[exchange]\n{text}\n", file="peer.toml")
