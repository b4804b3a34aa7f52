"""Hostile senders: floods, replays and garbage."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire.messages import (
    Ask,
    Offer,
    Ping,
    StateRequest,
)
from simulations.campaigns.behaviours.base import Behaviour, Surroundings, envelope
from simulations.simulator.cluster_processes import SETTINGS

__all__ = ["Flood", "Garbage", "Replay"]


class Flood(Behaviour):
    """Sends eighty well-formed offers, questions and requests a second to each peer."""

    excuse = "each message is a valid one, and a bad network causes bursts too"
    beat = 0.05

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._number = self.host.incarnation << 32 | 1 << 20

    def speaks(self) -> Iterator[Envelope]:
        self._number += 1
        schema = self.schema.digest
        for to in self.honest:
            told = self._number
            yield envelope(to, Offer(told, schema, SETTINGS, "modulo4", 0.5, 0.0, 0, 8))
            yield envelope(to, Ask(self.random.randrange(told), 0, 0))
            yield envelope(to, StateRequest(told))
            yield envelope(to, Ping(told % 2**32))


class Replay(Behaviour):
    """Repeats any of its earlier messages to any peer."""

    excuse = "networks duplicate and delay honest messages"
    beat = 0.05

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._said: deque[Envelope] = deque(maxlen=4000)

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if envelope.to and not isinstance(envelope.message, Ping):
            self._said.append(envelope)
        return (envelope,)

    def speaks(self) -> Iterator[Envelope]:
        for _ in range(4 if self._said else 0):
            said = self.random.choice(self._said)
            to = self.random.choice(self.honest)
            yield said if self.random.random() < 0.5 else said._replace(to=to.id, address=to.address)


class Garbage(Behaviour):
    """Sends bytes that are no message."""

    excuse = ""
    beat = 0.05

    def speaks(self) -> Iterator[Envelope]:
        for to in self.honest:
            junk = self.random.randbytes(self.random.randint(1, 200))
            yield envelope(to, Ping(0))._replace(frames=[junk])
