"""Logging of the daemon and the supervisor, as text or as JSON lines, to standard error and to a file in the home.

A line of text has date and time with the offset to UTC, level, peer and message. A JSON line names the peer and, where
there is one, the exchange. `initiator` and `exchange` are the same in the logs of both peers; `id` is what the other
peer's lines call `partner`. No secret may be logged.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TextIO

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.observability import audit
from peers.log_file import FOLDER, LogFile

__all__ = ["audit_file", "configure", "open_audit"]

FIELDS = ("code", "round", "exchange", "initiator", "partner")


def message_of(record: logging.LogRecord) -> str:
    """The message of `record`. Its arguments may come from other peers, so control characters are replaced."""
    if isinstance(record.args, tuple):
        args = tuple(printable(value) if isinstance(value, str) else value for value in record.args)
        return str(record.msg) % args if args else str(record.msg)
    return record.getMessage()


class JsonLines(logging.Formatter):
    def __init__(self, peer: str, id: str, process: str) -> None:
        super().__init__()
        self._peer = {"peer": peer, "id": id} if id else {"peer": peer}
        if process:
            self._peer["process"] = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            **self._peer,
            "message": message_of(record),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Text(logging.Formatter):
    def __init__(self, peer: str, process: str) -> None:
        super().__init__()
        self._peer = f"{peer} {process}" if process else peer

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="seconds")
        text = f"{at} {record.levelname:<7} {self._peer}: {message_of(record)}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class AuditLines(logging.Formatter):
    """JSON lines of the audit log."""

    def format(self, record: logging.LogRecord) -> str:
        about = getattr(record, "about", {})
        return json.dumps({"time": round(record.created, 3), "event": record.msg, **about}, ensure_ascii=False)


class StandardError(logging.StreamHandler[TextIO]):
    """Standard error, until nobody reads it any more: a terminal that has hung up, a pipe whose reader has ended."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(error := sys.exception(), OSError) and error.errno in (errno.EIO, errno.EPIPE):
            # Python would try once more to write the rest at the end, and exit with 120.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
        else:
            super().handleError(record)


def audit_file(home: Path) -> Path:
    """The audit log of the peer in `home`."""
    return home / FOLDER / "audit.jsonl"


def open_audit(home: Path) -> None:
    """Write the audit log of this process to a file in `home`. `configure` comes first: it tells of a full disk."""
    log = logging.getLogger(audit.LOGGER)
    for before in log.handlers:
        before.close()
    file = LogFile(audit_file(home), next(iter(logging.getLogger().handlers), StandardError(sys.stderr)))
    file.setFormatter(AuditLines())
    log.handlers[:] = [file]


def configure(
    peer: str, style: str, *, id: str = "", process: str = "", verbose: bool = False, file: Path | None = None
) -> None:
    """Log to standard error, and to a file.

    Args:
        peer: name in every line.
        style: "text" or "json", also of the file.
        id: the peer's id in hexadecimal; empty if unknown.
        process: name in the lines of another process than the peer's daemon.
        verbose: log every exchange.
        file: None for no file.
    """
    formatter = JsonLines(peer, id, process) if style == "json" else Text(peer, process)
    stream = StandardError(sys.stderr)
    handlers = [stream] if file is None else [stream, LogFile(file, stream)]
    for handler in handlers:
        handler.setFormatter(formatter)
    root = logging.getLogger()
    for before in root.handlers:
        if isinstance(before, LogFile):
            before.close()
    root.handlers[:] = handlers
    root.setLevel(logging.WARNING)
    logging.getLogger("gossipdp").setLevel(logging.DEBUG if verbose else logging.INFO)
