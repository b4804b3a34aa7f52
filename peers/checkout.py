"""What only a checkout of the sources has: the package `simulations`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["of_a_checkout"]


@contextmanager
def of_a_checkout(what: str) -> Iterator[None]:
    """Import parts of `simulations` within it.

    Args:
        what: the subject of the error's cause.

    Raises:
        HardwareError: GD-504, `simulations` is not installed.
    """
    from gossipdp.errors import HardwareError

    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("simulations"):
            raise
        raise HardwareError(
            "GD-504",
            f"{what} is not installed: the package holds only gossipdp and peers",
            seen=str(error),
            do="in the folder of the sources, run `python -m gossipdp` in place of `gossipdp`, or install them with"
            " `pip install -e .`",
        ) from None
