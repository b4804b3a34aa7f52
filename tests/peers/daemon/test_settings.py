"""The operator's configuration as the settings of the protocol."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from gossipdp.algorithms.ledger import in_memory
from gossipdp.config_loading import load
from gossipdp.protocol.schema import MOST_EXACT
from gossipdp.protocol.settings_digest import keys_apart
from peers import memory
from peers import settings as protocol_settings
from tests.peers.daemon.homes_and_nodes import Start


@pytest.mark.parametrize(("text", "rounds"), [("", 10), ("[exchange]\napart_rounds = 3\n", 3)])
def test_rounds_after_which_a_side_is_apart_are_the_operators_to_set(text: str, rounds: int) -> None:
    assert protocol_settings.peer_config(load(text)).apart_rounds == rounds


def test_memory_is_the_containers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    monkeypatch.setattr(memory, "limit", lambda: 1 << 30)
    peer = protocol_settings.peer_config(load('[exchange]\nalgorithm = "epidemic"\n'))
    assert peer.transfer.max_parameters == 1 << 30 and peer.strategy.broadcast.retain <= 1 << 30
    assert start()._transport.limits.total_bytes <= 1 << 30


@pytest.mark.parametrize("text", ["", '[exchange]\nalgorithm = "epidemic"\n'])
def test_keys_that_peers_share_are_told_so_that_those_which_differ_can_be_named(text: str) -> None:
    peer, other = (protocol_settings.peer_config(load(text, flags={"outer.lr": lr})) for lr in "12")
    assert keys_apart(peer.settings, other.settings, peer.keys) == ["outer.lr"]


def test_epidemic_is_what_the_configuration_says() -> None:
    text = '[exchange]\nalgorithm = "epidemic"\ncompressor = "topk64"\nresidual = 0.9\n'
    text += "epoch_steps = 40\nwarmup_steps = 30\n"
    peer = protocol_settings.peer_config(load(text))
    assert peer.algorithm == "epidemic" and peer.most_chunk == MOST_EXACT
    strategy = peer.strategy
    assert (strategy.compressor, strategy.beta, strategy.lr, strategy.whole_until) == ("topk64", 0.9, 2.0, 30)
    assert strategy.broadcast.span == 40 and strategy.broadcast.run == peer.settings
    assert protocol_settings.peer_config(load("")).algorithm == "pairwise"


def test_robust_rule_takes_away_the_warm_start() -> None:
    text = '[exchange]\nalgorithm = "epidemic"\nrobust = "nnm-median"\nrobust_share = 0.3\n'
    config = load(text)
    peer = protocol_settings.peer_config(config)
    strategy = peer.strategy
    assert (strategy.rule, strategy.lr, strategy.whole_until, peer.warmup_steps) == ("nnm-median", 1.0, 0, 0)
    assert protocol_settings.algorithm_of(config, in_memory)._bad == 0.3  # type: ignore[union-attr]
