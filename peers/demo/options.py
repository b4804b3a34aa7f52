"""Options of the demo. The command line reads them, so nothing slow is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["MOST_PEERS", "SIZES", "Options"]

SIZES = ("0.25M", "1M", "3M", "11M")
"""sizes of byte_gpt, which is not imported because it imports torch"""
MOST_PEERS = 32


class Options(NamedTuple):
    """Options of one demo."""

    peers: int = 4
    steps: int = 1200
    """optimizer steps of each replica"""
    size: str = "0.25M"
    batch: int = 4
    """windows per step"""
    every: int = 30
    """H, steps per round"""
    out: Path = Path("runs/demo")
    live: bool = True
    """a live table on a terminal"""
