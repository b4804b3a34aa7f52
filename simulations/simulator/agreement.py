"""Agreement of replicas that no longer train: their squared distance falls geometrically (I4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np

from gossipdp.protocol.events import Event, ExchangeEnded
from simulations.simulator.host import Host
from simulations.simulator.network import Network

__all__ = ["FALLS", "NOISE", "Agreement", "check_agreement", "disagreement", "observe_agreement"]

MOMENTUM_FADES = 10
"""rounds until the momentum that drives replicas apart has fallen below 1e-2 of its square: 0.7^20"""
FALLS = 4.0
"""least factor by which squared distances fall from one third of these rounds to the next"""
NOISE = 1e-9
"""squared distance that always counts as agreement"""
ROUNDING = 2.0**-8
"""rounding of a buffer in an exchange, relative to the element (bfloat16)"""


class Agreement(NamedTuple):
    """Squared distances of the replicas over some rounds."""

    start: float
    worst: Sequence[float]
    """largest distance in each third of the rounds; a chunk mixed on one side alone increases it for a moment"""
    left: float
    """distance at the end"""
    rounds: float
    met: Sequence[bool]
    """whether, in each third, every peer had a sixth as many exchanges as there were rounds"""
    noise: float = NOISE
    """distance that roundings alone may leave"""


def disagreement(network: Network) -> float:
    """Mean over parameters and peers of (a_i - mean a)^2."""
    anchors = [host.algorithm.ledger.a for host in network.hosts if host.peer is not None and host.peer.view.ready]
    return float(np.mean(np.var(np.array(anchors, np.float64), axis=0)))


def rounding_noise(network: Network) -> float:
    """Squared distance that roundings alone may leave: buffers travel in 16 bits, relative to each element."""
    ledgers = [host.algorithm.ledger for host in network.hosts if host.peer is not None and host.peer.view.ready]
    buffers = [
        float(np.sum((ROUNDING * each.a[each.trainable :].astype(np.float64)) ** 2)) / each.size for each in ledgers
    ]
    return NOISE + max(buffers, default=0.0)


def observe_agreement(network: Network, listeners: list[Callable[[Host, Event], None]]) -> Agreement:
    """Run for as many rounds as replicas need to agree to 1e-2 of their squared distance. No process may train.

    Args:
        listeners: receive all events of the network; one is added.

    Raises:
        AssertionError: I7, rounds do not go on.
    """
    up = [host for host in network.hosts if host.peer is not None]
    rounds = 8 + 6 * math.log2(max(2, len(up))) + MOMENTUM_FADES
    begun = {host.index: host.running.view.model_rounds for host in up}
    start = left = disagreement(network)
    worst = [start, 0.0, 0.0]
    met = [dict.fromkeys(begun, 0) for _ in worst]
    """exchanges of each host in each third"""
    patience = network.now + 20.0 * rounds
    done = third = 0

    def ended(host: Host, event: Event) -> None:
        if isinstance(event, ExchangeEnded) and event.chunks and host.index in begun:
            met[third][host.index] += 1

    listeners.append(ended)
    while done < rounds:
        assert network.now < patience, "I7: rounds do not go on"
        network.run(network.now + 1.0)
        left = disagreement(network)
        worst[third] = max(worst[third], left)
        done = min(host.running.view.model_rounds - begun[host.index] for host in up)
        third = min(2, int(3 * done / rounds))
    enough = [min(each.values()) >= rounds / 6 for each in met]
    return Agreement(start, worst, left, rounds, enough, rounding_noise(network))


def check_agreement(seen: Agreement) -> None:
    """Check that replicas agree, and that their distance fell in every third in which all peers met others.

    A peer that wasted its partners' time may be left alone for a minute. With three peers, a third one may find the
    only peer that it may ask busy. Such peers must agree in the end, but not evenly.
    """
    start, left, rounds = seen.start, seen.left, seen.rounds
    assert left <= 1e-2 * start + seen.noise, f"I4: squared distance {start:.3g} -> {left:.3g} in {rounds:.0f} rounds"
    for before, after in compress(pairwise(seen.worst), seen.met):
        fell = after <= before / FALLS + seen.noise
        assert fell, f"I4: squared distance does not fall geometrically: {seen.worst}"
