"""The final files of a run, in HOME/final: the model, and final.json with what is known of it.

    HOME/final/
      model.safetensors     the tensors that peers exchange, over 5 GB as shards with an index; or, on a base, a
                            directory of `save_pretrained`
      final.json            network, run, clock, members that closed, settings; in "this_host" what differs by host

If the peers did not come to one model, the same files say so in HOME/not-final, and the run is not finished. The files
appear whole or not at all. `finished` tells whether they are there. Nothing here may import torch.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gossipdp.config import Config, agreed
from gossipdp.errors import GossipdpError
from gossipdp.runtime.files import TEMPORARY, Files, unwritable
from gossipdp.runtime.storage.store import Store
from peers import export
from peers.export_base import Base
from peers.finished import ABOUT, FINAL, NOT_FINAL, free_name
from peers.version import VERSION

__all__ = ["FinalFiles"]

log = logging.getLogger("gossipdp.daemon")


class FinalFiles:
    """Writes the final files of one home, and ends the training command. Implements `runtime.node.ending.Outside`.

    Args:
        supervisor: pid of the supervisor that started this daemon; 0 without one.
    """

    def __init__(self, home: Path, config: Config, store: Store, supervisor: int) -> None:
        self._home, self._config, self._store, self._supervisor = home, config, store, supervisor
        self._base = config.finish.base

    def use(self, base: str) -> None:
        """Write a directory of `save_pretrained` like the one at `base`. Raises DataError GD-609: it is none."""
        Base(Path(base))
        self._base = base

    def end_training(self) -> bool:
        """Tell the supervisor to end the training command for good. False without a supervisor."""
        if not self._supervisor or self._supervisor != os.getppid():
            return False
        with suppress(ProcessLookupError):
            os.kill(self._supervisor, signal.SIGUSR1)
        return True

    def write(self, checkpoint: Path, about: Mapping[str, Any]) -> Path:
        """Write the files from `checkpoint`, which stays. Returns their folder.

        On a base of another model, the tensors are written to one file, as without a base.

        Raises:
            DataError: GD-601, GD-602.
        """
        agrees = about["this_host"]["agrees"]
        name = FINAL if agrees else NOT_FINAL
        found, where, files = self._store.verify(checkpoint, say=log.info), self._home / name, Files()
        made = self._home / f"{TEMPORARY}{name}"
        try:
            if made.exists():  # left by a killed daemon
                files.remove(made)
            base = self._base
            if base:
                try:
                    export.export_model(found, made, Path(base), say=log.info)
                except GossipdpError as error:
                    log.error("%s", error, extra={"code": error.code})
                    base = ""
            if not base:
                files.make_directory(made)
                export.export_files(export.trained(found), made, say=log.info)
            text = json.dumps(self._complete(about, base), indent=2) + "\n"
            (made / ABOUT).write_text(text, encoding="utf-8")
            files.sync_directory(made)
            if where.exists():
                files.rename(where, free_name(self._home, name))
            files.rename(made, where)
            files.sync_directory(self._home)
        except OSError as error:
            raise unwritable(where, error) from error
        at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        if agrees:
            self._store.pin(checkpoint, f"the final model of the run that finished at {at}")
        return where

    def _complete(self, about: Mapping[str, Any], base: str) -> dict[str, Any]:
        here = {**about["this_host"], "finished_at": time.time(), "base": base, "software": VERSION}
        return {
            "network": self._config.network.name,
            **about,
            "settings": agreed(self._config),
            "this_host": here,
        }
