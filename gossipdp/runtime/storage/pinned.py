"""Checkpoints that stay until the operator decides: of the model that a peer held before it followed the network.

The caller says which checkpoint and when. `store` marks a checkpoint as pinned.
"""

from __future__ import annotations

from pathlib import Path

from gossipdp.errors import DataError
from gossipdp.runtime.observability.notices import Notices
from gossipdp.runtime.storage.store import PINS, Store

__all__ = ["PinnedCheckpoints"]


class PinnedCheckpoints:
    def __init__(self, store: Store, notices: Notices) -> None:
        self._store, self._notices = store, notices

    def ahead(self, clock: int, network: int, now: float) -> None:
        """The newest checkpoint here, at step `clock`, is later than the network's model, at step `network`."""
        text = f"the network's model is of step {network} of its clock, but the checkpoint here is of step {clock}"
        try:
            newest = self._store.newest()
        except DataError as error:
            self._failed(text, error, now)
        else:
            if newest is not None:
                self._pin(newest[0], "GD-605", text, now)

    def given_up(self, path: Path, now: float) -> None:
        """`path` holds the model of this peer before it follows another side."""
        self._pin(path, "GD-607", "this side of the network trained apart from the other side for long", now)

    def _pin(self, path: Path, code: str, text: str, now: float) -> None:
        try:
            surplus = self._store.pin(path, f"{code} {text}")
        except DataError as error:
            self._failed(text, error, now)
            return
        self._notices.notice(code, f"{text}: this peer follows the network, and keeps {path}", now)
        for each in surplus:
            unpinned = f"{PINS} later checkpoints are pinned: {each} is deleted after the next ones are saved"
            self._notices.notice("GD-606", unpinned, now)

    def _failed(self, text: str, error: DataError, now: float) -> None:
        self._notices.notice(error.code, f"{text}, and its checkpoint cannot be marked to be kept: {error.seen}", now)
