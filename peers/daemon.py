"""The process of the peer daemon: arguments, start, errors and exit codes.

`supervisor` runs it as ``python -m peers.daemon --home HOME``. It outlives training processes. Nothing of the protocol,
and no torch, may be here.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossipdp.algorithms import kernels as ledger_kernels
from gossipdp.codecs import kernels
from gossipdp.errors import RETRY, GossipdpError
from gossipdp.runtime import descriptors
from gossipdp.runtime.home_paths import expanded
from gossipdp.runtime.network.duplicate_identity import OvertakenError
from gossipdp.runtime.network.incarnation import count_from
from gossipdp.runtime.node import MemoryShortError
from peers import home as homes
from peers import logs
from peers.assembly import build
from peers.environment import of_container
from peers.log_file import log_file
from peers.memory import keep_memory
from peers.rest import end_unguarded
from peers.services import with_code
from peers.waits import told

log = logging.getLogger("gossipdp.daemon")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers.daemon", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override the file")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--verbose", action="store_true", help="log every exchange")
    parser.add_argument("--supervisor", type=int, default=0, metavar="PID", help="told by SIGUSR1 to end training")
    parser.add_argument("--trains", action="store_true", help="a training command is started once this daemon listens")
    return parser.parse_args(argv)


def overrides(pairs: Sequence[str]) -> Mapping[str, str]:
    parted = [pair.partition("=") for pair in pairs]
    return {key: value for key, _, value in parted}


def failed(error: GossipdpError) -> int:
    """Log the error. Return the exit code.

    A disk or the memory may have room later. A daemon that members take for an older copy of itself needs a new
    incarnation.
    """
    log.error("%s", error, extra={"code": error.code})
    again = error.code in ("GD-505", "GD-602") or isinstance(error, OvertakenError | MemoryShortError)
    return RETRY if again else error.exit_code


def overtaken(home: Path, error: OvertakenError) -> int:
    """Save an incarnation above all that members have seen, for the next start. Return the exit code."""
    try:
        count_from(home, error.incarnation)
    except OSError as trouble:
        return failed(with_code(trouble))
    except GossipdpError as trouble:
        return failed(trouble)
    return failed(error)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run(parse(sys.argv[1:] if argv is None else argv))
    except Exception:  # the interpreter would tell standard error alone
        log.exception("this is a bug in gossipdp: please report it with the lines below")
        return 70


def run(arguments: argparse.Namespace) -> int:
    """Run the daemon until its peer has left. Return the exit code."""
    logs.configure(arguments.home.name, arguments.log_format, verbose=arguments.verbose)
    keep_memory()
    try:
        home = expanded(arguments.home).absolute()
        file, name = log_file(home, "peer"), homes.known_name(home, overrides(arguments.set))
        logs.configure(name, arguments.log_format, verbose=arguments.verbose, file=file)
        logs.open_audit(home)
        descriptors.claim()
        config = homes.read_config(home, overrides(arguments.set))
        with told("the kernels to be loaded; the first start of a version compiles them", log.info):
            ledger_kernels.warm_up()  # before other peers can wait for this one
            kernels.warm_up()
        with told("the home to be read and this peer's addresses to be found", log.info):
            node = build(
                home, config, of_container(os.environ), supervisor=arguments.supervisor, trains=arguments.trains
            )
        me = node.peer.view.me
        logs.configure(me.name, arguments.log_format, id=me.id.hex(), verbose=arguments.verbose, file=file)
    except (GossipdpError, OSError) as error:
        return failed(with_code(error))
    try:
        node.run()
    except GossipdpError as error:
        return overtaken(home, error) if isinstance(error, OvertakenError) else failed(error)
    finally:
        node.close()
        end_unguarded(home, arguments.supervisor)
    log.info("left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
