"""Does everything in a daemon that needs a descriptor while none is left, and prints the result of each.

`python short_of_descriptors.py HOME taken`: connections hold all descriptors but the reserve. `gone`: the reserve, too.
"""

import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from gossipdp.errors import GossipdpError
from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import Lane, Ping
from gossipdp.runtime import descriptors, files
from gossipdp.runtime.link import LinkServer
from gossipdp.runtime.link.data_client import data_path
from gossipdp.runtime.link.data_server import DataServer
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.network import resolver
from gossipdp.runtime.network.events import DialFailed, LinkUp
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.observability.http import HttpServer
from gossipdp.runtime.observability.memory_watch import MemoryWatch
from gossipdp.runtime.unix_sockets import socket_path
from peers.control import ControlServer
from peers.control import socket_path as control_path

LIMIT = 200


def tell(what: str, action: Callable[[], object]) -> None:
    try:
        print(f"{what}: {action() or 'done'}", flush=True)
    except GossipdpError as error:
        print(f"{what}: {error.code}", flush=True)


def main() -> None:
    home, state = Path(sys.argv[1]), sys.argv[2]
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    descriptors.claim()
    secret = NetworkSecret.generate()
    control, link = ControlServer(home), LinkServer(home)
    data = DataServer(home, lambda command: None, print)
    web = HttpServer("127.0.0.1:0", lambda environ, start: [start("200 OK", []) and b""][:0])
    limits = TransportLimits(connect=0.3, handshake=0.3)
    ours = Transport(Identity.generate(), secret, network="tiny", run=b"", incarnation=1, listen=None, limits=limits)
    there = Transport(Identity.generate(), secret, network="tiny", run=b"", incarnation=1, listen="tcp://127.0.0.1:0")
    watch = MemoryWatch(MemoryPlan(), 0, lambda: 0)
    unix = [socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, *[socket.SOCK_SEQPACKET] * 2)]
    reader = socket.socket()
    taken = []
    if state == "gone":
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break

    def dial() -> str:
        ours.send(b"", f"127.0.0.1:{there.port}", Lane.CONTROL, encode(Ping(1)))
        while True:
            there.poll(0)
            for event in ours.poll(0.01)[0]:
                if isinstance(event, DialFailed | LinkUp):
                    return getattr(event, "code", "up")

    def connect(end: socket.socket, path: Path, handle: Callable[[], object]) -> str:
        end.connect(str(path))
        handle()
        end.setblocking(False)
        try:
            return "closed" if end.recv(1) == b"" else "answered"
        except BlockingIOError:
            return "accepted"

    def scrape() -> str:
        reader.connect(web.address)
        reader.sendall(b"GET / HTTP/1.0\r\n\r\n")
        try:
            return reader.recv(8).decode() or "closed"
        except ConnectionResetError:
            return "closed"

    tell("memory", lambda: watch.look(1))
    tell("state", lambda: files.save_state(home / "state.json", 1))
    tell("control", lambda: connect(unix[0], control_path(home), control.handle))
    tell("link", lambda: connect(unix[1], socket_path(home), lambda: link.handle(link.filenos()[0])))
    tell("data", lambda: connect(unix[2], data_path(home), lambda: data.handle(data.filenos()[0])))
    tell("name", lambda: str(resolver.Resolver().look_up("x", "b\xfccher.invalid", 1)))
    tell("route", lambda: str(resolver.Resolver().look_up("x", "127.0.0.1", 1)[0].routable))  # type: ignore[index]
    tell("scrape", scrape)
    tell("dial", dial)
    os._exit(0)


main()
