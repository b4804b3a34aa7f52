"""An honest behaviour, which hostile ones override."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from gossipdp.protocol import jobs
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, Message
from gossipdp.protocol.wire.table import DATA_LANE
from simulations.simulator.host import Host, perform
from simulations.simulator.network import Network

__all__ = ["Behaviour", "Surroundings", "envelope"]


class Surroundings(NamedTuple):
    """What a behaviour knows of the network around it."""

    network: Network
    schema: Schema
    culprit: Host
    """the host that misbehaves"""
    league: list[Host]
    """all hosts that misbehave, in the same way"""
    honest: list[Host]
    """all other hosts"""


class Behaviour:
    """Honest in everything. A subclass overrides what it does otherwise.

    Args:
        surroundings: the network, in which the culprit runs and has the model.
    """

    excuse = "it is honest"
    """why no message of it is proof: when an honest peer would send the same. Empty if there is proof; then honest
    peers must set the culprit aside"""
    answers = False
    """whether the proof is an answer, which only peers receive that offer the culprit an exchange"""
    beat = math.inf
    """seconds between two messages of its own"""

    def __init__(self, surroundings: Surroundings) -> None:
        self.network, self.schema = surroundings.network, surroundings.schema
        self.host, self.league, self.honest = surroundings.culprit, surroundings.league, surroundings.honest
        # The first of a league draws as a lone member does.
        number = self.league.index(self.host)
        self.random = Random(f"hostile/{self.network.seed}" + f"/{number}" * (number > 0))

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        """What the culprit sends instead of `envelope`."""
        return (envelope,)

    def does(self, job: jobs.Job[object]) -> object:
        """Carry out one of the culprit's jobs."""
        return perform(self.host, job)

    def speaks(self) -> Iterable[Envelope]:
        """Messages of its own, once per beat."""
        return ()


def envelope(to: Host, message: Message, buffers: tuple[Buffer, ...] = ()) -> Envelope:
    lane = Lane.DATA if type(message) in DATA_LANE else Lane.CONTROL
    return Envelope(to.id, to.address, lane, wire.encode(message, buffers), message)
