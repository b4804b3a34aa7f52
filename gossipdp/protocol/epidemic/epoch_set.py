"""The increments of one epoch, and the proofs that some origins are void in it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from gossipdp.protocol.epidemic.signing import void_name
from gossipdp.protocol.wire.epidemic_messages import LONGEST, Rumour

__all__ = ["EMPTY", "MAX_LIVES", "MAX_RUMOURS", "MOST_TIMES", "EpochSet", "Outcome", "Verdict"]

MAX_RUMOURS: Final = 2048
"""increments of one epoch; further ones are refused and counted"""
MAX_LIVES: Final = 4
"""incarnations of one origin in one epoch"""
MOST_TIMES: Final = 32
"""largest speed of a peer that counts, in units of the middle peer's"""


def _digest(names: list[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(names), digest_size=16, person=b"gossipdp epoch").digest()


EMPTY: Final = _digest([])
"""digest of an epoch without increments"""


class Outcome(Enum):
    """What a header changes in the set of its epoch."""

    NEW = "new"
    KNOWN = "known"
    VOID = "void"
    """its origin was already proven void"""
    PROOF = "proof"
    """it proves its origin void"""
    FULL = "full"
    """the epoch has no room"""


class Verdict(NamedTuple):
    """The outcome for one header."""

    outcome: Outcome
    proof: tuple[Rumour, ...] = ()
    """the contradicting headers, if the origin is void"""
    fallen: tuple[tuple[bytes, Rumour], ...] = ()
    """increments that counted until now, by name"""


@dataclass
class _Origin:
    """The headers that one origin signed for one epoch, or the proof that it is void."""

    signed: dict[tuple[int, int], tuple[bytes, Rumour]] = field(default_factory=dict)
    """by incarnation and sequence"""
    proof: tuple[Rumour, ...] = ()

    def lives(self) -> dict[int, Rumour]:
        """The incarnations that signed something, with one header of each."""
        return {incarnation: rumour for (incarnation, _), (_, rumour) in self.signed.items()}


class EpochSet:
    """The increments of one epoch.

    Args:
        epoch: its number.
        run: name of the run.
    """

    def __init__(self, epoch: int, run: bytes) -> None:
        self.epoch, self._run = epoch, run
        self._origins: dict[bytes, _Origin] = {}
        self._voids: dict[bytes, bytes] = {}
        self.inside: dict[bytes, Rumour] = {}
        """complete increments, by name"""
        self.lacking: set[bytes] = set()
        """names in `inside` whose payload is missing, because they came with a state that was taken over"""
        self._signed = 0
        self._sorted: list[bytes] | None = None
        self._state = EMPTY

    def claim(self, name: bytes, rumour: Rumour) -> Verdict:
        """Add a header whose signature was verified."""
        origin = self._origins.get(rumour.origin) or _Origin()
        if origin.proof:
            return Verdict(Outcome.VOID, origin.proof)
        key = rumour.incarnation, rumour.sequence
        known = origin.signed.get(key)
        if known is not None and known[0] == name:
            return Verdict(Outcome.KNOWN)
        if known is not None:
            return self._void(origin, (known[1], rumour))
        lives = origin.lives()
        if rumour.incarnation not in lives and len(lives) >= MAX_LIVES:
            return self._void(origin, (*lives.values(), rumour))
        if self._signed >= MAX_RUMOURS:
            return Verdict(Outcome.FULL)
        origin.signed[key] = name, rumour
        self._origins[rumour.origin] = origin
        self._signed += 1
        return Verdict(Outcome.NEW)

    def _void(self, origin: _Origin, proof: tuple[Rumour, ...]) -> Verdict:
        fallen = tuple(each for each in origin.signed.values() if self.inside.pop(each[0], None) is not None)
        self.lacking.difference_update(name for name, _ in fallen)
        self._signed += len(proof) - len(origin.signed)
        origin.signed, origin.proof = {}, proof
        self._voids[void_name(proof[0].origin, self.epoch, self._run)] = proof[0].origin
        self._sorted = None
        return Verdict(Outcome.PROOF, proof, fallen)

    def takes(self, origin: bytes, incarnation: int) -> bool:
        """Whether another increment of this incarnation would count, and prove nothing against `origin`."""
        if self._signed >= MAX_RUMOURS:
            return False
        known = self._origins.get(origin) or _Origin()
        lives = known.lives()
        return not known.proof and (incarnation in lives or len(lives) < MAX_LIVES)

    def complete(self, name: bytes, rumour: Rumour) -> bool:
        """An increment is complete. True if it was not inside before."""
        self.lacking.discard(name)
        if name in self.inside:
            return False
        self.inside[name] = rumour
        self._sorted = None
        return True

    def holds(self, name: bytes) -> bool:
        """Whether the name is that of an increment that is here, or of a known proof."""
        return (name in self.inside and name not in self.lacking) or name in self._voids

    def proof(self, name: bytes) -> tuple[Rumour, ...]:
        """The proof with this name, or ()."""
        origin = self._voids.get(name)
        return self._origins[origin].proof if origin is not None else ()

    def proofs(self) -> list[tuple[Rumour, ...]]:
        """All proofs of the epoch."""
        return [self._origins[origin].proof for origin in self._voids.values()]

    def names(self) -> list[bytes]:
        """The names that the digest covers, sorted."""
        if self._sorted is None:
            self._sorted = sorted([*self.inside, *self._voids])
            self._state = _digest(self._sorted)
        return self._sorted

    @property
    def digest(self) -> bytes:
        """Hash of the sorted names."""
        self.names()
        return self._state

    @property
    def samples(self) -> int:
        """Samples of all origins, each counted up to MOST_TIMES those of the middle origin."""
        return sum(min(count, MOST_TIMES * self.middle) for count in self._made())

    @property
    def middle(self) -> int:
        """Samples of the middle origin of those that made any, or 0."""
        made = sorted(filter(None, self._made()))
        return made[(len(made) - 1) // 2] if made else 0

    @property
    def length(self) -> float:
        """Movement of an increment of share 1: the median over origins of each origin's longest. 0 if none moves.

        One value for each origin, so that many increments or lives do not shift the median. Of two origins the longer
        one counts, so that a peer that stands still does not stop the other.
        """
        longest: dict[bytes, float] = {}
        for rumour in self.inside.values():
            whole = min(rumour.length / rumour.weight, LONGEST) if rumour.weight else 0.0
            longest[rumour.origin] = max(whole, longest.get(rumour.origin, 0.0))
        lengths = sorted(filter(None, longest.values()))
        return lengths[len(lengths) // 2] if lengths else 0.0

    def _made(self) -> Iterable[int]:
        """Samples of each origin."""
        made: Counter[bytes] = Counter()
        for rumour in self.inside.values():
            made[rumour.origin] += rumour.samples
        return made.values()
