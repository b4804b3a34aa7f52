"""The machines that a change of model and an input of the training process act on."""

from __future__ import annotations

from typing import NamedTuple

from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Rounds

__all__ = ["RoundMachines"]


class RoundMachines(NamedTuple):
    """`Replica` builds them once."""

    contribution: Contribution
    pacing: Pacing
    averaging: Averaging
    rounds: Rounds
