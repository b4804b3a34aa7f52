"""Logging of the daemon and the supervisor, as text or as JSON lines.

A JSON line names the peer and, where there is one, the exchange. `initiator` and `exchange` are the same in the logs of
both peers; `id` is what the other peer's lines call `partner`. No secret may be logged.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from gossipdp.protocol.wire.messages import printable

__all__ = ["configure"]

FIELDS = ("code", "round", "exchange", "initiator", "partner")


def message_of(record: logging.LogRecord) -> str:
    """The message of `record`. Its arguments may come from other peers, so control characters are replaced."""
    if isinstance(record.args, tuple):
        args = tuple(printable(value) if isinstance(value, str) else value for value in record.args)
        return str(record.msg) % args if args else str(record.msg)
    return record.getMessage()


class JsonLines(logging.Formatter):
    def __init__(self, peer: str, id: str) -> None:
        super().__init__()
        self._peer = {"peer": peer, "id": id} if id else {"peer": peer}

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
    def __init__(self, peer: str) -> None:
        super().__init__()
        self._peer = peer

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f" {record.levelname.lower()}:"
        text = f"{clock} {self._peer}{level} {message_of(record)}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(peer: str, style: str, *, id: str = "", verbose: bool = False) -> None:
    """Log to standard error.

    Args:
        peer: name in every line.
        style: "text" or "json".
        id: the peer's id in hexadecimal; empty if unknown.
        verbose: log every exchange.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(peer, id) if style == "json" else Text(peer))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("gossipdp").setLevel(logging.DEBUG if verbose else logging.INFO)
