"""What this peer holds against others: which faults are strikes, and who is set aside for them.

A strike needs proof: words that no honest peer says, whatever the network does to it. Loss, delay, repetition, a cut, a
crash, an answer that never comes: all of that happens to the honest, and nothing of it is counted here; who merely
wastes time is left by another rule (`acquaintances`). What was refused has proof in it, for a payload is checked
against what its sender has signed or agreed to, but for what stands in `EXCUSED`; and what is signed, or said, by later
software than this peer's may have more in it than this peer knows of.

Who is set aside is not averaged with, no state is fetched from it, and what it says of rumours is not listened to; its
own come by way of others. Else it stays a member like any other: it is probed, what it says of others counts, and its
data leases hold. How long that lasts is `quarantine`'s business. Nobody else is told, or a liar could have others set
aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from gossipdp.protocol.events import Event, MessageDropped, Struck, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.quarantine import Quarantine, QuarantineConfig

__all__ = ["Conduct"]

EXCUSED: Final = frozenset({"implausible", "schema"})
"""reasons of a refusal that prove nothing: a witness has denied the state, and may be the liar; of two sources with
models that differ either may"""
SIGNED: Final = frozenset(
    {
        "manifest",
        "manifest of moments",
        "signature",
        "signature of a member record",
        "signature of a progress report",
    }
)
"""reasons that prove nothing against other software: what is signed may have a part that is not known here"""
GARBLED: Final = 8
"""messages that cannot be read, of one peer, that are one fault"""


class Conduct:
    """Args:

    me: this peer, of whom nothing is held: its own rumours come back to it.
    akin: does that member run this very software?
    admits: whom the operator lets this peer deal with.
    """

    def __init__(
        self,
        config: QuarantineConfig,
        me: bytes,
        outputs: Outputs,
        akin: Callable[[bytes], bool],
        admits: Callable[[bytes], bool] = lambda peer: True,
    ) -> None:
        self._me, self._outputs, self._akin, self._admits = me, outputs, akin, admits
        self._most = config.remembered
        self._quarantine = Quarantine(config)
        self._garbled: Counter[bytes] = Counter()
        self._faults: list[tuple[bytes, str]] = []
        """not judged yet"""

    def heard(self, event: Event) -> None:
        """Whatever a machine of this peer tells of others."""
        match event:
            case UpdateRefused(peer, reason) if reason not in EXCUSED and (reason not in SIGNED or self._akin(peer)):
                self._faults.append((peer, reason))
            case MessageDropped(peer) if self._akin(peer):
                self._garbled[peer] += 1
                if self._garbled[peer] >= GARBLED:
                    del self._garbled[peer]
                    self._faults.append((peer, "garbled"))
                elif len(self._garbled) > self._most:
                    self._garbled.clear()

    def judge(self, now: float) -> bool:
        """Count what was heard; whether somebody has been set aside."""
        faults, self._faults = self._faults, []
        new = False
        for peer, reason in faults:
            if peer != self._me and self._quarantine.strike(peer, now):
                pause = self._quarantine.left(peer, now)
                new = new or pause > 0.0
                self._outputs.emit(Struck(peer, reason, self._quarantine.strikes(peer, now), pause))
        return new

    def strikes(self, peer: bytes, now: float) -> int:
        """Those it has."""
        return self._quarantine.strikes(peer, now)

    def shuns(self, peer: bytes, now: float) -> bool:
        """Is `peer` set aside, for its faults or by the operator?"""
        return not self._admits(peer) or self._quarantine.left(peer, now) > 0.0

    def aside(self, now: float) -> list[bytes]:
        """Who is."""
        return self._quarantine.aside(now)
