"""The daemon's side of the free buffer of a shared region: what it uses the buffer for, and a seal that waits for it.

The training process takes the token to write a snapshot or moments, and passes it to the daemon with its message. The
daemon takes it to seal a slot, because the free buffer is the next open one. It puts the token back once the last use
is over. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

__all__ = ["FreeBuffer", "Token", "Use"]

Use: TypeAlias = Literal["model", "snapshot", "moments", "seal"]


class Token(Protocol):
    """The right to use the free buffer; see `Region`."""

    def take(self) -> int | None: ...

    def give(self, sealed: int) -> None: ...


class FreeBuffer:
    """The uses of the free buffer. The first is the model, which the training process writes there.

    Args:
        token: of its region.
    """

    def __init__(self, token: Token) -> None:
        self._token: Token | None = token
        """None once the training process has ended: its memory may go"""
        self._uses: set[Use] = {"model"}
        self._sealed = 0
        """number of the last slot"""
        self._waiting: tuple[Callable[[], None], Callable[[], None]] | None = None
        """how a seal that waits begins, and how it ends without a slot"""

    def received(self, use: Use) -> None:
        """The training process has passed the token on with a message: the buffer holds something to be read."""
        self._uses.add(use)

    def done(self, use: Use) -> None:
        """This use is over."""
        if use not in self._uses:
            return
        self._uses.discard(use)
        if self._uses or self._token is None:
            return
        if self._waiting is not None:
            self._begin()
        else:
            self._token.give(self._sealed)

    def seal(self, begin: Callable[[], None], cancel: Callable[[], None]) -> None:
        """Seal a slot now or as soon as the buffer is free.

        Args:
            begin: begins it. `sealed` must follow.
            cancel: called instead if the training process ends before that.
        """
        if self._token is None:
            return cancel()
        self._waiting = begin, cancel
        if not self._uses and self._token.take() is not None:
            self._begin()

    def sealed(self, slot: int) -> None:
        """The seal is over: `slot` is out. 0: there was nothing to seal."""
        self._sealed = slot or self._sealed
        self.done("seal")

    def detach(self) -> None:
        """The training process has ended: nothing needs its corrections any more."""
        self._token = None
        if self._waiting is not None:
            (_, cancel), self._waiting = self._waiting, None
            cancel()

    def _begin(self) -> None:
        assert self._waiting is not None
        (begin, _), self._waiting = self._waiting, None
        self._uses.add("seal")
        begin()
