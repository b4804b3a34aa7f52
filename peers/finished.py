"""Whether the run of a home is finished, and what its final.json says. `final` writes it. Imports nothing slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gossipdp.errors import ConfigError
from gossipdp.runtime import plain_json

__all__ = ["ABOUT", "FINAL", "MODEL", "NOT_FINAL", "check_unfinished", "free_name", "read_about", "train_on"]

FINAL: Final = "final"
"""folder in the home"""
NOT_FINAL: Final = "not-final"
"""folder in the home for this host's own model, if the peers did not come to one"""
ABOUT: Final = "final.json"
MODEL: Final = "model.safetensors"


def free_name(home: Path, name: str = FINAL) -> Path:
    """A name for files in the folder `name` that newer ones replace."""
    number = 1
    while (path := home / f"{name}-{number}").exists():
        number += 1
    return path


def read_about(home: Path, name: str = FINAL) -> dict[str, Any] | None:
    """What final.json in the folder `name` says; None without one. The run of a home without final files goes on."""
    try:
        found = plain_json.parse((home / name / ABOUT).read_text(encoding="utf-8"))
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
