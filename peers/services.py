"""What the daemon's I/O loop polls besides the peer: the control socket and signals."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gossipdp.config import Config
from gossipdp.errors import DataError, GossipdpError, refused_here
from gossipdp.protocol.admission.register import Admission
from gossipdp.runtime.node import Node
from gossipdp.runtime.observability import audit
from peers import decisions, invites
from peers.control import ControlServer, Request
from peers.final import FinalFiles

__all__ = ["Control", "Signals", "with_code"]

log = logging.getLogger("gossipdp.daemon")


class Control:
    """Answers requests on the control socket, in the I/O loop."""

    def __init__(
        self, server: ControlServer, node: Node, admission: Admission, home: Path, config: Config, final: FinalFiles
    ) -> None:
        self._server, self._node, self._admission = server, node, admission
        self._home, self._config, self._final = home, config, final

    def filenos(self) -> Sequence[int]:
        return self._server.filenos()

    def tick(self, now: float) -> None:
        self._server.renew()

    def close(self) -> None:
        self._server.close()

    def handle(self, fd: int) -> None:
        for request in self._server.handle(fd):
            try:
                if (answer := self._answer(request)) is not None:
                    request.reply(answer)
            except (GossipdpError, OSError) as error:
                request.fail(with_code(error))

    def _answer(self, request: Request) -> dict[str, Any] | None:
        """The answer to a request. None if it comes later."""
        match request.verb:
            case "status":
                return self._node.describe()
            case "members":
                return {"members": self._node.status.members()}
            case "invite":
                seeds = self._node.status.seeds()
                if request.args.get("name"):
                    audit.record("invited", name=request.args["name"], seeds=", ".join(seeds))
                    return {"seeds": seeds}
                path = invites.write_invite(self._home, seeds, self._config)
                audit.record("invited", seeds=", ".join(seeds))
                return {"path": str(path), "seeds": seeds}
            case "decisions":
                return decisions.describe(self._admission, self._node.generation)
            case "decide":
                stands, saved = self._node.decide(decisions.decode(**request.args))
                return {"stands": stands, "saved": saved}
            case "checkpoint":
                begun = self._node.checkpoint(partial(self._saved, request))
                return None if begun else {"saved": ""}
            case "started":
                self._node.status.command_started(again=bool(request.args.get("again")))
                return self._node.describe()
            case "finish":
                return self._finish(**request.args)
        self._node.leave()
        return {"leaving": True}

    def _finish(self, calls: bool = False, wait: float | None = None, base: str = "") -> dict[str, Any]:
        """End the run in order. calls: ask all members to do so too."""
        if not self._node.peer.view.ready and calls:
            seen, do = "this peer does not have the model yet", "finish on another member, or `gossipdp leave`"
            raise DataError("GD-604", "this peer has no model to finish with", seen=seen, do=do)
        if base:
            self._final.use(base)
        self._node.finish(calls=calls, wait=wait)
        return {"finishing": True}

    @staticmethod
    def _saved(request: Request, outcome: Path | DataError) -> None:
        request.reply({"saved": str(outcome)}) if isinstance(outcome, Path) else request.fail(outcome)


class Signals:
    """Hands SIGTERM and SIGINT to the I/O loop through a descriptor. SIGHUP is ignored: the supervisor acts on it.

    Args:
        supervisor: pid of the supervisor that started this daemon; 0 without one.
    """

    def __init__(self, node: Node, supervisor: int = 0) -> None:
        self._node, self._supervisor = node, supervisor
        self._read, write = socket.socketpair()
        for end in (self._read, write):
            end.setblocking(False)
        self._write = write
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def filenos(self) -> Sequence[int]:
        return [self._read.fileno()]

    def tick(self, now: float) -> None:
        pass

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()

    def handle(self, fd: int) -> None:
        numbers = self._read.recv(64)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            killed = self._supervisor and self._supervisor != os.getppid()
            log.info("leaving: %s", "the supervisor was killed" if killed else "told to stop")
            self._node.leave()


def with_code(error: GossipdpError | OSError) -> GossipdpError:
    """`error`, or GD-505 for an error of the operating system."""
    if isinstance(error, GossipdpError):
        return error
    return refused_here(error)
