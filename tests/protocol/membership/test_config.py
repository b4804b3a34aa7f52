"""Presets of membership agree with themselves and with the limits of messages."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gossipdp.protocol.membership.config import LAN, LOCAL, PRESETS, WAN
from gossipdp.protocol.wire.messages import MAX_ACCUSERS


@pytest.mark.parametrize("config", [LOCAL, LAN, WAN])
def test_presets_are_consistent(config: object) -> None:
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    assert all(math.isfinite(value) and value > 0 for value in values.values())
    assert 2 * values["probe_timeout"] <= values["probe_interval"]
    assert values["gossip_interval"] < values["probe_interval"] < values["push_pull_interval"]
    assert values["join_interval"] < values["join_longest"] <= 10.0
    assert values["suspicion_longest"] >= 1.0 and values["confirmations"] < MAX_ACCUSERS and values["lifeguard"]
    assert values["reconnect_interval"] <= 2 * values["probe_interval"]


def test_presets_are_named_and_frozen() -> None:
    assert PRESETS == {"local": LOCAL, "lan": LAN, "wan": WAN}
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAN.probe_interval = 3.0  # type: ignore[misc]
