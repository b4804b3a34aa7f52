"""Hostile partners in an exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from gossipdp.codecs.base import Vector
from gossipdp.protocol import jobs
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    Accept,
    Ack,
    Data,
    End,
    Miss,
    Offer,
    Ranges,
    Refuse,
    Void,
)
from simulations.campaigns.behaviours.base import Behaviour, Surroundings, envelope
from simulations.simulator.cluster_processes import SETTINGS
from simulations.simulator.host import perform

__all__ = [
    "AckWithoutApplying",
    "Equivocation",
    "Malformed",
    "NeverAck",
    "OneByteASecond",
    "Overclaim",
    "Pushes",
    "SignFlip",
    "Silent",
]

PUSH: Final = 0.1
"""mean movement of a parameter that `Pushes` shows; training moves one by some 0.02 a step"""


class Silent(Behaviour):
    """Trains, and neither makes nor answers offers."""

    excuse = "networks lose offers, and a busy peer refuses them"

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        return () if isinstance(envelope.message, Accept | Offer | Refuse) else (envelope,)


class NeverAck(Behaviour):
    """Takes part until its partner waits for the last message, then falls silent."""

    excuse = "networks lose last messages, and honest peers crash before theirs"

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        last = isinstance(envelope.message, Ack | End | Void) or (
            isinstance(envelope.message, Data) and envelope.message.turn > 1
        )
        return () if last else (envelope,)


class AckWithoutApplying(Behaviour):
    """Acknowledges without mixing. Its partners move towards it, and it stays where it is."""

    excuse = "no peer sees another's anchor, which other steps and exchanges move too"

    def does(self, job: jobs.Job[object]) -> object:
        if not isinstance(job, jobs.DecodeAndMix | jobs.Mix):
            return perform(self.host, job)
        ledger = self.host.algorithm.ledger
        anchor, momentum = ledger.a.copy(), ledger.v.copy()
        result = perform(self.host, job)
        ledger.a[:], ledger.v[:] = anchor, momentum
        return result


class OneByteASecond(Behaviour):
    """Delays each message of an exchange until just before its partner's deadline. Its next offer is always ready."""

    excuse = "an honest peer on a slow link does the same"
    beat = 0.5
    hesitates = 0.8
    """share of its partner's deadline"""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._number = self.host.incarnation << 32 | 1 << 20

    def speaks(self) -> Iterator[Envelope]:
        self._number += 1
        for to in self.honest:
            yield envelope(to, Offer(self._number, self.schema.digest, SETTINGS, "modulo4", 0.5, 0.0, 0, 8))

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if isinstance(envelope.message, End):
            return ()
        if not isinstance(envelope.message, Ranges | Data | Ack | Miss):
            return (envelope,)
        network = self.network
        wait = self.hesitates * self.host.config.averaging.deadlines.silence
        network.at(network.now + wait, "hesitates", self.host, partial(network.inject, self.host, envelope))
        return ()


class Shows(Behaviour):
    """Shows its partners another anchor than it has."""

    def shown(self, anchor: Vector, job: jobs.Begin | jobs.Answer) -> Vector:
        """What it shows of the job's chunk instead of `anchor`."""
        raise NotImplementedError

    def does(self, job: jobs.Job[object]) -> object:
        if not isinstance(job, jobs.Begin | jobs.Answer):
            return perform(self.host, job)
        ledger = self.host.algorithm.ledger
        span = ledger.span(job.key.chunk)
        anchor = ledger.a[span].copy()
        ledger.a[span] = self.shown(anchor, job)
        result = perform(self.host, job)
        ledger.a[span] = anchor
        return result


class Equivocation(Shows):
    """Shows each partner another anchor."""

    excuse = "no peer compares what two partners heard at different times, and pairwise signs no message"

    def shown(self, anchor: Vector, job: jobs.Begin | jobs.Answer) -> Vector:
        other = np.random.default_rng(job.key.exchange).standard_normal(len(anchor)).astype(np.float32)
        return anchor + other * np.std(anchor)


class SignFlip(Shows):
    """Shows its anchor with the other sign."""

    excuse = "no peer knows where another's training has led"

    def shown(self, anchor: Vector, job: jobs.Begin | jobs.Answer) -> Vector:
        return -anchor


class Pushes(Shows):
    """Shows its anchor moved a step in one direction, the same in each exchange and of each member of its league."""

    excuse = "no peer knows where another's training has led"

    def shown(self, anchor: Vector, job: jobs.Begin | jobs.Answer) -> Vector:
        direction = np.random.default_rng(job.key.chunk).standard_normal(len(anchor)).astype(np.float32)
        return anchor + np.float32(PUSH) * direction


class Malformed(Behaviour):
    """Sends codes that no codec can decode."""

    excuse = ""

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if isinstance(envelope.message, Data | Ranges) and envelope.frames[1:]:
            return (envelope._replace(frames=[envelope.frames[0], *(b"\1" * 7 for _ in envelope.frames[1:])]),)
        return (envelope,)


class Overclaim(Shows):
    """Makes its partner move all the way although less was agreed: it acknowledges a share of 1 from far away."""

    excuse = ""
    answers = True

    def shown(self, anchor: Vector, job: jobs.Begin | jobs.Answer) -> Vector:
        return anchor + np.float32(10.0)

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if isinstance(envelope.message, Ack):
            message = replace(envelope.message, share=1.0)
            return (envelope._replace(frames=[*wire.encode(message), *envelope.frames[1:]], message=message),)
        return (envelope,)
