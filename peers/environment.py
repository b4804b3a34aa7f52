"""The environments of the training command, of the daemon and of the container.

The training command keeps what the user set. Some of these variables do harm in the daemon: prometheus_client writes
files, numba stops compiling, Python changes exit codes. Nothing here may start a process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gossipdp
from gossipdp.runtime.network import port_maps

__all__ = ["of_container", "of_daemon", "of_training"]

FIRST_PROCESS: Final = Path("/proc/1/environ")

COMPILED: Final = "compiled"
"""Folder of the home for compiled kernels, used if no other place can be written."""
DROPPED: Final = frozenset(
    {
        "PYTHONASYNCIODEBUG", "PYTHONBREAKPOINT", "PYTHONDEBUG", "PYTHONDEVMODE", "PYTHONDUMPREFS", "PYTHONINSPECT",
        "PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONOPTIMIZE", "PYTHONPERFSUPPORT", "PYTHONPROFILEIMPORTTIME",
        "PYTHONSTARTUP", "PYTHONTRACEMALLOC", "PYTHONVERBOSE", "PYTHONWARNDEFAULTENCODING", "PYTHONWARNINGS",
        "prometheus_multiproc_dir",
    }
)  # fmt: skip
"""Variables that the daemon does not inherit."""
DROPPED_PREFIXES: Final = ("PROMETHEUS_", "NUMBA_", "LLVMLITE_", "PYZMQ_", "PSUTIL_")
KEPT: Final = frozenset({"NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_NUM_THREADS"})
"""Exceptions, which describe the host."""


def of_training(inherited: Mapping[str, str], home: Path) -> dict[str, str]:
    """The training command's environment: `inherited`, and the variables that lead it to the daemon of `home`."""
    # The invite holds the network's secret, and no process on this host needs it any longer.
    environment = {key: value for key, value in inherited.items() if key != "GOSSIPDP_INVITE"}
    environment["GOSSIPDP_HOME"] = str(home.absolute())
    # torchrun's agent keeps one store, with all its keys, across restarts. Restarted ranks would dial the addresses
    # (with NCCL, the unique id) of dead ranks, and may wait until the group's timeout.
    environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return environment


def of_daemon(inherited: Mapping[str, str], home: Path) -> dict[str, str]:
    """The daemon's environment: the training command's, without variables that change the daemon's libraries."""
    environment = {key: value for key, value in of_training(inherited, home).items() if not _dropped(key)}
    chosen = environment.get("NUMBA_CACHE_DIR")
    if not (_writable(Path(chosen)) if chosen else _keeps_compiled(environment)):
        environment["NUMBA_CACHE_DIR"] = str(home.absolute() / COMPILED)
    return environment


def of_container(inherited: Mapping[str, str], first_process: Path = FIRST_PROCESS) -> dict[str, str]:
    """`inherited`, and the port map of the container's first process: a session over ssh does not inherit it.

    Args:
        first_process: the variables of the first process, each ended by a null byte.
    """
    try:
        pairs = [each.partition("=") for each in first_process.read_bytes().decode("utf-8", "replace").split("\0")]
    except OSError:  # another user's process
        pairs = []
    return {key: value for key, _, value in pairs if key.startswith(port_maps.PREFIXES)} | dict(inherited)


def _dropped(name: str) -> bool:
    return name in DROPPED or (name.startswith(DROPPED_PREFIXES) and name not in KEPT)


def _keeps_compiled(environment: Mapping[str, str]) -> bool:
    """Whether numba can write its cache beside the source or in this user's cache folder."""
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return _writable(Path(gossipdp.__file__).parent / "codecs") or (os.path.isabs(cache) and _writable(Path(cache)))


def _writable(folder: Path) -> bool:
    """Whether this process can write to `folder`, or make it."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)
