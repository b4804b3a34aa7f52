"""Dials through a SOCKS5 proxy (RFC 1928), for hosts that have no other way out.

libzmq 4.3.5 has an option for it, and aborts the process when the proxy refuses a target (`Bad file descriptor,
src/epoll.cpp`). So a thread makes each connection to the proxy, and passes bytes between it and a Unix socket that
libzmq dials. libzmq dials only once the proxy has reached the target, so its time-outs mean what they mean without a
proxy. CURVE is between the peers: the proxy sees ciphertext. Names go to the proxy as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gossipdp.errors import ConfigError
from gossipdp.runtime.network.dial_causes import Cause, DialFault
from gossipdp.runtime.network.host_port import join_address, split_address
from gossipdp.runtime.network.watch import Watch

__all__ = ["Proxy", "Reached", "Tunnels", "Unreached", "proxy_of"]

SCHEME: Final = "socks5://"
BUFFER: Final = 1 << 18
"""bytes read at once, and held in each direction"""
DO: Final = "see that the proxy runs, and that [network] proxy names it"
REPLIES: Final = {
    1: ("the proxy failed", None),
    2: ("the proxy does not allow it", None),
    3: ("unreachable, says the proxy", DialFault.NO_ROUTE),
    4: ("unreachable, says the proxy", DialFault.NO_ROUTE),
    5: ("refused, says the proxy", DialFault.REFUSED),
    6: ("timed out, says the proxy", DialFault.DROPPED),
    7: ("the proxy makes no connections", None),
    8: ("the proxy knows no such address", None),
}
"""reply of the proxy -> what is told, and the fault (RFC 1928 section 6)"""


class Proxy(NamedTuple):
    """Where a SOCKS5 proxy listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def proxy_of(text: str) -> Proxy | None:
    """The proxy of the setting `[network] proxy`; None for an empty one.

    Raises:
        ConfigError: the text is no ``socks5://host:port``.
    """
    if not text:
        return None
    where = text.removeprefix(SCHEME)
    if "@" in where:
        do = "let the proxy take this host without them, as `ssh -D` does"
        raise ConfigError("usage", "a proxy with user and password is not supported", seen=SCHEME + "...", do=do)
    if where == text:
        raise ConfigError("usage", "a proxy is socks5://host:port", seen=repr(text[:90]))
    return Proxy(*split_address(where))


@dataclass(frozen=True, slots=True)
class Reached:
    """The proxy has reached the target of this number. Dial `endpoint` within some seconds."""

    number: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """There is no way to the target of this number."""

    number: int
    cause: Cause


class _NoWay(Exception):
    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.text)
        self.cause = cause


class Tunnels(Watch[Reached | Unreached]):
    """Connections through a proxy.

    Args:
        patience: seconds until the proxy must have reached a target.
    """

    def __init__(self, proxy: Proxy, patience: float) -> None:
        self._proxy, self._patience = proxy, patience
        self._folder = Path(tempfile.mkdtemp(prefix="gossipdp-proxy-"))
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        super().__init__("gossipdp-proxy")

    def open(self, number: int, host: str, port: int) -> None:
        """Reach the target. `collect` tells what came of it."""
        self._loop.call_soon_threadsafe(self._begin, number, host, port)

    def drop(self, number: int) -> None:
        """The tunnel of this number is not wanted any more."""
        self._loop.call_soon_threadsafe(self._cancel, number)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, number: int, host: str, port: int) -> None:
        task = self._tasks[number] = self._loop.create_task(self._tunnel(number, host, port))
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def _tunnel(self, number: int, host: str, port: int) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            async with asyncio.timeout(self._patience):
                reader, writer = await self._connect()
                writers.append(writer)
                await _reach(reader, writer, host, port)
            near_reader, near_writer = await self._accept(number)
            writers.append(near_writer)
            await asyncio.gather(_pass(reader, near_writer), _pass(near_reader, writer))
        except TimeoutError:
            self._tell(Unreached(number, Cause("GD-101", "the proxy reaches it not in time", str(self._proxy), DO)))
        except _NoWay as error:
            self._tell(Unreached(number, error.cause))
        except (OSError, asyncio.IncompleteReadError):
            pass  # an end has closed its connection, and the other one is closed with it
        finally:
            for writer in writers:
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(*self._proxy, limit=BUFFER)
        except OSError as error:
            seen = f"{self._proxy}: {os.strerror(error.errno) if error.errno else error}"
            raise _NoWay(Cause("GD-101", "the proxy is not reached", seen, DO, DialFault.PROXY)) from None

    async def _accept(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Tell where libzmq is to dial, and wait for that."""
        path = self._folder / str(number)
        came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = self._loop.create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if came.done():
                writer.close()
            else:
                came.set_result((reader, writer))

        server = await asyncio.start_unix_server(accept, path, limit=BUFFER)
        self._tell(Reached(number, f"ipc://{path}"))
        try:
            return await asyncio.wait_for(came, self._patience)
        finally:
            server.close()
            path.unlink(missing_ok=True)


async def _reach(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Have the proxy connect to the target."""
    writer.write(b"\x05\x01\x00")
    try:
        version, method = await reader.readexactly(2)
        if version != 5:
            raise _NoWay(Cause("GD-101", "the proxy speaks no SOCKS5", do=DO, fault=DialFault.PROXY))
        if method != 0:
            do = "let the proxy take this host without user and password"
            raise _NoWay(Cause("GD-101", "the proxy wants a user and a password", do=do, fault=DialFault.PROXY))
        writer.write(b"\x05\x01\x00" + _address(host) + port.to_bytes(2, "big"))
        _, reply, _, kind = await reader.readexactly(4)
        if reply:
            told, fault = REPLIES.get(reply, (f"the proxy says error {reply}", None))
            raise _NoWay(Cause("GD-101", told, fault=fault))
        await reader.readexactly({1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0])
        await reader.readexactly(2)
    except asyncio.IncompleteReadError:
        cause = Cause("GD-101", "the proxy broke off", "it may be no SOCKS5 proxy", DO, DialFault.PROXY)
        raise _NoWay(cause) from None


def _address(host: str) -> bytes:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("idna")
        return b"\x03" + bytes([len(name)]) + name
    return (b"\x01" if ip.version == 4 else b"\x04") + ip.packed


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass bytes on until an end closes its connection."""
    with contextlib.closing(target):
        while data := await source.read(BUFFER):
            target.write(data)
            await target.drain()
