"""What a peer can go on from without the network: a checkpoint, or a training process that outlived its daemon."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Held", "Live"]


class Held(NamedTuple):
    """The progress of a checkpoint. The later of two is the greater."""

    clock: int
    """The network's clock in steps."""
    rounds: int
    """The peer's rounds."""


class Live(NamedTuple):
    """What a training process says of its parameters when it attaches to the next daemon."""

    clock: int
    """The network's clock in steps, at which the parameters stand."""
    steps: int
    """Own steps in them of which no snapshot was taken, as far as the process knows."""
    samples: int
    """Samples of those steps."""
    loaded: bool = False
    """The script has loaded the parameters, so they are not what training made of the model."""
