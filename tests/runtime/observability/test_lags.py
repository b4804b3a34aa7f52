"""The lag of members, from their real reports."""

from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.runtime.observability.lags import Lags
from tests.protocol.membership.machines import TRUSTING

ME, OTHER = bytes([1]) * 32, bytes([2]) * 32
EVERY = 40
"""steps of a round"""


class Pair:
    """Two peers that train at the same speed, as this one sees both."""

    def __init__(self) -> None:
        self.here, self.there, self.lags = ProgressBoard(ME, TRUSTING), ProgressBoard(OTHER, TRUSTING), Lags()
        self._rounds = {ME: 0, OTHER: 0}

    def round(self, *peers: bytes) -> tuple[int | None, int | None]:
        """These peers make a round and tell each other. Returns the lag of both just before the next one ends."""
        for board, peer in ((self.here, ME), (self.there, OTHER)):
            if peer in peers:
                self._rounds[peer] += 1
                made = self._rounds[peer]
                board.report(clock=EVERY * made, steps=EVERY * made, samples=8 * EVERY * made, rounds=made)
        self.here.merge(self.there.reports())
        self.there.merge(self.here.reports())
        clock = self.here.clock()
        self.lags.look(self.here.reports(), clock)
        return self.lags.of(ME, clock), self.lags.of(OTHER, clock)


def test_member_hangs_and_trains_again__its_lag_grows_and_falls() -> None:
    pair = Pair()
    for _ in range(5):
        assert pair.round(ME, OTHER) == (0, 0)
    assert [pair.round(ME)[1] for _ in range(3)] == [EVERY, 2 * EVERY, 3 * EVERY]
    for _ in range(5):
        assert pair.round(ME, OTHER) == (0, 0)
    report = pair.here.of(OTHER)
    assert report is not None and pair.here.clock() - report.clock == 3 * EVERY, "its own clock stays behind for good"


def test_slow_member_lags_by_less_than_one_of_its_rounds() -> None:
    pair = Pair()
    seen = [pair.round(*((ME, OTHER) if number % 4 == 0 else (ME,)))[1] for number in range(40)]
    assert seen == [0, EVERY, 2 * EVERY, 3 * EVERY] * 10


def test_member_without_a_report_has_no_lag_and_one_that_is_gone_is_forgotten() -> None:
    pair = Pair()
    assert pair.lags.of(OTHER, 0) is None
    pair.round(OTHER)
    pair.lags.look([], 0)
    assert pair.lags.of(OTHER, 0) is None
