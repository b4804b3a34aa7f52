"""gossipdp inside the frameworks people train with: one file each, and nobody else imports that framework.

Here is what the files share. Nothing here may import a framework.
"""

from __future__ import annotations

from typing import Any

from gossipdp.errors import ConfigError

__all__ = ["last_rows", "missing"]


def missing(framework: str, extra: str, error: ImportError) -> ConfigError:
    """GD-307, for a framework that does not let itself be imported."""
    return ConfigError(
        "GD-307",
        f"{framework} cannot be imported",
        seen=str(error),
        do=f"pip install 'gossipdp[{extra}]'",
    )


def last_rows(state: Any, processes: int) -> int | None:
    """Samples of the batch at hand, if Accelerate's `state` of gradients says that it is a last one with fewer.

    Several processes get full ones, filled up from the beginning of the data.
    """
    if processes > 1 or not state.end_of_dataloader or state.remainder <= 0:
        return None
    return int(state.remainder)
