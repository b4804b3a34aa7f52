"""This host without the network: Python, torch and CUDA, open files, memory, the port, and the file systems."""

from __future__ import annotations

import errno
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.descriptors import ENOUGH, shares
from gossipdp.runtime.files import Files
from gossipdp.runtime.free_memory import free_memory
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.room import Room
from peers.doctor.findings import Finding, fine, grey, red, yellow

__all__ = ["FEW_LINKS", "disk", "files", "memory", "port", "python", "torch"]


WRITTEN: Final = 8 << 20
"""bytes written for the trial"""
LITTLE: Final = 64 << 20
"""bytes without which a daemon cannot keep its own small files and logs"""
SLOW: Final = 20e6
"""bytes a second below which checkpoints take long"""
SLOW_SYNC: Final = 1.0
"""seconds of one fsync above which the daemon's own small files hold it up"""


def disk(folder: Path, needed: int, files: Files | None = None, now: Callable[[], float] = time.monotonic) -> Finding:
    """Examine the file system of `folder`, which need not exist. A small file is written there, and removed.

    Args:
        needed: bytes of a checkpoint and of spilled vectors; 0 if the model's size is not known.
    """
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    free = (files or Files()).free(place)
    about, room = f"disk of {place}", f"{free / 1e9:.1f} GB free" if free >= 1e9 else f"{free / 1e6:.0f} MB free"
    do = "delete old files, or name another folder: [checkpoint] dir, or --home DIR"
    if free < max(LITTLE, needed):
        wanted = f", and this model needs {needed / 1e9:.1f} GB" if needed > LITTLE else ""
        return red(about, "disk-full", room + wanted, do)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".gossipdp-doctor-") as trial:
            began = now()
            trial.write(os.urandom(WRITTEN))
            trial.flush()
            os.fsync(trial.fileno())
            first = now() - began
            trial.write(b"0")
            trial.flush()
            os.fsync(trial.fileno())
            sync = now() - began - first
    except OSError as error:
        fault = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "disk-fails"
        return red(about, fault, f"a file cannot be written: {error.strerror}; {room}", do)
    speed = WRITTEN / max(first, 1e-6)
    said = f"{room}, {speed / 1e6:.0f} MB/s, fsync {sync * 1e3:.0f} ms"
    if speed < SLOW or sync > SLOW_SYNC:
        return yellow(
            about, "disk-slow", said, "put home and checkpoints on a local disk: [checkpoint] dir, --home DIR"
        )
    return fine(about, said)


TORCH_SECONDS: Final = 12.0
"""seconds for the import of torch and one small kernel"""
FEW_LINKS: Final = 32
"""links below which a daemon falls short in a network of usual size; it wants 128"""
TRIAL: Final = """
import json, sys
import torch
told = {"torch": torch.__version__, "gpus": [], "built": torch.version.cuda or torch.version.hip or ""}
if told["built"]:
    print("GPU", flush=True)
for number in range(torch.cuda.device_count()):
    device = f"cuda:{number}"
    a = torch.ones(64, 64, device=device)
    assert float((a @ a).sum()) == 64.0 ** 3
    pinned = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    assert float(pinned.to(device, non_blocking=True).sum()) == float(pinned.sum())
    free, total = torch.cuda.mem_get_info(number)
    told["gpus"].append([torch.cuda.get_device_name(number), free, total])
print(json.dumps(told))
"""


class Trial(msgspec.Struct):
    """What the trial prints."""

    torch: str
    built: str
    gpus: list[tuple[str, int, int]]


def python() -> Finding:
    """The interpreter."""
    return fine("Python", f"{platform.python_version()} ({sys.executable})")


def torch(argv: Sequence[str] = (sys.executable, "-c", TRIAL), patience: float = TORCH_SECONDS) -> Finding:
    """Import torch in a process of its own. Run a small kernel and a copy from pinned memory on each GPU."""
    try:
        ran = subprocess.run([*argv], capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired as slow:
        if not slow.stdout:
            do = "run `gossipdp doctor` again when the host is less busy; else check the disk that holds torch"
            return yellow("torch", "torch-slow", f"not loaded within {patience:g} s, so no GPU was tried", do)
        do = "see `nvidia-smi` and the kernel's log (dmesg): a GPU that hangs needs a reset, or the host a restart"
        return red("torch", "torch-hangs", f"no result of a small kernel within {patience:g} s", do)
    last = printable((ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1])[:200]
    if ran.returncode:
        if "No module named 'torch'" in last:
            return yellow(
                "torch", "no-torch", "not installed beside gossipdp", "install torch; the daemon runs without it"
            )
        do = "run `python -c 'import torch; torch.ones(1, device=\"cuda\")'`, and fix the driver or the build of torch"
        return red("torch", "torch-fails", last, do)
    told = msgspec.json.decode(ran.stdout.strip().splitlines()[-1], type=Trial)
    if told.gpus:
        names = ", ".join(f"{name} ({free / 1e9:.0f} of {total / 1e9:.0f} GB free)" for name, free, total in told.gpus)
        return fine("torch", f"{told.torch}; a kernel and a pinned copy ran on {names}")
    if told.built:
        do = "see `nvidia-smi`: without it, install the driver or give the container the GPU (--gpus all)"
        return yellow("torch", "no-gpu", f"{told.torch} is built for CUDA {told.built}, but finds no GPU", do)
    return fine("torch", f"{told.torch}, built for the CPU only")


def files(limits: tuple[int, int] | None = None) -> Finding:
    """Open files, as the limits of this process allow the daemon.

    Args:
        limits: soft and hard limit; by default those of this process.
    """
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = max(soft, min(ENOUGH, hard))
    links = shares(usable).links
    said = f"{usable:,} at most, enough for {links} links"
    do = "raise it: `ulimit -n 8192`, LimitNOFILE=8192 in a systemd unit, or --ulimit nofile=8192 of the container"
    if links < FEW_LINKS:
        return red("open files", "few-files", said, do)
    return fine("open files", said) if links >= 128 else yellow("open files", "some-files", said, do)


def memory(room: Room, plan: MemoryPlan, parameters: int) -> Finding:
    """Whether a model of `parameters` parameters fits; 0 if the size is not known."""
    if not parameters:
        free = free_memory()
        said = "free memory is unknown" if free is None else f"{free.bytes / 1e9:.1f} GB available"
        return grey("memory", f"{said}; --parameters N shows whether a model fits")
    if (short := room.shortage(parameters, 0, attaches=True)) is not None:
        return red("memory", "no-memory", " ".join(short.seen.split()), short.do)
    return fine("memory", f"{parameters:,} parameters need {plan.need(parameters).total / 1e9:.1f} GB, which are free")


def port(number: int, *, alive: bool) -> Finding:
    """Whether the peer's port is free, and who holds it if not.

    Args:
        number: TCP port; 0 if this peer does not listen on a fixed one.
        alive: the daemon of this home runs, and holds it.
    """
    if not number:
        return grey("port", "[network] listen names no fixed port")
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::", number))
            free = True
        except OSError:
            free = False
    if alive:
        return fine("port", f"{number}, held by the daemon")
    if free:
        return fine("port", f"{number} is free")
    do = f"end that program, or choose another port: --listen tcp://*:{number + 1}"
    return red("port", "port-taken", f"{number} is taken by {_holder(number)}", do)


def _holder(number: int) -> str:
    """The program that listens on a TCP port of this host, as text."""
    try:
        found = [each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == number]
        pids = sorted({each.pid for each in found if each.status == psutil.CONN_LISTEN and each.pid})
        if pids:
            return ", ".join(f"{printable(psutil.Process(pid).name())} (process {pid})" for pid in pids)
    except (psutil.Error, OSError):
        pass
    return "another program, of another user"
