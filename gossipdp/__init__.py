"""Decentralized data-parallel training by compressed gossip averaging.

    peer = gossipdp.attach(model, optimizer)

torch is imported at the first use of `attach`, because the daemon and the command line do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossipdp.errors import GossipdpError, refuse_other_systems

if TYPE_CHECKING:
    from gossipdp.training.attach import attach
    from gossipdp.training.attachment import Attachment

    __version__: str

__all__ = ["Attachment", "GossipdpError", "__version__", "attach"]

_LAZY = {
    "Attachment": "gossipdp.training.attachment",
    "attach": "gossipdp.training.attach",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("gossipdp")
    if name in _LAZY:
        from importlib import import_module
        from os import environ

        if not environ.get("GOSSIPDP_OFF"):
            refuse_other_systems()
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
