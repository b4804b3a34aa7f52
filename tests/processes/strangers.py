"""TCP connections that are opened again when they close: `python strangers.py COUNT BYTES PORT [PORT ...]`.

Each sends the first BYTES bytes of a handshake whose first command never ends. After COUNT connections to each port the
script prints a line. It goes on until standard input ends.
"""

import resource
import select
import socket
import sys

BEGIN = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x06" + (1 << 20).to_bytes(8)
"""greeting of ZMTP 3.1, and the head of a command of 1 MiB"""


def main() -> None:
    count, size, *ports = map(int, sys.argv[1:])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    poll = select.epoll()
    poll.register(0, select.EPOLLIN)
    open_now: dict[int, tuple[socket.socket, int]] = {}

    def connect(port: int) -> None:
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        open_now[stranger.fileno()] = stranger, port
        poll.register(stranger, select.EPOLLHUP | select.EPOLLRDHUP | (select.EPOLLOUT if size else 0))

    for port in ports:
        for _ in range(count):
            connect(port)
    print("open", flush=True)
    while True:
        for ready, happened in poll.poll():
            if ready == 0:
                return
            if happened == select.EPOLLOUT:
                poll.modify(ready, select.EPOLLHUP | select.EPOLLRDHUP)
                open_now[ready][0].send(BEGIN.ljust(size, b"\0")[:size])
                continue
            stranger, port = open_now.pop(ready)
            stranger.close()
            connect(port)


main()
