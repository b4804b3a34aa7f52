"""How an offer names the blocks and grids of an exchange, by the name of its codec.

| since version | name of the codec | what it means |
|---|---|---|
| 3 | modulo4 | blocks of the flat vector |
| 5 | modulo4/tensor | no block spans two tensors (`gossipdp.codecs.blocks`) |
| 6 | modulo4/limited | the same, and the smaller range limits the grid of a block (`gossipdp.codecs.modulo`) |

The initiator offers the last one that both members know. The responder answers in the form of the offer. Nothing here
may know a codec.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Named"]

_SUFFIXES: Final = {6: "/limited", 5: "/tensor"}
"""first protocol version that knows a form -> how it ends, the newest first"""


class Named(NamedTuple):
    """What the name of a codec in an offer says."""

    codec: str
    within: bool
    """no block spans two tensors"""
    limited: bool
    """the smaller of both ranges limits the grid of a block"""

    @classmethod
    def of(cls, name: str) -> Named:
        """Read a name."""
        codec, slash, form = name.partition("/")
        known = slash + form in _SUFFIXES.values()
        return cls(codec, known, slash + form == _SUFFIXES[6]) if known else cls(name, False, False)

    @classmethod
    def among(cls, codec: str, version: int) -> Named:
        """The newest form that members of protocol `version` know."""
        return cls.of(codec + next((suffix for since, suffix in _SUFFIXES.items() if version >= since), ""))

    def __str__(self) -> str:
        return self.codec + (_SUFFIXES[6] if self.limited else _SUFFIXES[5] if self.within else "")
