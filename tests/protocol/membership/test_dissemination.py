"""How often a member passes one piece of news on (SWIM section 4.1)."""

from __future__ import annotations

import pytest

from gossipdp.protocol.membership.dissemination import transmit_limit


@pytest.mark.parametrize(
    ("multiplier", "members", "times"), [(4, 1, 4), (4, 9, 4), (4, 10, 8), (4, 99, 8), (4, 100, 12), (3, 10, 6)]
)
def test_transmit_limit(multiplier: int, members: int, times: int) -> None:
    assert transmit_limit(multiplier, members) == times
