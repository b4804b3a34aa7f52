"""What a peer with a model knows of it besides the vectors, and the settings of one outer step."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.schema import Schema, chunk_parameters

__all__ = ["Model", "Outer"]


@dataclass(frozen=True)
class Outer:
    """Hyper-parameters of one outer step."""

    lr: float
    momentum: float
    part: float = 1.0
    """of a usual round that this one is: less for a slow host, whose rounds have fewer steps"""
    made: float = 1.0
    """share of this peer's own round that was made: less if the end of training cut it short"""
    waits: bool = False
    """its correction waits for the round's first exchange, and lands with that one's"""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a peer with a model knows of it, besides the vectors."""

    schema: Schema
    schema_bytes: bytes
    settings: bytes
    clock: int
    rounds: int
    carried: Carried = NOTHING
    """what goes with it and is not averaged"""

    @classmethod
    def of(
        cls,
        schema_bytes: bytes,
        settings: bytes,
        clock: int,
        rounds: int,
        carried: Carried = NOTHING,
    ) -> Model:
        return cls(
            schema=Schema.from_bytes(schema_bytes),
            schema_bytes=schema_bytes,
            settings=settings,
            clock=clock,
            rounds=rounds,
            carried=carried,
        )

    @property
    def chunk_parameters(self) -> int:
        return chunk_parameters(self.schema.size)

    @property
    def chunks(self) -> int:
        return len(self.schema.spans())
