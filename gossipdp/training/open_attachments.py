"""The attachments of this process, one per home: what happens to them at another `attach`, in a fork and at exit.

An attachment whose model, optimizer and handle are gone makes room for the next one. Nothing here knows a daemon.
"""

from __future__ import annotations

import atexit
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from torch import Tensor, nn

from gossipdp.errors import HardwareError
from gossipdp.runtime.link.forks import leave_in_forks

__all__ = ["add", "another", "make_room", "remove"]


class _Calls(NamedTuple):
    """Unbound functions, so that they do not keep the attachment alive."""

    at_exit: Callable[..., None]
    leave_to_parent: Callable[..., None]


_attachments: Final[dict[Path, tuple[object, _Calls]]] = {}
_models: Final[dict[Path, weakref.ref[Tensor]]] = {}
"""a parameter of the last model that was attached to each home"""


class _Guard:
    """Attachments belong to the process that made them."""

    def leave_to_parent(self) -> None:
        for attachment, calls in _attachments.values():
            calls.leave_to_parent(attachment)
        _attachments.clear()


_guard: Final = _Guard()
leave_in_forks(_guard)


def make_room(home: Path) -> None:
    """Call before an attach.

    Raises:
        HardwareError: GD-503, this process is attached to `home` already.
    """
    if home not in _attachments:
        return
    attachment, calls = _attachments.pop(home)
    there = weakref.ref(attachment)
    # Now only what the script holds keeps it alive; cycles wait for the collector.
    del attachment
    gc.collect()
    if (attachment := there()) is None:
        return
    _attachments[home] = attachment, calls
    raise HardwareError(
        "GD-503",
        "this process is attached already",
        seen=f"the model of an earlier attach is in use, at {home}",
        do="call detach() on what that attach returned; models that are trained together are attached as one: "
        "attach([first, second], optimizers)",
    )


def another(home: Path, model: nn.Module) -> bool:
    """`model` is attached to `home` now. Returns True if the last one there was another model."""
    last, parameter = _models.get(home), next(model.parameters())
    _models[home] = weakref.ref(parameter)
    return last is not None and last() is not parameter


def add(home: Path, attachment: object, *, at_exit: Callable[..., None], leave_to_parent: Callable[..., None]) -> None:
    """`attachment` is attached now.

    Args:
        at_exit: called with it when the process ends.
        leave_to_parent: called with it in a fork of this process, such as a data loader's.
    """
    _attachments[home] = attachment, _Calls(at_exit, leave_to_parent)
    # Exit functions run in reverse order: those that were registered before this attach run after it has left.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def remove(attachment: object) -> None:
    """`attachment` has left."""
    for home in [home for home, (each, _) in _attachments.items() if each is attachment]:
        del _attachments[home]


def _at_exit() -> None:
    for attachment, calls in list(_attachments.values()):
        calls.at_exit(attachment)
