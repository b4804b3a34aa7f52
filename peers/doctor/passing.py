"""Which packets pass to a member and from it, where large ones are lost.

Both directions are tried, so doctor tells the same at both ends of a way. Sizes are those of whole IP packets in bytes,
with the headers of IP and TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import TracebackType
from typing import Final, NamedTuple

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import LinkUp
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import Identity
from peers.doctor.talk import Network, Talk

__all__ = ["DIRECTIONS", "LEAST", "Passing", "Relay", "Trials", "search"]


LEAST: Final = 512
"""bytes of the smallest packet that is tried; messages that make a link fit in it"""
WAVE: Final = 12
"""trials at once: three waves find one size among 1,000"""
HEADERS: Final = {socket.AF_INET: 40, socket.AF_INET6: 60}
"""bytes of the headers of IP and TCP. TCP's options count as part of a segment."""


class Relay:
    """Leads from `address` on loopback to `target`, by packets of at most `packet` bytes. Use it as a context.

    Its connections announce a small segment size (TCP_MAXSEG, tcp(7)), so both ends send packets of that size at most
    on them. No privilege is needed, and the member takes no part.
    """

    def __init__(self, target: str, packet: int) -> None:
        host, port = split_address(target)
        self._target = (host, port)
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._segment = packet - HEADERS[self._family]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="gossipdp-relay", daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()  # the runner ends what still relays

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        with self._listener:
            self._listener.setblocking(False)
            accepting = asyncio.create_task(self._accept())
            await self._over.wait()
            accepting.cancel()

    async def _accept(self) -> None:
        relays = set()
        while True:
            near, _ = await self._loop.sock_accept(self._listener)
            relays.add(asyncio.create_task(self._relay(near)))

    async def _relay(self, near: socket.socket) -> None:
        with near, socket.socket(self._family, socket.SOCK_STREAM) as there, contextlib.suppress(OSError):
            for end in (near, there):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, self._segment)
            await self._loop.sock_connect(there, self._target)
            await asyncio.gather(self._pass_on(near, there), self._pass_on(there, near))

    async def _pass_on(self, source: socket.socket, drain: socket.socket) -> None:
        while piece := await self._loop.sock_recv(source, 1 << 16):
            await self._loop.sock_sendall(drain, piece)
        drain.shutdown(socket.SHUT_WR)


def search(lost: int, passes: Callable[[int], bool | None], until: float) -> tuple[int, int]:
    """The largest size that passes, and the smallest that does not. They are neighbours if the time is enough.

    Args:
        lost: a size that does not pass.
        passes: tries a size; None if the trial tells nothing. Threads call it.
        until: time.monotonic() after which no wave of trials begins.

    Returns:
        Both sizes; the first is 0 if none has passed.
    """
    best = 0
    with ThreadPoolExecutor(WAVE, thread_name_prefix="gossipdp-mtu") as pool:
        while lost - (least := best or LEAST - 1) > 1 and time.monotonic() < until:
            sizes = sorted({least + max(1, (lost - least) * part // (WAVE + 1)) for part in range(1, WAVE + 1)})
            found = dict(zip(sizes, pool.map(passes, sizes), strict=True))
            if set(found.values()) == {None}:
                break
            best = max([best, *(size for size, passed in found.items() if passed)])
            lost = min([lost, *(size for size, passed in found.items() if passed is False and size > best)])
    return best, lost


DIRECTIONS: Final = ("to", "from")
"""of packets, as seen from here: to the member, and from it"""
TRIAL: Final = 0.8
"""seconds for the answer to a packet on trial, and `TRIAL_TRIPS` round trips: it may be sent again twice"""
TRIAL_TRIPS: Final = 4
MOST_TRIAL: Final = 1.5
FIRST: Final = 2
"""times as long is waited for the first packet of a direction: if it is lost, the direction is wrong"""
TRIALS: Final = 3.5
"""seconds after which no more trials of a direction begin"""


class Passing(NamedTuple):
    """What passes in one direction.

    passes: bytes of the largest packet that passed, where large ones are lost; 0: none was found.
    lost: bytes of the smallest one that was lost; None: large messages pass.
    """

    passes: int = 0
    lost: int | None = None


class Trials:
    """Tries packets on the way to `target`.

    Args:
        packet: bytes of a packet of full size.
        rtt: seconds.
    """

    def __init__(self, network: Network, target: str, packet: int, rtt: float) -> None:
        self._network, self._target, self._packet = network, target, packet
        self._patience = min(MOST_TRIAL, TRIAL + TRIAL_TRIPS * rtt)

    def both_ways(self, known: Mapping[str, Passing]) -> dict[str, Passing]:
        """What passes in each direction; a direction in which no link came up is left out.

        Args:
            known: what large messages have told about some directions.
        """

        def tried(direction: str) -> Passing | None:
            found = known.get(direction) or self._whole(direction)
            return found if found is None or found.lost is None else self._narrowed(direction)

        with ThreadPoolExecutor(len(DIRECTIONS), thread_name_prefix="gossipdp-mtu") as pool:
            found = dict(zip(DIRECTIONS, pool.map(tried, DIRECTIONS), strict=True))
        return {direction: each for direction, each in found.items() if each is not None}

    def _whole(self, direction: str) -> Passing | None:
        """Whether a packet of full size passes; None if no link came up."""
        passes = self._pass(direction, self._packet, FIRST * self._patience)
        return None if passes is None else Passing() if passes else Passing(0, self._packet)

    def _narrowed(self, direction: str) -> Passing:
        """The largest packet that passes where one of full size is lost."""
        until = time.monotonic() + TRIALS
        return Passing(*search(self._packet, lambda size: self._pass(direction, size, self._patience), until))

    def _pass(self, direction: str, size: int, patience: float) -> bool | None:
        """Whether packets of `size` bytes pass, with an answer within `patience` seconds; None without a link."""
        with closing(Talk(self._network, Identity.generate())) as talk, Relay(self._target, size) as relay:
            up = talk.dial(relay.address, 2.0 * patience)
            if not isinstance(up, LinkUp):
                return None
            send, back = (2 * size, 0) if direction == "to" else (0, 2 * size)
            return talk.ask(up.peer, Lane.DATA, send=send, back=back, patience=patience) is not None
