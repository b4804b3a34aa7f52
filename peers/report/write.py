"""Writes the report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gossipdp.errors import DataError
from gossipdp.runtime.files import unwritable
from peers.report.gather import gather
from peers.report.page import MOST, page
from peers.version import VERSION

__all__ = ["write"]


def write(places: Sequence[Path], out: Path, now: float) -> int:
    """Write the report of the run of these homes to `out`. `now`: seconds since 1970. Returns its bytes.

    Raises:
        ConfigError: GD-314, GD-315, see `gather`.
        DataError: GD-602, it cannot be written; GD-603, a home is damaged.
    """
    text = page(gather(places), now, VERSION).encode()
    if len(text) > MOST:
        raise DataError("GD-602", "the report is too large", seen=f"{len(text)} bytes", do="name fewer homes")
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_bytes(text)
        partial.replace(out)
    except OSError as error:
        raise unwritable(out, error) from None
    return len(text)
