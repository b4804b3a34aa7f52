"""What a peer has contributed, and the network's clock as it knows it."""

import pytest

from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.wire.messages import Progress
from tests.protocol.membership.machines import TRUSTING

ME, OTHER = b"m" * 32, b"o" * 32


@pytest.mark.parametrize(("told", "clock"), [(40, 50), (60, 60), (100, 100), (1 << 20, 100)])
def test_model_of_another_peer_comes_with_a_clock__it_counts_as_far_as_the_networks_clock_is_believed(told, clock):
    board = ProgressBoard(ME, TRUSTING)
    board.merge([Progress(OTHER, 100, 100, 100, 10)])
    contribution = Contribution(board)
    contribution.added(50, 50, 50)
    contribution.replaced(told, ahead=0)
    assert contribution.own_clock == clock
