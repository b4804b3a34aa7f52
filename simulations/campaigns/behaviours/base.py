"""An honest behaviour, which hostile ones override."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import Protocol

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


class Surroundings(Protocol):
    """What a behaviour knows of the network around it."""

    network: Network
    schema: Schema
    culprit: Host
    """the host that misbehaves"""
    honest: list[Host]
    """all other hosts"""


class Behaviour:
    """Honest in everything; what a behaviour does not override is.

    Args: siege: the network, in which the culprit is up and has the model.
    """

    excuse = "it is honest"
    """why no word of it proves anything: who honest says the same, and when; "" if there is a word that nobody honest
    says, for which it must be set aside"""
    answers = False
    """is that an answer, which only those hear who offer it an exchange? A schedule has some always offered one"""
    beat = math.inf
    """seconds between two times that it speaks unasked"""

    def __init__(self, surroundings: Surroundings) -> None:
        self.network, self.schema = surroundings.network, surroundings.schema
        self.host, self.honest = surroundings.culprit, surroundings.honest
        self.random = Random(f"hostile/{surroundings.network.seed}")

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        """What goes out in the place of `envelope`."""
        return (envelope,)

    def does(self, job: jobs.Job) -> jobs.Result:
        """Carry out one of its own jobs."""
        return perform(self.host, job)

    def speaks(self) -> Iterable[Envelope]:
        """Once a beat."""
        return ()


def envelope(to: Host, message: Message, buffers: tuple[Buffer, ...] = ()) -> Envelope:
    lane = Lane.DATA if type(message) in DATA_LANE else Lane.CONTROL
    return Envelope(to.id, to.address, lane, wire.encode(message, buffers), message)
