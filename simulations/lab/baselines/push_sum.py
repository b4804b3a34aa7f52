"""Push-sum, for links of one direction: mass that is sent, kept until acknowledged, and never lost or doubled.

`PushSum` is one peer's share of it, without transport, clock or training; `Sgp` trains by it. Used in the laboratory
alone (algorithms section 5): a link that can be dialled only one way still carries both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulations.lab.baselines.costs import compute_seconds, model_bytes, phases
from simulations.lab.core import Lab

__all__ = ["Acknowledgement", "Message", "PushSum", "Sgp"]

Mass = NDArray[np.float64]
Origin = tuple[int, int]
"""a peer and its incarnation"""


class Message(NamedTuple):
    """Mass on its way."""

    origin: Origin
    receiver: int
    seq: int
    """counts the messages of this origin to this receiver"""
    z: NDArray[np.float32]
    w: float


class Acknowledgement(NamedTuple):
    receiver: int
    origin: Origin
    seq: int


class PushSum:
    """Push-sum (Kempe et al. 2003) of one peer, with an outbox.

        msg = Q(share z), wm = share w        z <- z - msg, w <- w - wm        receiver: z <- z + msg, w <- w + wm

    What is subtracted is what was SENT, Q rounding to fp32: its residual stays home. z / w tends to the mean. A
    message stays in the outbox until acknowledged and may be sent any number of times; its receiver takes it once. One
    w for the whole vector: messages are whole here, so a w for each chunk would be the same number.
    """

    def __init__(self, peer: int, z: Mass, w: float, *, incarnation: int = 0) -> None:
        self.origin: Origin = (peer, incarnation)
        self.z, self.w = z, w
        self.outbox: dict[tuple[int, int], Message] = {}
        """by receiver and number, oldest first"""
        self._sent: dict[int, int] = {}
        self._taken: dict[Origin, tuple[int, set[int]]] = {}
        """of each origin: all below this number, and these above it"""

    @property
    def mean(self) -> Mass:
        """z / w: what this peer takes the mean to be. A joiner has no mass and no opinion until somebody pushed."""
        return self.z / self.w

    def push(self, receiver: int, share: float = 0.5) -> Message:
        """Part with a share of the mass."""
        seq = self._sent.get(receiver, 0)
        message = Message(self.origin, receiver, seq, (share * self.z).astype(np.float32), share * self.w)
        self.z = self.z - message.z
        self.w -= message.w
        self._sent[receiver] = seq + 1
        self.outbox[receiver, seq] = message
        return message

    def leave(self, receiver: int) -> list[Message]:
        """Part with everything, in three messages (fp32 holds 24 of 53 bits); go when all are acknowledged."""
        return [self.push(receiver, 1.0) for _ in range(3)]

    def take(self, message: Message) -> Acknowledgement:
        """Add it if it is new. Acknowledge it in any case: the first acknowledgement may be what was lost."""
        if not self.has(message):
            self.z = self.z + message.z
            self.w += message.w
            floor, above = self._taken.get(message.origin, (0, set()))
            above.add(message.seq)
            while floor in above:
                above.remove(floor)
                floor += 1
            self._taken[message.origin] = (floor, above)
        return Acknowledgement(message.receiver, message.origin, message.seq)

    def has(self, message: Message) -> bool:
        """Whether this message's mass is in this peer's."""
        floor, above = self._taken.get(message.origin, (0, set()))
        return message.seq < floor or message.seq in above

    def acknowledged(self, of: Acknowledgement) -> None:
        """The receiver has it. Again, or of an earlier incarnation: nothing."""
        if of.origin == self.origin:
            self.outbox.pop((of.receiver, of.seq), None)


@dataclass
class Sgp:
    """SGP, stochastic gradient push (Assran et al. 2019, arXiv 1811.10792), on the one-peer exponential graph.

        z_i <- z_i + (inner(a_i) - a_i)        push half of z_i and w_i to i + 2^(t mod log2 N)        a_i = z_i / w_i

    Nobody waits for an answer. What was lost is sent again in the next step, with the mass that follows it, and so may
    an acknowledgement be lost: w_i leaves 1, and still the sum of all z moves by the steps alone. Bytes: 4 P + 8 for
    each message that arrives, new or not; what is lost costs nothing, in SGP's favour. Seconds: the transfer follows
    the step, which waits for the slowest.
    """

    name: str = "sgp"
    local: bool = False
    peers: list[PushSum] = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        self.peers = [PushSum(peer, lab.x[peer].double().numpy(), 1.0) for peer in range(lab.peers)]
        self._exchanges = 0

    def round(self, lab: Lab) -> None:
        exchanges, steps = phases(lab, self.local)
        for _ in range(exchanges):
            before = lab.x.double()
            lab.train(steps)
            with np.errstate(over="ignore", invalid="ignore"):  # of a run that diverges
                for peer, step in zip(self.peers, (lab.x.double() - before).numpy(), strict=True):
                    peer.z = peer.z + step
                lab.elapse(compute_seconds(lab, steps) + self._exchange(lab))
                lab.x.copy_(torch.from_numpy(np.stack([peer.mean for peer in self.peers])))

    def _exchange(self, lab: Lab) -> float:
        """All push, all outboxes are sent; the seconds of the peer that receives most."""
        size, received = model_bytes(lab) + 8.0, np.zeros(lab.peers)
        turns = (lab.peers - 1).bit_length()
        for peer in self.peers if turns else ():
            peer.push((peer.origin[0] + (1 << self._exchanges % turns)) % lab.peers)
        for peer in self.peers:
            for message in list(peer.outbox.values()):
                acknowledgement = None
                if lab.random.random() >= lab.setting.failing:
                    acknowledgement = self.peers[message.receiver].take(message)
                    received[message.receiver] += size
                if acknowledgement is not None and lab.random.random() >= lab.setting.failing:
                    peer.acknowledged(acknowledgement)
        self._exchanges += 1
        lab.receive(received)
        return lab.setting.link.seconds(float(received.max())) if turns else 0.0

    def model(self, lab: Lab) -> Tensor:
        """The mean of all mass that peers hold, which is the mean of the replicas where nothing is lost."""
        z, w = sum(peer.z for peer in self.peers), sum(peer.w for peer in self.peers)
        return torch.from_numpy(z / w).to(lab.x.dtype)
