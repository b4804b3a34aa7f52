"""A life of a host: the time between one start and the next stop of its daemon."""

from __future__ import annotations

from typing import TypeAlias

from simulations.simulator.host import Host

__all__ = ["Life", "life_of"]

Life: TypeAlias = tuple[int, int]
"""(host, incarnation)"""


def life_of(host: Host) -> Life:
    return (host.index, host.incarnation)
