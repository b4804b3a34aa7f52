"""A training process that attaches: it waits for a model to start from, or brings the network's first.

It gets a session (`rounds`) once a model of its schema is here. If it can use the optimizer's moments, it also waits
for them, until they arrive or no member has them. A live process, which has outlived a daemon, may keep its own
parameters. `bootstrap` finds the model. No vector is handled here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.events import SessionRefused, WeightsLoaded
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments_holder import MomentsHolder

__all__ = ["Attachment", "Founding"]


class Founding(NamedTuple):
    """The training process whose model becomes this peer's."""

    schema: bytes
    carried: Carried
    """what goes with its model"""
    live: Live | None
    """its progress, if it has outlived a daemon"""


class Attachment:
    """Decides when a training process gets its session, and with which model.

    Args:
        founds: whether this peer gives the network its model.
        held: whether the model is being replaced, or too old to begin with.
        keeps: whether a live process may keep its parameters, now that a model is here.
        kept: called when the parameters of a live process become the model.
    """

    def __init__(
        self,
        rounds: Rounds,
        moments: MomentsHolder,
        outputs: Outputs,
        founds: Callable[[], bool],
        held: Callable[[], bool],
        keeps: Callable[[Live], bool],
        kept: Callable[[Live, Carried], None],
    ) -> None:
        self._rounds, self._moments, self._outputs = rounds, moments, outputs
        self._founds, self._held, self._keeps, self._kept = founds, held, keeps, kept
        self._waiting: bytes | None = None
        """schema of the waiting process; None if none waits"""
        self._brings: Carried = NOTHING
        self._wants_moments = False
        self._live: Live | None = None
        """the waiting process, if it has outlived a daemon"""
        self._here = False
        """a process is attached"""
        self.founding: Founding | None = None
        """the process that gives the model"""

    def came(
        self,
        schema: bytes,
        model: Model | None,
        carried: Carried = NOTHING,
        *,
        moments: bool,
        live: Live | None = None,
    ) -> None:
        """A process has written its model to shared memory.

        Args:
            model: the model of this peer, or None.
            carried: what goes with the process's model.
            moments: it begins with an empty optimizer.
            live: its progress, if it has outlived a daemon.
        """
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
        """The process has detached."""
        self._waiting, self._here = None, False

    def let_in(self, model: Model | None) -> None:
        """Open a session for the waiting process, found the network with it, or let it wait for the model."""
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
                return  # `seek_moments` calls again, or the replica does once the model is replaced.
            elif self._live is not None and here.reference == model.schema.reference and self._keeps(self._live):
                self._rounds.attach(
                    found=False, keep=self._live.clock, kept=partial(self._kept, self._live, self._brings)
                )
            else:
                if self._live is not None and self._live.loaded:
                    self._outputs.emit(WeightsLoaded(False))
                self._rounds.attach(found=False)
            self._waiting = None
        elif self._rounds.founding:
            # Another process has replaced the one that gives the model. It waits for the outcome.
            self._rounds.detach()
        elif self._founds():
            self.found()

    def found(self) -> None:
        """Take the model from the waiting process."""
        assert self._waiting is not None
        self.founding = Founding(self._waiting, self._brings, self._live)
        self._waiting, self._brings = None, NOTHING
        schema, live = Schema.from_bytes(self.founding.schema), self.founding.live
        width = chunk_parameters(schema.size)
        self._outputs.ask(jobs.Allocate(schema.size, schema.trainable, width, schema.tensors))
        self._rounds.allocate(len(schema.spans()), schema.trainable, schema.averaged())
        self._rounds.attach(found=True, keep=None if live is None else live.clock)

    def unusable(self) -> None:
        """The live process's model has NaN or Inf. The process waits for another model, as a new one does."""
        assert self.founding is not None
        self.founding = self.founding._replace(live=None)
        if self._here and self._waiting is None:
            self._waiting, self._live = self.founding.schema, None

    def seek_moments(
        self, model: Model | None, candidates: Callable[[], Sequence[bytes]], preferred: bytes, now: float
    ) -> None:
        """Ask for the moments that the waiting process needs. Call after every input.

        Args:
            candidates: members that may have them.
            preferred: the member to ask first.
        """
        if not self._wants_moments or self._waiting is None or model is None:
            return
        if not self._moments.seek(model.schema, candidates, preferred, now):
            self._wants_moments = False
            self.let_in(model)
