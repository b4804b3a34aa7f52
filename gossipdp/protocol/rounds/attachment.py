"""A training process at the door: it waits for a model to start from, or brings the network's first.

It is let in with a session (`rounds`) once the model is here and is of its schema, and, if it has use for them, once
the optimizer's moments have come or are known not to. One that has outlived a daemon may keep its own parameters. Where
the model comes from is `origin`'s business. No vector is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.events import SessionRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments_holder import MomentsHolder

__all__ = ["Attachment"]


class Attachment:
    """Args:

    most_chunk: parameters a chunk, at the most.
    founds: is this peer to give the network its model?
    held: is the model here half of another's now, or too old to begin with?
    keeps: may a live training process keep its parameters, now that a model is here?
    kept: called when its parameters are to be the model.
    """

    def __init__(
        self,
        rounds: Rounds,
        moments: MomentsHolder,
        outputs: Outputs,
        most_chunk: int,
        founds: Callable[[], bool],
        held: Callable[[], bool],
        keeps: Callable[[Live], bool],
        kept: Callable[[Live, Carried], None],
    ) -> None:
        self._rounds, self._moments, self._outputs = rounds, moments, outputs
        self._most_chunk, self._founds, self._held, self._keeps, self._kept = most_chunk, founds, held, keeps, kept
        self._waiting: bytes | None = None
        """schema of the process that waits"""
        self._brings: Carried = NOTHING
        self._wants_moments = False
        self._live: Live | None = None
        """the process that waits, if it has outlived a daemon"""
        self._here = False
        """a process is"""
        self.taking: Live | None = None
        """the process that gives the model, if it has outlived a daemon"""
        self.founding = b""
        """schema of the model that is being taken for the network's first"""
        self.founding_carried: Carried = NOTHING
        """and what goes with it"""

    def came(
        self,
        schema: bytes,
        model: Model | None,
        carried: Carried = NOTHING,
        *,
        moments: bool,
        live: Live | None = None,
    ) -> None:
        """A process has written its model to shared memory. moments: it begins with an empty optimizer; live: it has
        outlived a daemon."""
        self._waiting, self._wants_moments, self._live, self._here = schema, moments, live, True
        self._brings = carried
        if model is not None and self._held():
            self._moments.outdated()
        self.let_in(model)

    @property
    def waits(self) -> bool:
        """A process waits."""
        return self._waiting is not None

    def gone(self) -> None:
        """The process is."""
        self._waiting, self._here = None, False

    def let_in(self, model: Model | None) -> None:
        """Open a session for the process that waits, found with it, or let it wait for the model."""
        if self._waiting is None:
            return
        if model is not None:
            same = model.schema_bytes == self._waiting
            here = Schema.from_bytes(self._waiting)
            difference = "" if same else model.schema.first_difference(here)
            if excluded := model.schema.exclusion_difference(here):
                self._outputs.emit(SessionRefused("GD-303", excluded))
            elif difference:
                self._outputs.emit(SessionRefused("GD-301", difference))
            elif self._wants_moments or self._held():
                return  # `seek_moments` comes back, or who holds it does
            elif self._live is not None and here.reference == model.schema.reference and self._keeps(self._live):
                self._rounds.attach(
                    found=False, keep=self._live.clock, kept=partial(self._kept, self._live, self._brings)
                )
            else:
                self._rounds.attach(found=False)
            self._waiting = None
        elif self._rounds.founding:
            # The process whose model is being taken has been replaced; the new one waits for the outcome.
            self._rounds.detach()
        elif self._founds():
            self.found()

    def found(self) -> None:
        """The model is to be that of the process that waits."""
        assert self._waiting is not None
        self.founding, self.taking, self._waiting = self._waiting, self._live, None
        self.founding_carried, self._brings = self._brings, NOTHING
        schema = Schema.from_bytes(self.founding)
        width = chunk_parameters(schema.size, self._most_chunk)
        self._outputs.ask(jobs.Allocate(schema.size, schema.trainable, width))
        most = self._most_chunk
        self._rounds.allocate(len(schema.spans(most)), schema.trainable, schema.averaged(most))
        self._rounds.attach(found=True, keep=None if self.taking is None else self.taking.clock)

    def unusable(self) -> None:
        """The live process's model has NaN or Inf: it waits for another, as a new one does."""
        self.taking = None
        if self._here and self._waiting is None:
            self._waiting, self._live = self.founding, None

    def seek_moments(
        self, model: Model | None, candidates: Callable[[], Sequence[bytes]], preferred: bytes, now: float
    ) -> None:
        """Whatever has happened: `candidates` may have the moments that are waited for, `preferred` first."""
        if not self._wants_moments or self._waiting is None or model is None:
            return
        if not self._moments.seek(model.schema, candidates, preferred, now):
            self._wants_moments = False
            self.let_in(model)
