"""A usual round of a method on a given network, as the method's own clock tells it."""

from __future__ import annotations

from typing import Final

from gossipdp.protocol.schema import MOST
from peers.plan.clock import Round, Way
from peers.plan.network import Network
from simulations.lab.core import Method, Setting
from simulations.lab.plan.weightless import Weightless, WeightlessPairwise
from simulations.lab.runs.equal_time import ClockLab
from simulations.lab.runs.runs import METHODS, link

__all__ = ["clocked", "lab_of"]

UNUSUAL: Final = 8
"""rounds before a usual one: the first has finer codes, what overlaps lands later, and exchanges learn their length"""
ROUNDS: Final = 8
"""rounds whose mean counts, because exchanges that do not fit end in a later round"""
CHUNK_TURNS: Final = 2048
"""chunks of a round to play, roughly, over all hosts. A larger model is scaled down with its link"""
LEAST_CHUNKS: Final = 16


def clocked(network: Network, way: Way, every: int, bits: int) -> Round:
    """A usual round.

    Args:
        every: steps of the slowest host.
        bits: a parameter, of exchanges of pairs.
    """
    setting, parameters = lab_of(network, every)
    pairs = way.method == "pairwise"
    method: Method = (
        WeightlessPairwise({**way.options, "bits": bits}, parameters) if pairs else METHODS[way.method](**way.options)
    )
    lab = ClockLab(Weightless(parameters), setting)
    method.begin(lab)
    for _ in range(UNUSUAL):
        method.round(lab)
    seconds, steps, received = lab.seconds, lab.steps.copy(), lab.received.copy()
    for _ in range(ROUNDS):
        method.round(lab)
    grown = network.parameters / parameters
    return Round(
        seconds=(lab.seconds - seconds) / ROUNDS,
        steps=tuple(float(count) / ROUNDS for count in lab.steps - steps),
        received=float((lab.received - received).mean()) * grown / ROUNDS,
        exchange=method.exchange_seconds if isinstance(method, WeightlessPairwise) else 0.0,
    )


def lab_of(network: Network, every: int) -> tuple[Setting, int]:
    """The laboratory's setting, and the parameters of the model that it plays.

    A large model is played as one of fewer chunks of the same length, on a link that is narrower in proportion.
    """
    chunks = max(LEAST_CHUNKS, CHUNK_TURNS // network.hosts)
    parameters = min(network.parameters, chunks * MOST)
    setting = Setting(
        peers=network.hosts,
        every=every,
        rounds=UNUSUAL + ROUNDS,
        link=link(network.bandwidth / 125_000.0, 1000.0 * network.latency, parameters, network.parameters),
        step_seconds=network.step_time,
        speeds=network.speeds,
    )
    return setting, parameters
