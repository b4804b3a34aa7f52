"""Runs training scripts as processes that share one start: `nursery.py FIRST.json`, where imports are most of the time.

FIRST.json is {"imports": [module, ...], "children": [{"script", "argv", "environment", "log"}, ...]}. Imports and data
are loaded once. Every child is a fork that has them, with its own standard output and standard error. Exits with the
number of children that failed.
"""

import atexit
import importlib
import json
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer of a process imports it, and it takes half a second

import gossipdp.training.attach  # noqa: F401
from peers.jobs.byte_gpt import load_corpus

_ALIVE: list[object] = []


def child(script: str, argv: list[str], environment: dict[str, str], log: str) -> int:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    sys.argv[:] = [script, *argv]
    try:
        # A script's own variables live until its exit functions have run.
        _ALIVE.append(runpy.run_path(script, run_name="__main__"))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    first = json.loads(Path(sys.argv[1]).read_text())
    warnings.simplefilter("ignore")
    for name in first["imports"]:
        importlib.import_module(name)
    torch.set_num_threads(1)
    load_corpus()
    begun = []
    for each in first["children"]:
        sys.stdout.flush()
        if not (pid := os.fork()):
            code = child(each["script"], each["argv"], each["environment"], each["log"])
            # As at any script's end. What is left of this process's own end must not run.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        begun.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in begun)


if __name__ == "__main__":
    sys.exit(main())
