"""When checkpoints are written, and what follows: on time, on request, before the model is given up, at the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

from gossipdp.errors import DataError, GossipdpError
from gossipdp.protocol import events, jobs
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.transfer.arrived import Origin
from gossipdp.runtime.compute import Call
from gossipdp.runtime.link.data_server import DataServer
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.checkpointer import Checkpointer
from gossipdp.runtime.storage.pinned import PinnedCheckpoints
from gossipdp.runtime.storage.store import Store

__all__ = ["Checkpoints"]

log = logging.getLogger("gossipdp.node")

RETRY = 0.1
"""share of `checkpoint_every` after which a failed checkpoint is tried again"""

Saved = Callable[[Path | DataError], None]


class Checkpoints:
    """Writes checkpoints beside training, and restores the newest.

    Args:
        call: runs copies on the compute threads.
        data: what was read of shared data sets, kept with each checkpoint; None without a data server.
        kept: called when a `jobs.Keep` is over.
    """

    def __init__(
        self,
        context: NodeContext,
        store: Store,
        *,
        call: Call,
        data: DataServer | None,
        kept: Callable[[jobs.Keep], None],
    ) -> None:
        self._config, self._view, self._algorithm, self._clock = (
            context.config,
            context.peer.view,
            context.algorithm,
            context.clock,
        )
        self._status, self._metrics, self._notices = context.status, context.metrics, context.notices
        self._incarnation, self._run = context.incarnation, context.run
        self._metrics.set_checkpoint_every(self._config.checkpoint_every)
        self._data, self._kept = data, kept
        self._pinned = PinnedCheckpoints(store, context.notices)
        self.writer = Checkpointer(store, call, self.saved, log.info)
        self._requested: Saved = _ignore
        """told how the checkpoint asked for ended"""
        self._keep: jobs.Keep | None = None
        """the peer waits until the model it gives up is saved"""
        self._keeping = False
        """the checkpoint being written is the one that `_keep` asks for"""
        self.due = math.inf

    def fileno(self) -> int:
        """Readable when `collect` has something to do."""
        return self.writer.fileno()

    def collect(self) -> None:
        self.writer.collect()

    def found(self, path: Path, saved_at: float) -> None:
        """`path` is the newest checkpoint of earlier starts, saved at this Unix time."""
        self._status.checkpoint_saved(str(path))
        self._metrics.checkpoint_saved(saved_at)

    def begin(self, done: Saved | None = None) -> bool:
        """Begin a checkpoint now.

        Args:
            done: called with its path, or with the error.

        Returns:
            False if the peer has no whole model, or a checkpoint is being written.
        """
        begun = self._view.whole and not self.writer.busy and self.save()
        if begun:
            self._requested = done or _ignore
        return begun

    def keep(self, job: jobs.Keep) -> None:
        """The peer is about to give up its model: save that first, once the checkpoint under way is over."""
        self._keep = job
        self._save_for_keep()

    def ahead(self, clock: int, network: int, now: float) -> None:
        """This peer's checkpoint is later than the network's model; see `PinnedCheckpoints.ahead`."""
        self._pinned.ahead(clock, network, now)

    def model_ready(self, origin: Origin, now: float) -> None:
        """A model is here. Save a new one at once: a run lost before its first checkpoint cannot start again."""
        self.due = now + (self._config.checkpoint_every if origin is Origin.RESTORED else 0.0)

    def stop(self) -> None:
        """Begin no more checkpoints by time."""
        self.due = math.inf

    def tick(self, now: float) -> None:
        """Begin a checkpoint if it is due."""
        if now >= self.due:
            self.due = now + self._config.checkpoint_every
            if not self.begin() and self.writer.busy:
                self._notices.notice("GD-602", "a checkpoint is due, but the previous one is still being written", now)

    def tell_given_up(self, now: float) -> None:
        """The daemon ends. Tell if it gives up a checkpoint under way."""
        if self.writer.busy:
            path = self._status.checkpoint
            newest = f"the newest is {path}" if path else "this start has saved none"
            clock = self._view.clock
            text = f"the unfinished checkpoint at step {clock} of the network's clock is given up; {newest}"
            self._notices.notice("GD-602", text, now)

    def close(self) -> None:
        self.writer.close()

    def save(self) -> bool:
        """Begin to write; True."""
        view, model, own = self._view, self._view.model, self._view.own_progress
        assert model is not None
        meta = CheckpointMeta(
            network=self._config.network,
            run=self._run().hex(),
            peer=view.id.hex(),
            incarnation=self._incarnation,
            round=view.model_rounds,
            clock=view.state_clock,
            steps=own.steps,
            samples=own.samples,
            peer_rounds=own.rounds,
            schema=model.schema.digest.hex(),
        )
        self.writer.save(self._algorithm.ledger, meta, model.schema_bytes, model.carried)
        if self._data is not None:
            self._data.snapshot()
        return True

    def saved(self, outcome: Path | DataError) -> None:
        """The checkpoint under way is over."""
        if isinstance(outcome, GossipdpError):
            log.error("%s", outcome, extra={"code": outcome.code})
            notice = events.Notice(outcome.code, outcome.cause)
            self._status.note(notice)
            self._status.checkpoint_failed(outcome.seen or outcome.cause)
            self._metrics.observe(notice)
            self.due = min(self.due, self._clock() + RETRY * self._config.checkpoint_every)
        else:
            log.info("checkpoint %s", outcome.name)
            self._status.checkpoint_saved(str(outcome))
            self._metrics.checkpoint_saved()
            if self._data is not None:
                self._save_data(self._data)
        requested, self._requested = self._requested, _ignore
        requested(outcome)
        self._end_keep(outcome, self._clock())

    def _save_data(self, data: DataServer) -> None:
        try:
            data.save()
        except DataError as error:
            self._notices.notice(error.code, f"{error.cause}: {error.seen}", self._clock())

    def _save_for_keep(self) -> None:
        if self._keep is not None and not self.writer.busy:
            self._keeping = self.save()

    def _end_keep(self, outcome: Path | DataError, now: float) -> None:
        """If the checkpoint that is over holds the model that the peer gives up, the peer may go on."""
        job = self._keep
        if job is None or not self._keeping:
            self._save_for_keep()
            return
        self._keep, self._keeping = None, False
        if isinstance(outcome, Path) and job.reason is Reason.APART:
            self._pinned.given_up(outcome, now)
        self._kept(job)


def _ignore(_: Path | DataError) -> None:
    """No request waits for the checkpoint."""
