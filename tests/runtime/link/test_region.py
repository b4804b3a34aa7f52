"""The memory that daemon and training process share: layout, seals, limits, the free buffer, and forks."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gossipdp.runtime.link import FreeBuffer
from gossipdp.runtime.link.free_buffer import Use
from gossipdp.runtime.link.region import Allocation, Region, read_blob, write_blob

FORKS = """
import ctypes, gc, os, sys, traceback
from pathlib import Path
from gossipdp.runtime.link.region import Allocation, Region

def made():
    allocation = Allocation(100_000)
    allocation.step()
    region = Region(allocation.fd, allocation.size, allocation.token)
    allocation.close()
    return region

def mapped():
    return "gossipdp region" in Path("/proc/self/maps").read_text()

def child(region, kept):
    assert not mapped(), "the child holds the memory"
    region.buffers[0][:] = 1.0
    region.buffers[1][-1] = 1.0
    # By and by the child maps something else there.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    there = libc.mmap(address, 4096, 3, 0x100022, -1, 0)  # readable, writable; private, anonymous, nowhere else
    assert there == address, os.strerror(ctypes.get_errno())
    ctypes.memset(there, 7, 4096)
    del region, kept[:]
    gc.collect()
    assert ctypes.string_at(there, 4096) == b"\\x07" * 4096

region, other = made(), made()
kept, address = [*other.buffers], other.buffers[0].ctypes.data
del other
if (pid := os.fork()) == 0:
    code = 1
    try:
        child(region, kept)
        code = 0
    except AssertionError:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
status = os.waitpid(pid, 0)[1]
assert status == 0, f"the child ended with {status}"
assert not region.buffers[0].any() and not region.buffers[1].any() and mapped()
del region, kept[:]
gc.collect()
assert not mapped()
"""


def test_forked_child_neither_keeps_nor_touches_nor_unmaps_the_memory() -> None:
    """Runs in its own process with one thread, because it forks."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", FORKS], check=False, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
