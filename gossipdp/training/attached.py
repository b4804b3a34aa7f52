"""What is attached in this process, one attachment a home: at another `attach`, at a fork, and when the process ends.

An attachment whose model, optimizer and handle are gone makes room for the next. Nothing here may know a daemon.
"""

from __future__ import annotations

import atexit
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gossipdp.errors import HardwareError

__all__ = ["add", "make_room", "remove"]


class _Calls(NamedTuple):
    """Unbound: they must not keep alive what they are called with."""

    at_exit: Callable[..., None]
    leave_to_parent: Callable[..., None]


_members: dict[Path, tuple[object, _Calls]] = {}


def make_room(home: Path) -> None:
    """Before an attach.

    Raises:
        HardwareError: GD-503, this process is attached to `home` already.
    """
    if home not in _members:
        return
    member, calls = _members.pop(home)
    there = weakref.ref(member)
    # Now only what the script holds keeps it alive; cycles wait for the collector.
    del member
    gc.collect()
    if (member := there()) is None:
        return
    _members[home] = member, calls
    raise HardwareError(
        "GD-503",
        "this process is attached already",
        seen=f"the model of an earlier attach is in use, at {home}",
        do="call detach() on what that attach returned; models that are trained together are attached as one: "
        "attach([first, second], optimizers)",
    )


def add(home: Path, member: object, *, at_exit: Callable[..., None], leave_to_parent: Callable[..., None]) -> None:
    """`member` is attached now.

    Args:
        at_exit: called with it when the process ends.
        leave_to_parent: called with it in a fork of this process, such as a data loader's.
    """
    _members[home] = member, _Calls(at_exit, leave_to_parent)
    # Exit functions run in reverse order: those that were registered before this attach run after it has left.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def remove(member: object) -> None:
    """`member` has left."""
    for home in [home for home, (each, _) in _members.items() if each is member]:
        del _members[home]


def _at_exit() -> None:
    for member, calls in list(_members.values()):
        calls.at_exit(member)


def _leave_to_parent() -> None:
    for member, calls in _members.values():
        calls.leave_to_parent(member)
    _members.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
