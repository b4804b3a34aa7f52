"""Shared memory and processes that fork: a data loader's worker, which may live longer than the region."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
