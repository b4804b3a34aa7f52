"""Events of data sets."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.events.base import Event

__all__ = ["DataCovered", "DataKnown"]


@dataclass(frozen=True, slots=True)
class DataKnown(Event):
    """This peer knows what other members have read of a data set, or that there is none to ask. It gives leases now."""

    data: bytes
    """digest of the data set"""


@dataclass(frozen=True, slots=True)
class DataCovered(Event):
    """Progress of the network with a data set, told now and then. Counts of blocks."""

    name: str
    epoch: int
    """the first epoch that is not finished"""
    finished: int
    """in `epoch`"""
    blocks: int
    """of an epoch"""
    readers: int
    """members that train on it"""
    open: int
    """leases of this peer"""
    duplicates: int
    """blocks finished by this peer, since its start, that another member was known to have finished before"""
