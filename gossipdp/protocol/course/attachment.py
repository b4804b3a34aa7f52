"""A training process that attaches: it waits for a model to start from, or brings the network's first.

It gets a session (`rounds`) once a model of its schema is here. If it can use the optimizer's moments, it also waits
for them, until they arrive or no member has them. A live process, which has outlived a daemon, may keep its own
parameters. No vector is handled here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.events import SessionRefused, WeightsLoaded
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments_holder import MomentsHolder

__all__ = ["Attachment", "Entry", "Process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A training process, as it attaches."""

    schema: bytes
    carried: Carried = NOTHING
    """what goes with its model"""
    live: Live | None = None
    """its progress, if it has outlived a daemon"""


class Entry(enum.Enum):
    """What a waiting process is to do."""

    WAIT = "wait"
    BEGIN = "begin with the model that is here"
    KEEP = "keep its parameters, which become the model"


class Attachment:
    """The training process that waits, and the one that gives the model."""

    def __init__(self, moments: MomentsHolder, outputs: Outputs) -> None:
        self._moments, self._outputs = moments, outputs
        self.waiting: Process | None = None
        self._wants_moments = False
        self._here = False
        """a process is attached"""
        self.founding: Process | None = None
        """the process that gives the model"""

    def came(self, process: Process, *, moments: bool) -> None:
        """A process has written its model to shared memory. moments: it begins with an empty optimizer."""
        self.waiting, self._wants_moments, self._here = process, moments, True

    def gone(self) -> None:
        """The process has detached."""
        self.waiting, self._here = None, False

    def enters(self, model: Model, *, held: bool, keeps: bool) -> Entry:
        """What the waiting process does, now that `model` is here. A model that it cannot use is told once.

        Args:
            held: the model is being replaced, or too old to begin with.
            keeps: a live process may keep its parameters.
        """
        process = self.waiting
        if process is None:
            return Entry.WAIT
        same, here = model.schema_bytes == process.schema, Schema.from_bytes(process.schema)
        difference = "" if same else model.schema.first_difference(here)
        if excluded := model.schema.exclusion_difference(here):
            self._outputs.emit(SessionRefused("GD-303", excluded))
        elif difference:
            self._outputs.emit(SessionRefused("GD-301", difference, model.schema.mismatch(here)))
        elif self._wants_moments or held:
            return Entry.WAIT
        elif process.live is not None and here.reference == model.schema.reference and keeps:
            self.waiting = None
            return Entry.KEEP
        else:
            if process.live is not None and process.live.loaded:
                self._outputs.emit(WeightsLoaded(False))
            self.waiting = None
            return Entry.BEGIN
        self.waiting = None
        return Entry.WAIT

    def found(self) -> Process:
        """The waiting process gives the model."""
        assert self.waiting is not None
        self.founding, self.waiting = self.waiting, None
        return self.founding

    def unusable(self) -> None:
        """The live process's model has NaN or Inf. The process waits for another model, as a new one does."""
        assert self.founding is not None
        self.founding = Process(schema=self.founding.schema, carried=self.founding.carried)
        if self._here and self.waiting is None:
            self.waiting = Process(schema=self.founding.schema)

    @property
    def wants_moments(self) -> bool:
        """A process waits for moments, or for the model and then for them."""
        return self._wants_moments and self.waiting is not None

    def seek_moments(self, model: Model, candidates: Sequence[bytes], preferred: bytes, now: float) -> bool:
        """Ask for the moments that the waiting process needs. Call after every input while it wants them.

        Args:
            candidates: members that may have them.
            preferred: the member to ask first.

        Returns:
            Whether the process needs none any more.
        """
        self._wants_moments = self._moments.seek(model.schema, candidates, preferred, now)
        return not self._wants_moments
