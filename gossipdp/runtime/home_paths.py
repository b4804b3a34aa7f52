"""Where the homes of this user's peers are. Nothing here may read or make a home."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gossipdp.errors import ConfigError

__all__ = ["expanded", "homes_of_user"]


def expanded(path: str | os.PathLike[str]) -> Path:
    """`path` with ``~`` and ``~user`` replaced. Raises ConfigError GD-314."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise _homeless(f"{os.fspath(path)} cannot be expanded") from None


def homes_of_user(environment: Mapping[str, str] | None = None) -> Path:
    """``~/.gossipdp``, absolute. Raises ConfigError GD-314: there is no HOME, and the user has no passwd entry."""
    base = (os.environ if environment is None else environment).get("HOME")
    try:
        return (Path(base) if base else Path.home()).absolute() / ".gossipdp"
    except RuntimeError:
        raise _homeless(f"HOME is not set, and user {os.getuid()} has no entry in passwd") from None


def _homeless(seen: str) -> ConfigError:
    return ConfigError(
        "GD-314",
        "this user has no home directory",
        seen=seen,
        do="name a directory for the peer: --home DIR, or GOSSIPDP_HOME; or set HOME",
    )
