"""The file system of the home and of the checkpoints: free space, and the time of a write with its fsync."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gossipdp.runtime.files import Files
from peers.doctor.findings import Finding, fine, red, yellow

__all__ = ["disk"]

TRIAL: Final = 8 << 20
"""bytes written for the trial"""
LITTLE: Final = 64 << 20
"""bytes without which a daemon cannot keep its own small files and logs"""
SLOW: Final = 20e6
"""bytes a second below which checkpoints take long"""
SLOW_SYNC: Final = 1.0
"""seconds of one fsync above which the daemon's own small files hold it up"""


def disk(folder: Path, needed: int, files: Files | None = None, now: Callable[[], float] = time.monotonic) -> Finding:
    """Examine the file system of `folder`, which need not exist. A small file is written there, and removed.

    Args:
        needed: bytes of a checkpoint and of spilled vectors; 0 if the model's size is not known.
    """
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    free = (files or Files()).free(place)
    about, room = f"disk of {place}", f"{free / 1e9:.1f} GB free" if free >= 1e9 else f"{free / 1e6:.0f} MB free"
    do = "delete old files, or name another folder: [checkpoint] dir, or --home DIR"
    if free < max(LITTLE, needed):
        wanted = f", and this model needs {needed / 1e9:.1f} GB" if needed > LITTLE else ""
        return red(about, "disk-full", room + wanted, do)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".gossipdp-doctor-") as trial:
            began = now()
            trial.write(os.urandom(TRIAL))
            trial.flush()
            os.fsync(trial.fileno())
            first = now() - began
            trial.write(b"0")
            trial.flush()
            os.fsync(trial.fileno())
            sync = now() - began - first
    except OSError as error:
        fault = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "disk-fails"
        return red(about, fault, f"a file cannot be written: {error.strerror}; {room}", do)
    speed = TRIAL / max(first, 1e-6)
    said = f"{room}, {speed / 1e6:.0f} MB/s, fsync {sync * 1e3:.0f} ms"
    if speed < SLOW or sync > SLOW_SYNC:
        return yellow(
            about, "disk-slow", said, "put home and checkpoints on a local disk: [checkpoint] dir, --home DIR"
        )
    return fine(about, said)
