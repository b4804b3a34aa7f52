"""How an offer names the blocks of an exchange, by the name of its codec.

Since protocol version 5 no block spans two tensors (`gossipdp.codecs.blocks`), and the codec is "modulo4/tensor". With
a peer of an earlier version it is "modulo4", and the blocks are those of that version. The responder answers in the
form of the offer. Nothing here may know a codec.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["SINCE", "Named"]

SINCE: Final = 5
"""first protocol version that has blocks of tensors"""
_SUFFIX: Final = "/tensor"


class Named(NamedTuple):
    """What the name of a codec in an offer says."""

    codec: str
    within: bool
    """no block spans two tensors"""

    @classmethod
    def of(cls, name: str) -> Named:
        """Read a name."""
        return cls(name.removesuffix(_SUFFIX), name.endswith(_SUFFIX))

    def __str__(self) -> str:
        return self.codec + _SUFFIX * self.within
