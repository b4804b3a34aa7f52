"""Short runs with events on a problem of 20 parameters, in which a step lasts a second."""

from dataclasses import replace

from peers.plan.timeline import Link
from simulations.lab.failures.hosts import Event, FailureSetting
from simulations.lab.failures.lab import play
from tests.simulations.lab.baselines.toy_problems import LINE

SETTING = FailureSetting(peers=4, every=10, rounds=10, inner="sgd", lr=0.05, seconds=300.0)
NARROW = Link(bandwidth=10.0)
"""a link on which messages take seconds"""


def gone(host, begin, end=float("inf")):
    return Event(host=host, kind="gone", begin=begin, end=end)


def paused(host, begin, end):
    return Event(host=host, kind="paused", begin=begin, end=end)


def slow(host, begin, end=float("inf")):
    return Event(host=host, kind="slow", begin=begin, end=end)


def ran(method, *events, problem=LINE, **changed):
    """The lab after the run."""
    return play(problem, method, replace(SETTING, events=events, **changed)).lab
