"""The operator's configuration as the settings of the protocol."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gossipdp.config_loading import load
from gossipdp.protocol.settings_digest import keys_apart
from peers import memory
from peers import settings as protocol_settings
from tests.peers.daemon.homes_and_nodes import Start, shown


@pytest.mark.parametrize(("text", "rounds"), [("", 10), ("[exchange]\napart_rounds = 3\n", 3)])
def test_rounds_after_which_a_side_is_apart_are_the_operators_to_set(text: str, rounds: int) -> None:
    assert protocol_settings.peer_config(load(text)).apart_rounds == rounds


def test_memory_is_the_containers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    monkeypatch.setattr(memory, "limit", lambda: 1 << 30)
    assert protocol_settings.peer_config(load()).transfer.max_parameters == 1 << 30
    assert start()._transport.limits.total_bytes <= 1 << 30


def test_keys_that_peers_share_are_told_so_that_those_which_differ_can_be_named() -> None:
    peer, other = (protocol_settings.peer_config(load(flags={"outer.lr": lr})) for lr in "12")
    assert keys_apart(peer.settings, other.settings, peer.keys) == ["outer.lr"]


def test_keys_of_an_earlier_version_that_change_nothing_are_one_notice(where: Path, start: Start) -> None:
    (where / "run.toml").write_text('[exchange]\nalgorithm = "pairwise"\nepoch_steps = 50\n')
    [notice] = shown(start().status)
    assert notice.startswith("GD-312 keys of an earlier version have no effect and can be removed: exchange.")
    assert "run.toml:2), exchange.epoch_steps (" in notice
