"""Loops that step in the usual way: what the other tests of this folder stand on."""

from __future__ import annotations

import math

import pytest
from pair import Pair

pytestmark = pytest.mark.processes


def test_a_plain_loop_on_two_hosts_exchanges_and_the_replicas_stay_near(scripts: Pair) -> None:
    first, second = scripts.run("plain_loop.py")
    assert not first.last["alone"] and not second.last["alone"]
    apart = math.dist(first.last["weights"], second.last["weights"])
    assert apart < 0.1 * math.hypot(*first.last["weights"])
