"""Asks the daemon for its status, as `gossipdp status` does: one line over its control socket, one line back."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from gossipdp.runtime import plain_json
from gossipdp.runtime.unix_sockets import address, socket_path

__all__ = ["ask_status"]

REQUEST: Final = b'{"verb":"status"}\n'
MOST: Final = 16 << 20
"""bytes of an answer"""


class _Answer(msgspec.Struct):
    reply: dict[str, Any]


def ask_status(home: Path, within: float = 5.0) -> dict[str, Any] | None:
    """The daemon's status as `gossipdp status --json` prints it. None if it does not answer within `within` seconds."""
    until, reply = time.monotonic() + within, bytearray()
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon,
            address(socket_path(home, "control.sock")) as where,
        ):
            # On a full backlog a non-blocking connect fails at once. A blocking one waits for SO_SNDTIMEO.
            patience = struct.pack("ll", int(within), int(within % 1 * 1e6))
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            daemon.connect(where)
            daemon.settimeout(within)
            daemon.sendall(REQUEST)
            while len(reply) <= MOST:
                daemon.settimeout(max(until - time.monotonic(), 0.001))
                if not (piece := daemon.recv(1 << 18)):
                    break
                reply += piece
        return plain_json.decode(bytes(reply), _Answer).reply
    except (OSError, ValueError):
        return None
