"""What a forked child, such as a data loader's process, must not keep of its parent: connections and mapped memory.

A child that kept the parent's connection would hide the parent's death from the daemon.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["ParentOwned", "leave_in_forks"]


class ParentOwned(Protocol):
    """Something that belongs to the process that made it, and to none of its forks."""

    def leave_to_parent(self) -> None:
        """Runs in a forked child: let go, without touching what the parent still uses."""


_owned: weakref.WeakSet[ParentOwned] = weakref.WeakSet()


def leave_in_forks(owned: ParentOwned) -> None:
    """Call `owned.leave_to_parent` in every fork of this process, for as long as `owned` lives."""
    _owned.add(owned)


def _leave_to_parent() -> None:
    for each in list(_owned):
        each.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
