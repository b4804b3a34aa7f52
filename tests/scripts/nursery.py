"""Forks training scripts, so that they share one import of torch: `nursery.py SOCKET`.

A connection asks for one process by a JSON object in one line: {"script", "argv", "environment", "log"}. The process
has the connection as standard input and output, and "log" as standard error. Its last line is {"exit": CODE}.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import sys

import torch
import torch._dynamo  # the first optimizer of a process imports it, which takes half a second

import gossipdp.training.attach  # noqa: F401
import peers.control  # noqa: F401

_ALIVE: list[object] = []


def child(connection: socket.socket) -> None:
    with connection.makefile("rb") as lines:
        asked = json.loads(lines.readline())
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((connection.fileno(), 0), (connection.fileno(), 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(asked["environment"])
    sys.argv[:] = [asked["script"], *asked["argv"]]
    sys.path.insert(0, os.path.dirname(asked["script"]))
    code = run(asked["script"])
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, json.dumps({"exit": code}).encode() + b"\n")
    os._exit(0)


def run(script: str) -> int:
    """As the interpreter runs a script: an uncaught error goes to `sys.excepthook`, then the exit functions run."""
    try:
        # A script's own variables live until it is over, functions at exit included.
        _ALIVE.append(runpy.run_path(script, run_name="__main__"))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException as error:
        code, sys.last_value = 1, error
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    atexit._run_exitfuncs()
    return code


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the children
    path = sys.argv[1]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            child(connection)
        connection.close()


if __name__ == "__main__":
    main()
