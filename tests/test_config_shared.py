"""Configuration: the settings that peers must share, and their digest."""

from __future__ import annotations

import pytest

from gossipdp import config
from gossipdp.algorithms.epidemic import robust
from gossipdp.codecs import CODECS, COMPRESSORS
from gossipdp.config import Config
from gossipdp.config_loading import load
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


def test_auto_and_the_algorithm_it_means_agree() -> None:
    named = load(flags={"exchange.algorithm": "pairwise"})
    assert config.settings_digest(named) == config.settings_digest(load())


def test_the_digest_does_not_change_between_releases() -> None:
    assert config.settings_digest(Config()).hex() == "46517e13a7ff76325e2ec2d5f710b057"


def test_with_epidemic_peers_share_how_increments_travel_and_alpha_is_its_own() -> None:
    base = load(flags={"exchange.algorithm": "epidemic"})
    assert base.exchange.strategy == "epidemic" and base.lr == 2.0
    assert load().lr is None and load(flags={"outer.lr": "0.7"}).lr == 0.7
    assert config.settings_digest(base) != config.settings_digest(load())
    assert differing(base, load()) == ["exchange.algorithm"]
    for key, text in {
        "exchange.compressor": "topk64",
        "exchange.residual": "0.9",
        "exchange.epoch_steps": "40",
        "exchange.warmup_steps": "0",
        "outer.lr": "0.7",
    }.items():
        other = load(flags={"exchange.algorithm": "epidemic", key: text})
        assert differing(base, other) == [key]
    for key, text in {"exchange.kappa": "0", "outer.momentum": "0.5", "exchange.bits": "8"}.items():
        other = load(flags={"exchange.algorithm": "epidemic", key: text})
        assert config.settings_digest(other) == config.settings_digest(base)


def test_robust_rule_is_shared_and_has_an_alpha_of_its_own() -> None:
    flags = {"exchange.algorithm": "epidemic", "exchange.robust": "nnm-trimmed"}
    judged, base = load(flags=flags), load(flags={"exchange.algorithm": "epidemic"})
    assert (judged.exchange.rule, base.exchange.rule) == ("nnm-trimmed", "")
    assert (judged.lr, load(flags={**flags, "outer.lr": "0.5"}).lr) == (1.0, 0.5)
    assert differing(judged, base) == ["exchange.robust", "outer.lr"]
    assert differing(judged, load(flags={**flags, "exchange.robust_share": "0.3"})) == ["exchange.robust"]


@pytest.mark.parametrize("algorithm", ["auto", "pairwise"])
def test_robust_rule_that_would_not_be_applied_is_refused(algorithm: str) -> None:
    text = f'[exchange]\nalgorithm = "{algorithm}"\nrobust = "median"\n'
    with pytest.raises(ConfigError, match=r"peer\.toml:3: exchange\.robust"):
        load(text, file="peer.toml")


def test_robust_rule_is_not_waited_for() -> None:
    with pytest.raises(ConfigError, match=r"exchange\.mode"):
        load(flags={"exchange.algorithm": "epidemic", "exchange.robust": "median", "exchange.mode": "sync"})


def test_every_robust_rule_that_may_be_set_is_there() -> None:
    assert set(config.ROBUST_RULES) <= set(robust.RULES)


def test_every_compressor_may_be_set() -> None:
    assert set(config.COMPRESSORS) == set(COMPRESSORS)


def test_every_codec_may_be_set() -> None:
    """A new codec needs its name in `Exchange.codec`. Modulo codecs are set by `codec` and `bits`."""
    named, bits = config.RULES["exchange.codec"], config.RULES["exchange.bits"]
    modulo = {f"modulo{bits.read(width)}" for width in range(2, 17)}
    assert {str(named.read(name)) for name in CODECS.keys() - modulo} | modulo == set(CODECS)
