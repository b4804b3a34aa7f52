"""Start a program of the package `peers` that is installed beside this package.

    python -P -m gossipdp.launch peers.daemon --home HOME

A module of the user's that is called `peers`, on PYTHONPATH or beside the script, does not shadow it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path

from gossipdp.errors import HardwareError, refuse_other_systems

__all__ = ["command", "main"]


def command(module: str) -> list[str]:
    """The words that run a module of `peers` in a process of its own. Its arguments follow."""
    return [sys.executable, "-P", "-m", "gossipdp.launch", module]


def main() -> int:
    """Run the command line. It is the installed command `gossipdp`.

    Returns:
        The exit status.
    """
    try:
        refuse_other_systems()
    except HardwareError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    _find_peers()
    run: Callable[[], int] = import_module("peers.cli").main
    return run()


def _find_peers() -> None:
    """Let `import peers` find the package beside this one. Nothing in gossipdp imports it by a statement."""
    if "peers" in sys.modules:
        return
    folder = Path(__file__).resolve().parents[1] / "peers"
    spec = util.spec_from_file_location("peers", folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    sys.modules["peers"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["peers"])


if __name__ == "__main__":
    _find_peers()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
