"""What the daemon says to its training process, and in which phase of their dialogue the two are.

To connect again takes several step boundaries: connect, write x, then load the model, or keep the parameters if the
daemon made them the model. A daemon that dies leaves training alone. Nothing here waits or touches a tensor.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gossipdp.errors import (
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime import link as links
from gossipdp.training.accounts import Accounts
from gossipdp.training.connection import DaemonConnection
from gossipdp.training.corrections import Corrections
from gossipdp.training.healing import Healing
from gossipdp.training.optimizer_state.schedule import MomentsSchedule
from gossipdp.training.snapshots import SnapshotTimes
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import FROZEN_DIFFER

__all__ = ["Dialogue", "Mode", "Phase"]

log = logging.getLogger("gossipdp.training")

_FAMILIES: Final[dict[str, type[GossipdpError]]] = {
    "GD-1": UnreachableError,
    "GD-2": RefusedError,
    "GD-3": MismatchError,
    "GD-4": DataError,
    "GD-5": HardwareError,
    "GD-6": DataError,
}
_NO_TERMS: Final = links.Session(session=0, every=1, clock=0, chunk_parameters=1)

Mode: TypeAlias = Literal["async", "overlap", "sync"]


class Phase(enum.Enum):
    """Where the dialogue stands. The values appear in messages to the user.

    The phases follow each other in this order up to OPEN. A lost daemon leads from each of them back to ALONE, `close`
    to OVER. Events: connected, memory shared, x written (`done`), session offered, model loaded or kept (`done`).
    """

    ALONE = "no daemon"
    GREETING = "connected, no shared memory yet"
    WRITING = "the shared memory waits for this model"
    WAITING = "no model yet"
    ARRIVED = "the model to start from is there"
    OPEN = "attached"
    OVER = "detached"


class Dialogue:
    """The base of `Session`: one training process and its daemon, over any number of connections.

    Args:
        home: the peer's home.
        layout: the model's exchanged tensors.
        world: training processes of this replica group.
        every: steps between snapshots. None: as the daemon says. A number overrides the daemon's shorter rounds in the
            warm start and its adaptation to this host's speed.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        home: Path,
        layout: Layout,
        *,
        world: int = 1,
        every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home, self.layout, self.now = home, layout, clock
        self._world, self._own_every = world, every
        self._phase = Phase.ALONE
        self._connection = DaemonConnection(home, layout, world)
        self._error: GossipdpError | None = None
        """what the last attempt to connect ended with, or the daemon's refusal"""
        self._lost_because = ""
        """why the daemon was lost, as last logged"""
        self._waiting_for = ""
        """what the daemon waits for, in its words"""
        self._terms = _NO_TERMS
        """the session as the daemon offered it"""
        self._daemon_every = 1
        self._loads = 0
        """models loaded so far"""
        self._accounts, self._healing, self._times = Accounts(), Healing(), SnapshotTimes()
        self._corrections = Corrections(layout.schema)
        self._moments = MomentsSchedule()
        self._moments_given = False
        """the moments that were asked for are in shared memory"""
        self._sealed: int | None = None
        """while this process holds the region's token: number of the last slot that was sealed"""
        self._inherits = False
        """moments that the daemon keeps may still come to the buffer of the model"""
        self._state_is_new = False
        """the daemon has a newer carried state than this model"""
        self._has_moments = self._wants_moments = False
        """the optimizer has moments that can be shared; it has made no step, and can start from some"""
        self._loss = self._eval_loss = math.nan
        """the script's last losses; NaN: not known"""
        self._stall_seconds = 0.0
        """seconds that training has lost to gossip"""
        self._reported_at = -math.inf
        """time of the last report"""

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def alone(self) -> bool:
        """True while no daemon takes part."""
        return self._phase is not Phase.OPEN

    @property
    def connected(self) -> bool:
        """True while there is a link to the daemon, whatever the phase."""
        return self._connection.link is not None

    @property
    def error(self) -> GossipdpError | None:
        """What the last attempt to connect ended with, or the daemon's refusal."""
        return self._error

    @property
    def waiting_for(self) -> str:
        """What this process waits for before its first step."""
        return self._waiting_for or self._phase.value

    @property
    def number(self) -> int:
        """Number of the session, counted by the daemon; 0 before the first."""
        return self._terms.session

    @property
    def clock(self) -> int:
        """The network's clock in steps, as known here."""
        return self._accounts.clock

    # -- messages ---------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in what the daemon has said, or try to reach it again. Never waits."""
        if self._phase is Phase.OVER:
            return
        now = self.now()
        if self._connection.due(now):
            self._connect(now)
        if self._connection.link is None:
            return
        self._flush()
        messages = [] if self._connection.link is None else self._connection.link.receive()
        for message in messages:
            if self.connected:
                self._take(message, now)
        self._pin()
        if self._connection.link is not None and self._connection.link.lost:
            self._lose(self._connection.link.lost, now)
        self._flush()

    def _connect(self, now: float) -> None:
        self._error = None
        try:
            self._connection.connect(now)
        except UnreachableError as error:
            self._error = error
            return
        self._phase = Phase.GREETING

    def _flush(self) -> None:
        if reason := self._connection.flush():
            self._lose(reason, self.now())

    def _take(self, message: links.FromDaemon, now: float) -> None:
        match message:
            case links.RegionReady() if self._phase is Phase.GREETING:
                self._share(now)
            case links.Waiting():
                self._note_wait(message)
            case links.Session() if self._phase is Phase.WAITING:
                self._take_terms(message)
            case links.Pace(every, clock, samples):
                self._daemon_every = every
                # Until the session's model is loaded or kept, the clock here is the previous model's.
                self._accounts.paced(clock if self._phase is Phase.OPEN else 0, samples)
            case links.Slot(session) if session == self.number:
                self._corrections.came(message)
            case links.Settled(snapshot):
                self._times.settled(snapshot)
            case links.MomentsTaken(number):
                self._moments.taken(number)
            case links.MomentsGiven():
                self._moments_given = True
            case links.Taken(snapshot, refused):
                self._snapshot_taken(snapshot, refused)
            case links.Refused():
                self._refused(message, now)
            case links.Renewed(session):
                self._state_is_new = session == self.number
            case links.Closing():
                self._lose("the daemon is closing", now)

    def _share(self, now: float) -> None:
        link = self._connection.link
        assert link is not None and link.region is not None
        if link.region.size != self.layout.schema.size:
            return self._lose("the daemon shares memory of another size", now)
        self.layout.pin(link.region, 0, self._world)

    def _pin(self) -> None:
        """Once the memory is pinned, the model can be written. A process that trains pins a part at each boundary."""
        link = self._connection.link
        if self._phase is not Phase.GREETING or link is None or link.region is None:
            return
        if self.layout.pin_more(everything=not self._loads):
            self._phase = Phase.WRITING

    def _note_wait(self, message: links.Waiting) -> None:
        text = f"{message.text} ({message.share:.0%})" if message.share else message.text
        if text != self._waiting_for:
            log.info("waiting for the model: %s", text)
        self._waiting_for = text

    def _take_terms(self, terms: links.Session) -> None:
        """The daemon offers a session."""
        self._terms, self._daemon_every, self._state_is_new = terms, terms.every, False
        self._times.terms(terms.deadline)
        self._corrections.terms(terms.chunk_parameters)
        self._healing.terms(terms.heal_after)
        self._moments.begin(terms.moments_every if self._has_moments else 0)
        if terms.moments_every and not self._has_moments and not self._loads:
            log.info("this optimizer's moments are not shared with the network: only those of Adam and its kin are")
        self._phase = Phase.ARRIVED

    def _refused(self, message: links.Refused, now: float) -> None:
        do = message.do
        if message.code == "GD-301" and message.seen.startswith("frozen"):
            do = FROZEN_DIFFER
        family = _FAMILIES.get(message.code[:4], RefusedError)
        self._error = family(message.code, message.cause, seen=message.seen, do=do)
        self._lose(str(self._error), now)
        self._connection.retry_later(now, refused=True)

    def _snapshot_taken(self, number: int, refused: str) -> None:
        """The daemon has read snapshot `number`; `refused` says why it does not use it, or ""."""
        handed = self._accounts.handed
        if handed is None or handed.number != number:
            return
        self._moments.round_done()
        if refused:
            self.layout.carried.resend()
        if refused == "session":
            return self._accounts.returned()
        self._accounts.taken(used=not refused)
        self._healing.judged(finite=not refused)
        if refused:
            log.warning("GD-402 a snapshot was not used: %s; has the loss diverged?", refused)
        if self._healing.due:
            log.warning(
                "GD-402 %d snapshots in a row were not used: training loads the network's model anew; do: look for the "
                "batch or the learning rate that makes it diverge",
                self._healing.refused,
            )
            self.farewell()
            self._drop()
            self._phase = Phase.ALONE
            self._connection.retry_at_once()

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _state_loaded(self, state: Buffer) -> None:
        """The model holds this carried state. A newer one may have come after the order was made."""
        link = self._connection.link
        self._state_is_new = self._state_is_new and link is not None and link.carried.state is not state

    def _model_loaded(self) -> None:
        """The live parameters are the network's model: the session begins."""
        lost, earlier = self._accounts.loaded(self._terms.clock, first=not self._loads)
        if self._loads:
            # A daemon restored from an old checkpoint has lost what later snapshots brought it.
            log.warning(
                "attached to the daemon again; %d steps since the last snapshot are lost%s",
                lost,
                f", {earlier} of them from before it: the model is of step {self._terms.clock}" if earlier else "",
            )
        self._loads += 1
        self._inherits = self._wants_moments and self._terms.moments > 0
        self._wants_moments = False
        self._healing.loaded()
        self._begin()

    def _model_kept(self) -> None:
        """The daemon's model is what this process wrote: the session begins and no step is lost."""
        self._accounts.kept(self._terms.clock)
        log.warning("attached to the daemon again; it took this process's model over, with all %d steps", self.clock)
        self._begin()

    def _begin(self) -> None:
        self._phase = Phase.OPEN
        self._lost_because = ""
        self._corrections.begin()
        self._times.begin(self.now())

    def lose(self, reason: str) -> None:
        """Drop the link, train alone, and connect again later."""
        self._lose(reason, self.now())

    def fail(self, reason: str) -> None:
        """Another rank could not follow: the group trains alone, and tries again later."""
        self._waiting_for = reason
        self.lose(reason)

    def _lose(self, reason: str, now: float) -> None:
        if reason != self._lost_because and self._loads:
            log.warning("training goes on alone: %s", reason)
        self._lost_because = reason
        self._drop()
        self._phase = Phase.ALONE
        self._connection.retry_later(now)

    def _drop(self) -> None:
        self._connection.drop()
        self._sealed = None
        self._corrections.clear()
        self._times.settle_all()
        self._accounts.returned()

    def farewell(self) -> None:
        """Tell the daemon that this process leaves on purpose."""
        if self._connection.link is not None:
            self._connection.link.send(links.Farewell())
