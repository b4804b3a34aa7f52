"""What the decisions about the model rest on, as one value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the other machines of this peer know at one moment."""

    clock: int
    """the network's clock in steps"""
    every: int
    """steps of a round"""
    waits: bool
    """a training process waits for the model"""
    begins: bool
    """a training process has the model"""
    ends: bool
    """the run of this peer ends: a model with own training is kept, unless it is a `spare` one"""
    spare: bool
    """the own steps are in the models of other members, which have trained on"""
    last: bool
    """the run ends, and no member trains any more: a copy is fetched a last time"""
    closing: bool
    """the run ends, and others come to their mean"""
    closes: bool
    """this peer comes to the mean with them: a fetched copy would change it"""
