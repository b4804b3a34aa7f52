"""This peer's model, and what follows when it comes, trains on, or gives way to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.events import StateReady, StateRenewed, TookOver, WeightsLoaded
from gossipdp.protocol.finishing import Finishing
from gossipdp.protocol.model import Model
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.round_machines import RoundMachines
from gossipdp.protocol.rounds.attachment import Founding
from gossipdp.protocol.transfer.arrived import Arrived, Origin
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfers import Transfers
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Member

__all__ = ["ModelHolder"]


class ModelHolder:
    """Holds the model and tells every machine of a change, in one fixed order.

    The first model comes by `founded` (from the training process) or `arrived` (from a member or the checkpoint). After
    that `trained` adds this peer's own steps, `kept` takes the parameters of a training process that has outlived its
    daemon, and `replaced` takes another peer's model.
    """

    def __init__(self, parts: Parts, machines: RoundMachines, finishing: Finishing, transfers: Transfers) -> None:
        self._config, self._outputs, self._progress = parts.config, parts.outputs, parts.progress
        self._contribution, self._pacing, self._averaging, self._rounds = machines
        self._finishing, self._transfers = finishing, transfers
        self.model: Model | None = None
        self.giver = b""
        """the last source of the first model; b"" for this peer's own"""
        self._remembered: Sequence[Member] = ()

    def remember(self, members: Sequence[Member]) -> None:
        """This peer knew `members` before its start. If its model is its own, they may be lost since."""
        self._remembered = members

    # -- the first model --------------------------------------------------------------------------------------

    def founded(self, founding: Founding, now: float) -> None:
        """A training process's model is now this peer's: the network's first, or that of a live process."""
        bootstrap, live = self._transfers.bootstrap, founding.live
        claim, held = bootstrap.taking, bootstrap.held
        if live is not None:
            self._outputs.emit(TookOver(live.clock, live.steps, None if held is None else held.clock))
            self._progress.recover(live.steps, live.samples)
        origin, clock, rounds = Origin.FOUNDED, 0 if live is None else live.clock, 0
        if claim is not None:
            bootstrap.taken_over(now, finite=True)
            origin, (clock, rounds) = Origin.TAKEN_OVER, claim
        self.arrived(
            Arrived(origin=origin, schema=founding.schema, clock=clock, rounds=rounds, carried=founding.carried), now
        )

    def arrived(self, came: Arrived, now: float) -> None:
        """A model is here for the first time."""
        self.model = Model.of(came.schema, self._config.settings, came.clock, came.rounds, came.carried)
        self.giver = came.giver
        schema = self.model.schema
        self._rounds.allocate(self.model.chunks, schema.trainable, schema.averaged())
        self._rounds.resume(came.rounds)
        # Some parts of the model may be older than the last source's.
        self._contribution.came(max(came.clock, came.begun), came.rounds)
        at = self._contribution.own_clock
        self._transfers.came(came, at)
        self._averaging.ready(self.model)
        self._pacing.began(came.rounds, fresh=came.origin is not Origin.FOUNDED)
        self._contribution.report(self._rounds.rounds)
        self._outputs.emit(StateReady(came.origin.value, at))
        self._pacing.set()
        self._transfers.reunion.ready(came.giver, self._remembered if came.own else (), now)

    # -- its own training -------------------------------------------------------------------------------------

    def trained(self, clock: int, steps: int, samples: int, state: Buffer | None) -> None:
        """A finite snapshot of this clock has come: the steps and samples since the one before count.

        Args:
            state: what is not exchanged, as of this snapshot (`carried_state`); None if it is unchanged.
        """
        if state is not None and self.model is not None:
            self.model = replace(self.model, carried=replace(self.model.carried, state=state))
        moved = self._contribution.added(clock, steps, samples)
        self._transfers.age.stepped(moved, self._contribution.clock)
        self._contribution.report(self._rounds.rounds)

    @property
    def others_train(self) -> bool:
        """Whether other peers make the network's model."""
        return bool(self._finishing.trainers())

    def keeps(self, live: Live) -> bool:
        """Whether a live training process may keep its parameters, now that a model is here."""
        if live.loaded:
            return not self.others_train
        return live.clock + 2 * self._config.every >= self._contribution.clock

    def kept(self, live: Live, carried: Carried) -> None:
        """The parameters of a live training process become the model."""
        clock = self._contribution.clock
        before = None if self.model is None else clock
        self._outputs.emit(WeightsLoaded(True) if live.loaded else TookOver(live.clock, live.steps, before))
        self._progress.recover(live.steps, live.samples)
        self.trained(live.clock, 0, 0, carried.state)
        self._transfers.kept()

    # -- another peer's ---------------------------------------------------------------------------------------

    def replaced(self, came: Arrived, duration: float) -> None:
        """Another peer's model has replaced this peer's. duration: seconds that it took."""
        ahead = max(0, came.rounds - self._rounds.rounds)
        self._contribution.replaced(max(came.clock, came.begun), ahead)
        clock = self._contribution.clock
        if self.model is not None:
            self._averaging.fetched()
            self.model = replace(self.model, carried=came.carried)
            if memoryview(came.carried.state).nbytes:
                self._outputs.emit(StateRenewed())
        self._transfers.came(came, clock)
        self._transfers.source.forget()
        self._rounds.resume(self._rounds.rounds + ahead)
        self._pacing.resynced(self._rounds.rounds, duration)
        self._contribution.report(self._rounds.rounds)
