"""Whether the run of a home is finished, and what its final.json says. `final` writes it. Imports nothing slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from gossipdp.errors import ConfigError

__all__ = ["ABOUT", "FINAL", "MODEL", "check_unfinished", "free_name", "read_about", "train_on"]

FINAL: Final = "final"
"""folder in the home"""
ABOUT: Final = "final.json"
MODEL: Final = "model.safetensors"


def free_name(home: Path) -> Path:
    """A name for final files that newer ones replace."""
    number = 1
    while (path := home / f"{FINAL}-{number}").exists():
        number += 1
    return path


def read_about(home: Path) -> dict[str, Any] | None:
    """What final.json says; None if the run of `home` is not finished."""
    try:
        found = json.loads((home / FINAL / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def train_on(home: Path) -> str:
    """What to do to train the final model on."""
    return f"to train this model on, on every host: mv {home / FINAL} {free_name(home)}, then `gossipdp up`"


def check_unfinished(home: Path) -> None:
    """Raise ConfigError GD-323 if the run of `home` is finished."""
    if read_about(home) is not None:
        raise ConfigError(
            "GD-323",
            "the run of this home is finished",
            seen=f"its final model is in {home / FINAL}",
            do=f"begin a new run in another home (--home); {train_on(home)}",
        )
