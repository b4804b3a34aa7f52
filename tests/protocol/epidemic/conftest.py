"""A machine of `epidemic` among peers that the test plays."""

from __future__ import annotations

import pytest

from tests.protocol.epidemic.broadcast_rig import Rig


@pytest.fixture
def rig():
    return Rig()
