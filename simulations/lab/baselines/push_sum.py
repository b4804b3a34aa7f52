"""Push-sum, for links of one direction. Mass is sent, kept until acknowledged, and never lost or doubled.

`PushSum` is the part of one peer, without transport, clock or training. `Sgp` trains with it. Only the laboratory uses
push-sum (algorithms section 5). A link that only one side can dial still carries both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.clock import compute_seconds
from simulations.lab.baselines.costs import model_bytes, phases
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
    """number of the message from this origin to this receiver"""
    z: NDArray[np.float32]
    w: float


class Acknowledgement(NamedTuple):
    receiver: int
    origin: Origin
    seq: int


class PushSum:
    """Push-sum (Kempe et al. 2003) of one peer, with an outbox.

        msg = Q(share z), wm = share w        z <- z - msg, w <- w - wm        receiver: z <- z + msg, w <- w + wm

    The sender subtracts what it SENT. Q rounds to fp32, so the residual stays with the sender. z / w tends to the mean.
    A message stays in the outbox until acknowledged, and may be sent several times. Its receiver adds it once. Messages
    are whole, so one w serves the whole vector.
    """

    def __init__(self, peer: int, z: Mass, w: float, *, incarnation: int = 0) -> None:
        self.origin: Origin = (peer, incarnation)
        self.z, self.w = z, w
        self.outbox: dict[tuple[int, int], Message] = {}
        """by receiver and number, oldest first"""
        self._sent: dict[int, int] = {}
        self._taken: dict[Origin, tuple[int, set[int]]] = {}
        """per origin: every number below the first value is taken, and the numbers in the set"""

    @property
    def mean(self) -> Mass:
        """z / w, this peer's estimate of the mean. A joiner has none before the first push arrives."""
        return self.z / self.w

    def push(self, receiver: int, share: float = 0.5) -> Message:
        """Send a share of the mass to `receiver`."""
        seq = self._sent.get(receiver, 0)
        message = Message(self.origin, receiver, seq, (share * self.z).astype(np.float32), share * self.w)
        self.z = self.z - message.z
        self.w -= message.w
        self._sent[receiver] = seq + 1
        self.outbox[receiver, seq] = message
        return message

    def leave(self, receiver: int) -> list[Message]:
        """Send all mass, in three messages (fp32 holds 24 of 53 bits). The peer may go when all are acknowledged."""
        return [self.push(receiver, 1.0) for _ in range(3)]

    def take(self, message: Message) -> Acknowledgement:
        """Add the message if it is new, and acknowledge it in any case. An earlier acknowledgement may be lost."""
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
        """Whether this peer has added the message."""
        floor, above = self._taken.get(message.origin, (0, set()))
        return message.seq < floor or message.seq in above

    def acknowledged(self, of: Acknowledgement) -> None:
        """Drop the acknowledged message. Repeated acknowledgements, and those for an earlier incarnation, change
        nothing.
        """
        if of.origin == self.origin:
            self.outbox.pop((of.receiver, of.seq), None)


@dataclass
class Sgp:
    """SGP, stochastic gradient push (Assran et al. 2019, arXiv 1811.10792), on the one-peer exponential graph.

        z_i <- z_i + (inner(a_i) - a_i)        push half of z_i and w_i to i + 2^(t mod log2 N)        a_i = z_i / w_i

    No peer waits for an answer. A lost message is sent again in the next step, beside the mass that follows it.
    Acknowledgements may be lost too. w_i then differs from 1, but the steps alone still move the sum of all z.

    Bytes: 4 P + 8 per message that arrives, new or not. A lost message costs nothing, in favour of SGP. Seconds: the
    transfer follows the step, which waits for the slowest peer.
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
            with np.errstate(over="ignore", invalid="ignore"):  # a diverged run overflows
                for peer, step in zip(self.peers, (lab.x.double() - before).numpy(), strict=True):
                    peer.z = peer.z + step
                lab.elapse(compute_seconds(lab, steps) + self._exchange(lab))
                lab.x.copy_(torch.from_numpy(np.stack([peer.mean for peer in self.peers])))

    def _exchange(self, lab: Lab) -> float:
        """Let all peers push and send their outboxes; return the seconds of the peer that receives most."""
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
        """The mean of all mass that peers hold. If no message is lost, it is the mean of the replicas."""
        z, w = sum(peer.z for peer in self.peers), sum(peer.w for peer in self.peers)
        return torch.from_numpy(z / w).to(lab.x.dtype)
