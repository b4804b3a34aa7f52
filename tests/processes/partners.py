"""Members that flood a daemon with pings and vanish: `python partners.py PORT SECRET NETWORK ROUNDS PARTNERS`.

Each round forks PARTNERS processes. Each process connects to the daemon, sends 500 pings, reports it on a pipe, and is
killed before the pings are read. A line of standard output ends each round.
"""

import os
import signal
import sys
from pathlib import Path

from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import Lane, Ping
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.transport import Transport

PING = encode(Ping(1))


def flood(port: int, secret: NetworkSecret, network: str, full: int, alive: int) -> None:
    limits = TransportLimits(queue_messages=64)
    partner = Transport(
        Identity.generate(), secret, network=network, run=b"", incarnation=1, listen=None, limits=limits
    )
    parent = os.getppid()
    while partner.counters.sent_messages.total() < 500:
        if os.getppid() != parent:
            os._exit(1)
        for _ in range(50):
            partner.send(b"", f"127.0.0.1:{port}", Lane.CONTROL, PING)
        partner.poll(0 if partner.links() else 0.01)
    os.write(full, b"!")
    os.read(alive, 1)  # ends with the parent
    os._exit(1)


def main() -> None:
    port, home, network, rounds, partners = sys.argv[1:]
    alive, own = os.pipe()
    for _ in range(int(rounds)):
        reading, writing = os.pipe()
        children = []
        for _ in range(int(partners)):
            if not (child := os.fork()):
                os.close(own)
                flood(int(port), NetworkSecret.load(Path(home)), network, writing, alive)
            children.append(child)
        os.close(writing)
        heard = b""
        while len(heard) < len(children):
            if not (more := os.read(reading, 64)):
                sys.exit("the daemon is gone")
            heard += more
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        os.close(reading)
        print("killed", flush=True)


main()
