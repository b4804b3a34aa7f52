"""A test daemon of one peer with the real copier of moments. Several may hold the same moments, as if fetched."""

from pathlib import Path
from typing import Any

from gossipdp.protocol.transfer.moments import Moments
from gossipdp.runtime import link as links
from gossipdp.runtime.moments import MomentsCopier
from tests.training.ledger_daemon import LedgerDaemon


class MomentsDaemon(LedgerDaemon):
    def __init__(self, home: Path, *, moments_every: int = 1, held: Moments | None = None, **options: Any) -> None:
        super().__init__(home, **options)
        self.moments_every, self.held = moments_every, held
        self.copier = MomentsCopier(self._run)
        self.told: list[int] = []
        """numbers of the transfers"""

    def _run(self, piece: Any, done: Any, place: int | None = None) -> None:
        done(piece())

    def say_session(self, moments_every: int, moments: int, kept: bool) -> None:
        """As the base's, with the steps behind the moments that are held."""
        super().say_session(self.moments_every, 0 if self.held is None else self.held.steps, kept)

    def feed(self, event: links.LinkEvent) -> None:
        match event:
            case links.MomentsWritten():
                self.told.append(event.number)
                assert self.schema is not None and self.free is not None
                self.free.received("moments")

                def done(moments: Moments | None) -> None:
                    self.held = moments or self.held
                    self.server.send(links.MomentsTaken(event.number))
                    self.done("moments")

                self.copier.read(event.steps, self.region.raw[event.applied % 2], self.schema, done)
            case links.MomentsWanted():
                assert self.held is not None and self.schema is not None
                given = links.MomentsGiven()
                self.copier.write(self.region.raw[0], self.held, self.schema, lambda: self.server.send(given))
            case _:
                super().feed(event)
