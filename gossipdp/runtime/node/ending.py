"""How the daemon ends a run: the last snapshot, the end of training, then the final files once the peer has left.

The protocol decides when (`gossipdp.protocol.course.ending`). Nothing here may know what the final files are, or how a
training command is ended: the daemon's builder says so (`Outside`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from gossipdp.errors import DataError, GossipdpError
from gossipdp.protocol import events
from gossipdp.protocol.course.ending import FinishProgress
from gossipdp.protocol.wire.messages import Phase, State
from gossipdp.runtime.background import BackgroundCalls
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.node.training import TrainingSessions
from gossipdp.runtime.observability.notices import name_of

__all__ = ["Ending", "Outside"]

log = logging.getLogger("gossipdp.node")

LAST_STEP: Final = 60.0
LAST_EACH: Final = 20e-9
"""seconds to wait for the last snapshot, at least, and additional seconds per parameter: it is copied and taken in"""
ROUNDS: Final = 2.0
"""the same in usual rounds"""
GONE_WITHIN: Final = 15.0
GONE_EACH: Final = 20e-9
"""seconds for a training command to end after it was told to, and additional seconds per parameter"""


class Outside(Protocol):
    """What the end of a run causes outside the node."""

    def end_training(self) -> bool:
        """The training command is to be ended, and not started again. False if nothing here can do that."""

    def write(self, checkpoint: Path, about: Mapping[str, Any]) -> Path:
        """Write the final files, or this host's own if the peers do not agree. Called on a thread of its own.

        Args:
            checkpoint: with the final model.
            about: what is known of the end of the run; in `this_host` what each host says of its own.

        Raises:
            GossipdpError: they cannot be written.
        """


class Ending:
    """The end of the run at this node.

    Args:
        outside: None if nothing but a checkpoint is wanted.
    """

    def __init__(self, context: NodeContext, training: TrainingSessions, outside: Outside | None) -> None:
        self._view, self._status, self._notices = context.peer.view, context.status, context.notices
        self._training, self._outside = training, outside
        self._calls: BackgroundCalls[Path | GossipdpError] = BackgroundCalls("final")
        self._last_by = math.inf
        """when training is ended without another snapshot"""
        self._gone_by = math.inf
        """when a training process that is still attached is sent away"""
        self._report: events.Finished | None = None
        self._told = ""
        self._waiting: dict[bytes, float] = {}
        """members that wait for those that train, and since when"""
        self.final: Path | None = None
        """where the final files are"""

    @property
    def _size(self) -> int:
        """Parameters of the model; 0 without one."""
        model = self._view.model
        return 0 if model is None else model.schema.size

    @property
    def writing(self) -> bool:
        """The final files are being written."""
        return self._calls.pending > 0

    def observe(self, event: events.Event, now: float) -> None:
        """An event of the peer."""
        match event:
            case events.FinishBegan(by):
                who = f"asked by {name_of(self._view, by)}" if by else "asked on this host"
                trains = self._training.hurry()
                rest = "training ends after one more snapshot" if trains else "training is over"
                log.info("finishing: %s; %s", who, rest)
                least = LAST_STEP + LAST_EACH * self._size
                patience = max(least, ROUNDS * self._view.usual_round)
                self._last_by = now + patience if trains else now
                self.tick(now)
            case events.SnapshotTaken() if self._last_by < math.inf:
                self._last_by = now
                self.tick(now)
            case events.FinishPhase():
                self._tell(self.describe(now)["text"])
            case events.Finished():
                self._finished(event, now)
            case events.MemberChanged(member):
                waits = member.phase is Phase.WAITING and member.state in (State.ALIVE, State.SUSPECT)
                if not waits:
                    self._waiting.pop(member.id, None)
                elif not member.calls:
                    self._waiting.setdefault(member.id, now)

    def _tell(self, text: str) -> None:
        """Log how the end goes, unless it was just told."""
        if text != self._told:
            log.info("finishing: %s", text)
        self._told = text

    def _finished(self, event: events.Finished, now: float) -> None:
        self._report, close = event, event.closeness
        if not event.closers:
            log.warning("finished without a model: this peer has never received one")
        elif event.early:
            names = self._names(event.without)
            steps = "includes" if self._view.handed_in else "lacks"
            log.warning(
                "ended early: this host's model is not final. The final one will be on %s, and %s this host's last "
                "steps",
                names,
                steps,
            )
        elif not close.agrees:
            outliers = self._names(close.outliers)
            text = f"no final model after {close.exchanges} exchanges{_closer(close)}"
            text += f"; too far away: {outliers}" if close.outliers else ""
            self._notices.notice("GD-404", text, now)
        elif len(event.closers) == 1:
            self._finished_alone(event)
        else:
            log.info("finished: %d peers hold one model%s", len(event.closers), _closer(close))
            if event.without:
                log.warning("the final model lacks the last steps of %s", self._names(event.without))

    def _finished_alone(self, event: events.Finished) -> None:
        view = self._view
        known = [view.members[peer] for peer in event.without]
        told = {*event.without, *event.handed_in}
        known += [member for member in view.restart_contacts if member.id not in told]
        absent = [member.name or member.address for member in known]
        if absent:
            text = "finished alone: the final model is this peer's own, because other members took no part: %s"
            log.warning(text, _listed(absent))
        elif event.handed_in:
            text = "finished: the final model is this peer's, with the last steps of %s"
            log.info(text, self._names(event.handed_in))
        else:
            log.info("finished alone: the final model is this peer's own")

    def _names(self, peers: Sequence[bytes]) -> str:
        return _listed([name_of(self._view, peer) for peer in peers])

    def tick(self, now: float) -> None:
        """End training that hands over no snapshot, and look for the final files."""
        if now >= self._last_by:
            self._last_by = math.inf
            ended = self._outside is not None and self._outside.end_training()
            self._gone_by = now + (GONE_WITHIN + GONE_EACH * self._size if ended else 0.0)
        if now >= self._gone_by:
            self._gone_by = math.inf
            self._training.end()
        for _, outcome in self._calls.collect():
            if isinstance(outcome, Path):
                agrees = self._report is not None and self._report.closeness.agrees
                self.final = outcome if agrees else None
                log.info("%s in %s", "final model" if agrees else "this host's own model, which is not final,", outcome)
            else:
                log.error("%s", outcome, extra={"code": outcome.code})

    def saved(self, outcome: Path | DataError) -> None:
        """The last checkpoint is saved, or failed."""
        report = self._report
        if report is not None and report.closers and self._outside is not None and isinstance(outcome, Path):
            self._calls.start("final", partial(_written, self._outside.write, outcome, self._about(report, outcome)))

    def _about(self, report: events.Finished, checkpoint: Path) -> dict[str, Any]:
        """All hosts say the same, except in `this_host`. Clock and rounds are those of `checkpoint`."""
        view, close = self._view, report.closeness
        members, counts = view.members, view.final_counts
        assert counts is not None, "a model was saved"
        holders = sorted((members[one].name, one.hex()) for one in report.closers if one in members)
        return {
            "run": self._status.transport.run.hex(),
            **counts._asdict(),
            "peers": [{"id": one, "name": name} for name, one in holders],
            "this_host": {
                "peer": view.id.hex(),
                "rounds": view.own_progress.rounds,
                "network_steps": view.network_steps,
                "network_samples": view.network_samples,
                "exchanges": close.exchanges,
                "agrees": close.agrees,
                "early": report.early,
                "handed_in": self._described(report.handed_in),
                "without": self._described(report.without),
                "distance_before": _known(close.before),
                "distance_after": _known(close.now),
                "relative_distance": _known(_relative(close)),
                "checkpoint": str(checkpoint),
            },
        }

    def _described(self, peers: Sequence[bytes]) -> list[dict[str, Any]]:
        members = self._view.members
        reports = ((members[peer], self._view.report(peer)) for peer in peers if peer in members)
        return [
            {
                "id": member.id.hex(),
                "name": member.name,
                "state": member.state.name.lower(),
                "steps": 0 if report is None else report.steps,
            }
            for member, report in reports
        ]

    # -- for operators ----------------------------------------------------------------------------------------

    def waiting(self, now: float) -> dict[str, float]:
        """Members whose training is over and that wait for those that train -> seconds since this peer knows it."""
        members = self._view.members
        return {members[peer].name: now - since for peer, since in self._waiting.items() if peer in members}

    def describe(self, now: float) -> dict[str, Any]:
        """The part of `status` about the end of the run; empty before it."""
        if not self._view.finishing:
            return {}
        progress, close = self._view.finish_progress(now), self._view.closeness
        members = self._view.members
        names = [members[peer].name for peer in progress.awaited if peer in members]
        return {
            "phase": progress.phase.name.lower(),
            "awaited": names,
            "left": _known(progress.left),
            "closers": len(progress.closers),
            "exchanges": close.exchanges,
            "distance": _known(close.now),
            "relative_distance": _known(_relative(close)),
            "writing": self.writing,
            "final": "" if self.final is None else str(self.final),
            "handed_in": progress.handed_in,
            "text": self._text(progress, names, close),
        }

    def _text(self, progress: FinishProgress, names: list[str], close: events.Closeness) -> str:
        most = f", at most {progress.left:.0f} s more" if progress.left < math.inf else ""
        if self.writing:
            return "the final files are being written"
        match progress.phase:
            case Phase.RUNNING if self._last_by < math.inf:
                return "waits for the last snapshot of training"
            case Phase.RUNNING if progress.handing:
                return f"hands over its last steps to members that train: {_listed(names)}{most}"
            case Phase.RUNNING:
                return "waits for the end of the training process"
            case Phase.WAITING:
                handed = "has handed over its last steps, and " if progress.handed_in else ""
                return f"{handed}waits for members that train: {_listed(names)}{most}"
            case Phase.CLOSING:
                return f"{len(progress.closers)} peers average; exchanges made: {close.exchanges}{_closer(close)}"
        return f"this peer is done, and waits for {_listed(names)}{most}" if names else "all peers are done"


def _written(write: Callable[[Path, Mapping[str, Any]], Path], *given: Any) -> Path | GossipdpError:
    try:
        return write(*given)
    except GossipdpError as error:
        return error
    except OSError as error:
        do = "check the disk; `gossipdp checkpoint export` also writes the model"
        return DataError("GD-602", "the final files cannot be written", seen=str(error), do=do)


def _relative(close: events.Closeness) -> float:
    return close.now / close.before if close.before > 0.0 else math.nan


def _closer(close: events.Closeness) -> str:
    """The distance that this peer measured last, in words. Another peer's last exchange had another distance."""
    if math.isnan(close.before) or math.isnan(close.now):
        return ""
    return f"; measured here: {close.now:.1e} apart, {_relative(close):.1e} of the usual {close.before:.1e}"


def _listed(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
