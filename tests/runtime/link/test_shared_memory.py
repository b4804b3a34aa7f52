"""The memory that daemon and training process share: layout, seals and limits."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest

from gossipdp.runtime.link.region import Allocation, Region, read_blob, write_blob


def made(size: int) -> tuple[Allocation, Region]:
    allocation = Allocation(size)
    while not allocation.step():
        pass
    return allocation, Region(allocation.fd, size, allocation.token)


@pytest.mark.parametrize("size", [1, 1024, 1025, 100_000])
def test_region_is_two_aligned_vectors_that_both_sides_see(size: int) -> None:
    allocation, here = made(size)
    there = Region(allocation.fd, size, allocation.token)
    allocation.close()
    for place, (mine, theirs) in enumerate(zip(here.buffers, there.buffers, strict=True)):
        assert mine.shape == (size,) and mine.dtype == np.float32 and mine.ctypes.data % 4096 == 0
        assert not mine.any()
        mine[:] = place + 1
        assert (theirs == place + 1).all()
    assert here.buffers[0][-1] == 1 and here.buffers[1][0] == 2


def test_token_is_at_one_side_at_a_time_and_names_the_last_slot() -> None:
    allocation, here = made(10)
    there = Region(allocation.fd, 10, allocation.token)
    allocation.close()
    assert here.take() is None and there.take() is None
    there.give(0)
    assert here.take() == 0 and there.take() is None and here.take() is None
    here.give(7)
    assert there.take() == 7 and here.take() is None


def test_region_is_sealed_and_fully_allocated() -> None:
    allocation, region = made(5000)
    status = os.fstat(allocation.fd)
    assert status.st_blocks * 512 >= status.st_size == 2 * 20480
    for length in (0, status.st_size - 1, status.st_size + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(allocation.fd, length)
    with pytest.raises(PermissionError):
        fcntl.fcntl(allocation.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    allocation.close()
    region.buffers[0][-1] = 1.0


def test_large_region_is_allocated_in_pieces() -> None:
    allocation = Allocation(6 << 20)
    steps = 1
    while not allocation.step():
        steps += 1
    assert steps == 2
    allocation.close()


def test_region_that_could_shrink_or_has_another_length_is_refused() -> None:
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 2 * 4096)
    with pytest.raises(ValueError, match="sealed"):
        Region(fd, 10)
    os.close(fd)
    allocation, _ = made(10)
    with pytest.raises(ValueError, match="bytes, not"):
        Region(allocation.fd, 5000)
    allocation.close()


def test_blob_is_read_within_its_limit() -> None:
    fd = write_blob(b"0123456789")
    assert read_blob(fd, 10) == b"0123456789" == read_blob(fd, 11)
    with pytest.raises(ValueError, match="at most 9"):
        read_blob(fd, 9)
    os.close(fd)
