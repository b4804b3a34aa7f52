"""The free buffer of a shared region: its uses follow each other, and a seal waits for the use before it."""

from __future__ import annotations

import pytest

from gossipdp.runtime.link import FreeBuffer
from gossipdp.runtime.link.free_buffer import Use


class Token:
    """As that of a region, without a file."""

    def __init__(self) -> None:
        self.number: int | None = None
        """the last slot; None while a side holds the token"""

    def take(self) -> int | None:
        taken, self.number = self.number, None
        return taken

    def give(self, sealed: int) -> None:
        assert self.number is None, "the token was there already"
        self.number = sealed


class Seals:
    """Seals that are asked for, and how each ends."""

    def __init__(self, free: FreeBuffer) -> None:
        self.free, self.log = free, list[str]()

    def ask(self) -> None:
        self.free.seal(lambda: self.log.append("begins"), lambda: self.log.append("is cancelled"))


@pytest.fixture
def token() -> Token:
    return Token()


@pytest.fixture
def free(token: Token) -> FreeBuffer:
    """The buffer after the model was loaded."""
    free = FreeBuffer(token)
    assert token.number is None, "the training process begins"
    free.done("model")
    assert token.number == 0
    return free


@pytest.mark.parametrize("use", ["snapshot", "moments"])
def test_seal_waits_until_what_the_training_process_has_written_is_read(
    token: Token, free: FreeBuffer, use: Use
) -> None:
    seals = Seals(free)
    assert token.take() == 0
    seals.ask()
    assert seals.log == [], "the training process writes"
    free.received(use)
    assert seals.log == [], "the daemon reads"
    free.done(use)
    assert seals.log == ["begins"] and token.number is None, "training writes nothing before the slot is there"
    free.sealed(1)
    assert token.number == 1


def test_seal_of_a_free_buffer_begins_at_once__and_one_that_finds_nothing_keeps_the_last_number(
    token: Token, free: FreeBuffer
) -> None:
    seals = Seals(free)
    for slot, named in ((4, 4), (0, 4), (5, 5)):
        seals.ask()
        assert token.number is None
        free.sealed(slot)
        assert token.number == named
    assert seals.log == ["begins"] * 3


def test_use_that_is_not_under_way_ends_without_effect(token: Token, free: FreeBuffer) -> None:
    assert token.take() == 0
    free.done("snapshot")
    free.done("model")
    assert token.number is None


def test_process_that_dies_cancels_the_seal_that_waits_and_each_later_one(token: Token, free: FreeBuffer) -> None:
    seals = Seals(free)
    token.take()
    free.received("snapshot")
    seals.ask()
    free.detach()
    assert seals.log == ["is cancelled"]
    free.done("snapshot")
    seals.ask()
    assert seals.log == ["is cancelled"] * 2 and token.number is None


def test_process_that_dies_during_a_seal_does_not_stop_it(token: Token, free: FreeBuffer) -> None:
    seals = Seals(free)
    seals.ask()
    free.detach()
    free.sealed(1)
    assert seals.log == ["begins"] and token.number is None
