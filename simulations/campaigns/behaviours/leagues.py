"""What members claim together (campaign T12): another model, an end, a time, an end of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.course.rules import NO_LINE
from gossipdp.protocol.data.blocks import DataSet, pack
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire.messages import Coverage, Line, Lineage, Ping, Progress, State
from simulations.campaigns.behaviours.base import Behaviour, Surroundings, envelope
from simulations.simulator.host import Host, sign, verify

__all__ = ["DATA", "AllRead", "FalseClock", "Finish", "GreaterSide", "LeftBehind"]

DATA: Final = DataSet(b"the data set read"[:16], "data", 4096)
"""what the honest peers read"""
FAR: Final = 1 << 20
"""steps, of a clock that no peer reaches"""
LATER: Final = 1 << 20
"""number of a hostile host's first line; those of its peer are lower"""


class FalseClock(Behaviour):
    """Reports that it has trained for very long."""

    excuse = "its host may be as fast"
    beat = 0.5

    def speaks(self) -> Iterator[Envelope]:
        report = Progress(self.host.id, FAR, FAR, FAR, 1000)
        signed = Signer(partial(sign, self.host.id), verify).sign_progress(report)
        for to in self.honest:
            yield envelope(to, Ping(self.random.getrandbits(32), (), (signed,)))


class Lines(Behaviour):
    """Says which line it holds. Its peer says nothing of lines."""

    beat = 0.5

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._number = LATER

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        return () if isinstance(envelope.message, Lineage) else (envelope,)

    def says(self, to: Host, line: Line, *, apart: bool) -> Envelope:
        self._number += 1
        word = Lineage(self.host.incarnation, self._number, to.incarnation, apart, False, 0, line)
        return envelope(to, word)


class GreaterSide(Lines):
    """Says that it was apart from all others, and that its side is the greatest."""

    excuse = "after a partition an honest member says the same"

    def speaks(self) -> Iterator[Envelope]:
        line = Line(1 << 20, 1 << 20, FAR, FAR, self.league[0].id)
        for to in self.honest:
            yield self.says(to, line, apart=True)


class LeftBehind(Lines):
    """Says that all others have failed, that it has trained far ahead meanwhile, and that it has kept step."""

    excuse = "a peer that was cut off hears the same"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._clock = FalseClock(surroundings)

    def speaks(self) -> Iterator[Envelope]:
        yield from self._clock.speaks()
        for to in self.honest:
            dead = replace(to.running.view.me, state=State.FAILED)
            yield envelope(to, Ping(self.random.getrandbits(32), (dead,)))
            yield self.says(to, NO_LINE, apart=False)


class Finish(Behaviour):
    """Asks all to finish, as `gossipdp finish` does."""

    excuse = "an honest member may ask it"
    beat = 4.0

    def speaks(self) -> Iterable[Envelope]:
        now = self.network.now
        self.network.command(self.host, "calls", lambda peer: peer.finish(now, calls=True))
        return ()


class AllRead(Behaviour):
    """Says that all blocks of this pass over the data and of the next have been read."""

    excuse = "after a partition an honest member says the same"
    beat = 0.5

    def speaks(self) -> Iterator[Envelope]:
        everything = pack((1 << DATA.blocks) - 1, DATA.blocks)
        for to in self.honest:
            epoch = to.running.leasing.epoch(DATA.digest)
            yield envelope(to, Coverage(DATA.digest, DATA.name, DATA.blocks, epoch, False), (everything, everything))
