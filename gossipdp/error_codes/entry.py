"""One entry of the table of error codes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Code"]


class Code(NamedTuple):
    """What an error code means and what an operator can do."""

    title: str
    """a few words, without a full stop"""
    meaning: str
    """sentences: what has happened, and what the peer does about it"""
    do: str
    """what an operator can do: a clause without a full stop"""
    exits: tuple[int, ...] = ()
    """exit codes of a process that ends with it; () if it never ends one"""
    notices: bool = False
    """whether notices of this code end with `do`; notices of other codes say in their own text what to do"""
