"""When a follower wants to be called: never in the past while chunks of its joiner are taken in."""

from __future__ import annotations

import math
from random import Random
from typing import Any, cast

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.follower import Follower
from gossipdp.protocol.partition.reasons import Reason


class Joiner:
    """Its candidates show no newer model, and jobs of chunks that came before are under way."""

    busy, done, source = True, False, b""

    def outdone(self, candidates: object) -> bool:
        return True

    def timer(self) -> None:
        return None


def test_outdone_follower_waits_for_the_jobs_of_its_joiner_without_a_timer() -> None:
    """Simulator seed 1096, with four jobs of a pass at once: the follower named the same past time for ever."""
    joiner = Joiner()
    follower = Follower(lambda clock: cast(Any, joiner), Outputs(), lambda held, now: True, 0.25, Random(1))
    follower.begin(Reason.LATE, 3, 2, 1.0, keep=False)
    follower.fetch([b"source"], 2.0)
    assert follower.timer() == math.inf and not follower.over(2.0)
    joiner.busy = False
    assert follower.timer() == 2.0 and follower.over(2.0)
