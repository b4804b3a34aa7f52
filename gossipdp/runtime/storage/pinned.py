"""Checkpoints that stay until people decide: of what this peer held before it followed the network.

Which checkpoint that is, and when, is for others to say; how one is marked to be kept is `store`'s business.
"""

from __future__ import annotations

from pathlib import Path

from gossipdp.errors import DataError
from gossipdp.runtime.observability.notices import Notices
from gossipdp.runtime.storage.store import PINS, Store

__all__ = ["Pins"]


class Pins:
    def __init__(self, store: Store, notices: Notices) -> None:
        self._store, self._notices = store, notices

    def ahead(self, clock: int, network: int, now: float) -> None:
        """The own checkpoint is later than the model of the network. It is the newest: nothing is saved before that
        model is here."""
        told = f"the network's model is of step {network} of its clock, the checkpoint here of step {clock}"
        try:
            newest = self._store.newest()
        except DataError as error:
            self._failed(told, error, now)
        else:
            if newest is not None:
                self._pin(newest[0], "GD-605", told, now)

    def given_up(self, path: Path, now: float) -> None:
        """At `path` is what this peer has before it follows another side."""
        self._pin(path, "GD-607", "another side of the network, apart from this one for long, is to be followed", now)

    def _pin(self, path: Path, code: str, told: str, now: float) -> None:
        try:
            let_go = self._store.pin(path, f"{code} {told}")
        except DataError as error:
            self._failed(told, error, now)
            return
        self._notices.notice(code, f"{told}: this peer follows the network, and keeps {path}", now)
        for each in let_go:
            text = f"{PINS} later checkpoints are pinned: {each} goes with the next ones saved"
            self._notices.notice("GD-606", text, now)

    def _failed(self, told: str, error: DataError, now: float) -> None:
        self._notices.notice(error.code, f"{told}, and its checkpoint cannot be marked to be kept: {error.seen}", now)
