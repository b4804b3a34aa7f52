"""This host without the network: Python, torch and CUDA, open files, memory, and the port."""

from __future__ import annotations

import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
import psutil

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.descriptors import ENOUGH, shares
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.room import Room
from peers.doctor.findings import Finding, fine, grey, red, yellow

__all__ = ["FEW_LINKS", "files", "memory", "port", "python", "torch"]

TORCH_SECONDS: Final = 12.0
"""seconds for the import of torch and one small kernel"""
FEW_LINKS: Final = 32
"""links below which a daemon falls short in a network of usual size; it wants 128"""
TRIAL: Final = """
import json, sys
import torch
told = {"torch": torch.__version__, "gpus": [], "built": torch.version.cuda or torch.version.hip or ""}
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
    except subprocess.TimeoutExpired:
        do = "see `nvidia-smi` and the kernel's log (dmesg): a GPU that hangs needs a reset, or the host a restart"
        return red("torch", "torch-hangs", f"no result of a small kernel within {patience:g} s", do)
    last = printable((ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1])[:200]
    if ran.returncode:
        if "No module named 'torch'" in last:
            return yellow(
                "torch", "no-torch", "not installed beside gossipdp", "install torch; the daemon runs without it"
            )
        do = "run `python -c 'import torch; torch.ones(1, device=\"cuda\")'`, and mend the driver or the build of torch"
        return red("torch", "torch-fails", last, do)
    told = msgspec.json.decode(ran.stdout.strip().splitlines()[-1], type=Trial)
    if told.gpus:
        names = ", ".join(f"{name} ({free / 1e9:.0f} of {total / 1e9:.0f} GB free)" for name, free, total in told.gpus)
        return fine("torch", f"{told.torch}; a kernel and a pinned copy ran on {names}")
    if told.built:
        do = "see `nvidia-smi`: without it, install the driver or give the container the GPU (--gpus all)"
        return yellow("torch", "no-gpu", f"{told.torch} is built for CUDA {told.built}, and finds no GPU", do)
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
        free = psutil.virtual_memory().available
        return grey("memory", f"{free / 1e9:.1f} GB available; --parameters N tells whether a model fits")
    if (short := room.shortage(parameters, 0, attaches=True)) is not None:
        return red("memory", "no-memory", " ".join(short.seen.split()), short.do)
    return fine("memory", f"{parameters:,} parameters need {plan.need(parameters).total / 1e9:.1f} GB, which are there")


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
    except psutil.Error:
        pass
    return "another program, of another user"
