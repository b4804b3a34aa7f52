"""Forwards TCP connections, as the port map of a rented container does: ``python forwarder.py FROM TO``.

Run as a script, it imports nothing of the project and starts at once.
"""

import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()


def main(here: str, there: str) -> None:
    near, far = ((host, int(port)) for host, _, port in (each.rpartition(":") for each in (here, there)))
    with socket.create_server(near) as server:
        while True:
            inside, _ = server.accept()
            try:
                outside = socket.create_connection(far, timeout=5)
            except OSError:
                inside.close()
                continue
            outside.settimeout(None)
            for pair in ((inside, outside), (outside, inside)):
                threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
