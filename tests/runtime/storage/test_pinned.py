"""Pinned checkpoints outlive newer ones; only the newest pins stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossipdp.errors import DataError
from gossipdp.runtime.storage.store import PINS, Store
from tests.runtime.storage.samples import meta, vectors


def test_pinned_checkpoint_outlives_all_pruning_and_loads(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", keep=2)
    first = store.save(vectors(1), meta(1), b"s")
    store.pin(first, "GD-605 it is later")
    store.pin(first, "and again")
    assert store.pinned(first) and (first / "pinned").read_text() == "GD-605 it is later\n"
    later = [store.save(vectors(round), meta(round), b"s") for round in (2, 3, 4)]
    assert store.list() == [first, *later[1:]] and not store.pinned(later[2])
    assert Store.verify(first).meta == meta(1)
    assert store.why_pinned(first) == "GD-605 it is later" and store.why_pinned(later[2]) is None
    (first / "pinned").unlink()
    store.save(vectors(5), meta(5), b"s")
    assert first not in store.list()


def test_only_the_newest_pins_are_kept__and_lost_pins_are_returned(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", keep=1)
    pinned, told = [], []
    for round in range(1, PINS + 3):
        pinned.append(store.save(vectors(round), meta(round), b"s"))
        told += store.pin(pinned[-1], "it is later")
    assert told == pinned[:2] and not any(map(store.pinned, told))
    last = store.save(vectors(9), meta(9), b"s")
    assert store.list() == [*pinned[2:], last]
    assert store.pin(pinned[3], "again") == []


def test_pin_with_a_torn_reason_is_a_pin(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", keep=1)
    first = store.save(vectors(1), meta(1), b"s")
    for torn in (b"", b"x" * 5000):
        (first / "pinned").write_bytes(torn)
        assert store.pinned(first) and store.why_pinned(first) == ""
    store.save(vectors(2), meta(2), b"s")
    assert first in store.list()


def test_checkpoint_that_cannot_be_pinned_is_an_error_with_a_code(tmp_path: Path) -> None:
    store = Store(tmp_path / "c")
    with pytest.raises(DataError, match="GD-602"):
        store.pin(store.dir / "checkpoint-00000001", "there is none")
