"""`Surroundings` for tests of one strategy alone: training makes rounds, callbacks do nothing."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.strategy import Surroundings

SETTINGS = b"the settings...."


def surroundings(membership: Any, **changes: Any) -> Surroundings:
    """What a peer with this membership offers, with `changes`."""

    def nothing(*_: object) -> None:
        pass

    given: dict[str, Any] = {
        "progress": None,
        "outputs": Outputs(),
        "pacing": SimpleNamespace(usual_every=50, every=50, speed=1.0, warming_up=False, room=math.inf),
        "random": Random(0),
        "now": 0.0,
        "sign": lambda data: bytes(64),
        "verify": lambda peer, data, signature: True,
        "settings": SETTINGS,
        "keys": (),
        "sync": False,
        "shuns": lambda peer, now: False,
        "apart": dict,
        "trains": lambda: True,
        "attached": lambda: True,
        "drift": lambda: 0,
        "began": nothing,
        "ended": nothing,
        "applied": nothing,
        "refounded": nothing,
    }
    return Surroundings(membership=membership, **(given | changes))
