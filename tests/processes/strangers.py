"""TCP connections that are opened again when they close: `python strangers.py COUNT BYTES PORT [PORT ...]`.

Each sends BYTES bytes. After COUNT connections to each port the script prints a line. It goes on until standard input
ends.
"""

import resource
import select
import socket
import sys


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
                open_now[ready][0].send(b"\xff" * size)
                continue
            stranger, port = open_now.pop(ready)
            stranger.close()
            connect(port)


main()
