"""A hostile member that speaks every message with any legal value, the largest and the smallest most of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any, Final

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from gossipdp.errors import LocalProtocolError, RemoteProtocolError
from gossipdp.protocol.admission.packing import pack
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Decisions, Member, Message, Progress, State
from gossipdp.protocol.wire.table import BUFFERS, MESSAGES
from simulations.campaigns.behaviours.base import Behaviour, Surroundings, envelope
from simulations.simulator.host import sign, verify

__all__ = ["Extremes", "Values"]

TINY: Final = 5e-324
WIDE: Final = "\U0001f600"
"""a character of four bytes"""
LONGEST: Final = 6
"""items of a drawn tuple; longer ones do not fit a header"""


@dataclass
class Values:
    """Draws legal values of the wire's types.

    Args:
        known: values that are in use, such as ids of members, by their type.
        structs: what becomes of a drawn struct, by its type.
    """

    random: Random
    known: Mapping[type, list[Any]] = field(default_factory=dict)
    structs: Mapping[type, Callable[[Any], Any]] = field(default_factory=dict)

    def message(self, kind: type[Message]) -> Message:
        """A message of this type."""
        return kind(*(self._draw(each.type) for each in _fields(kind)))

    def buffers(self, kind: type[Message]) -> tuple[bytes, ...]:
        """Raw buffers behind it."""
        least, most = BUFFERS.get(kind, (0, 0))
        count = self.random.randint(least, min(most, least + 2))
        return tuple(self.random.choice((bytes(size), b"\xff" * size)) for size in self._sizes(count))

    def _sizes(self, count: int) -> list[int]:
        return [self.random.choice((0, 1, 2, 16, 64, 512, 4096, 1 << 16)) for _ in range(count)]

    def _draw(self, kind: inspect.Type) -> Any:
        random = self.random
        match kind:
            case inspect.UnionType(types):
                return self._draw(random.choice(types))
            case inspect.NoneType():
                return None
            case inspect.BoolType():
                return random.random() < 0.5
            case inspect.EnumType(cls):
                return random.choice(list(cls))
            case inspect.IntType():
                return self._whole(kind)
            case inspect.FloatType():
                return self._float(kind)
            case inspect.BytesType():
                return self._bytes(kind)
            case inspect.StrType(max_length=most):
                length = random.choice((0, 1, most or 1))
                return random.choice(("a", WIDE)) * max(length, kind.min_length or 0)
            case inspect.VarTupleType(item, min_length=least, max_length=most):
                length = random.randint(least or 0, max(least or 0, min(most or LONGEST, LONGEST)))
                return tuple(self._draw(item) for _ in range(length))
            case inspect.StructType(cls):
                made = cls(*(self._draw(each.type) for each in _fields(cls)))
                return self.structs.get(cls, lambda struct: struct)(made)
        raise TypeError(f"no value of {kind}")

    def _whole(self, kind: inspect.IntType) -> int:
        least, most = kind.ge or 0, (1 << 63) - 1 if kind.le is None else kind.le
        near = [value for value in self.known.get(int, []) if least <= value <= most]
        drawn = [
            least,
            min(most, least + 1),
            most,
            most - 1 if most > least else most,
            self.random.randint(least, most),
        ]
        return int(self.random.choice([*drawn, *self.random.sample(near, min(4, len(near)))]))

    def _float(self, kind: inspect.FloatType) -> float:
        least, most = -math.inf if kind.ge is None else kind.ge, math.inf if kind.le is None else kind.le
        drawn = (0.0, -0.0, TINY, 1e-9, 0.5, 1.0, 1e9, 1e300, math.inf, -math.inf, least, most)
        return float(self.random.choice([value for value in drawn if least <= value <= most]))

    def _bytes(self, kind: inspect.BytesType) -> bytes:
        least, most = kind.min_length or 0, 256 if kind.max_length is None else kind.max_length
        used = [value for value in self.known.get(bytes, []) if least <= len(value) <= most]
        drawn = [bytes(least), bytes(most), b"\xff" * most, self.random.randbytes(self.random.randint(least, most))]
        return bytes(self.random.choice([*drawn, *self.random.sample(used, min(4, len(used)))]))


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described.fields


class Extremes(Behaviour):
    """Sends each honest peer a message of each type in turn, all validly signed, 40 a second."""

    excuse = "peers of other versions may mean it"
    beat = 0.05

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._kinds = list(MESSAGES.values())
        self._turn = 0

    def speaks(self) -> Iterator[Envelope]:
        for to in self.honest:
            for _ in range(2):
                self._turn += 1
                if (drawn := self._message(to.incarnation)) is not None:
                    yield envelope(to, *drawn)

    def _message(self, incarnation: int) -> tuple[Message, tuple[bytes, ...]] | None:
        kind = self._kinds[self._turn % len(self._kinds)]
        counters = [incarnation << 32 | number for number in range(1, 40)]
        mine = [self.host.incarnation << 32 | number for number in range(1, 40)]
        ids = [host.id for host in (*self.honest, self.host)]
        digests = [self.schema.digest, self.host.config.settings, self.host.operator]
        values = Values(
            self.random,
            {int: [*counters, *mine, incarnation, self.host.incarnation, *range(4)], bytes: [*ids, *digests]},
            {Member: self._stated, Progress: self._reported},
        )
        message, buffers = values.message(kind), values.buffers(kind)
        if isinstance(message, Decisions) and buffers:
            buffers = (pack((), ()),)
        try:
            wire.decode(wire.encode(message, buffers))
        except (LocalProtocolError, RemoteProtocolError):
            return None  # too long
        return message, buffers

    def _stated(self, member: Member) -> Member:
        """Of an honest member, its own words with any doubt; of others, what their keys sign."""
        for host in self.honest:
            if host.id == member.id:
                word = host.running.view.me
                state = State.FAILED if member.state is State.LEFT else member.state
                return replace(word, state=state, accusers=member.accusers)
        return Signer(partial(sign, member.id), verify).sign_member(member)

    def _reported(self, report: Progress) -> Progress:
        about = self.host.id if report.id in {host.id for host in self.honest} else report.id
        return Signer(partial(sign, about), verify).sign_progress(replace(report, id=about))
