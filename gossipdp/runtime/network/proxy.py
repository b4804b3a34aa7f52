"""Dials through a SOCKS5 proxy (RFC 1928, RFC 1929), for hosts that have no other way out.

libzmq 4.3.5 has an option for it, and aborts the process when the proxy refuses a target (`Bad file descriptor,
src/epoll.cpp`). So a thread makes each connection to the proxy, and passes bytes between it and a Unix socket that
libzmq dials. libzmq dials only once the proxy has reached the target, so its time-outs mean what they mean without a
proxy. CURVE is between the peers: the proxy sees ciphertext. Names go to the proxy as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from gossipdp.errors import ConfigError
from gossipdp.runtime.files import reading
from gossipdp.runtime.home_paths import expanded
from gossipdp.runtime.network.dial_causes import (
    SHOWN,
    SIGNATURE,
    SPEAKS,
    Cause,
    DialFault,
    no_greeting,
    not_a_peer,
    timed_out,
)
from gossipdp.runtime.network.host_port import join_address, split_address
from gossipdp.runtime.network.watch import Watch

__all__ = ["Proxy", "Reached", "Tunnels", "Unreached", "probe", "proxy_of"]

SCHEME: Final = "socks5://"
BUFFER: Final = 1 << 18
"""bytes read at once, and held in each direction"""
FIRST: Final = 4.0
"""seconds in which the proxy takes a connection, and in which it then answers the greeting"""
STALLED: Final = 120.0
"""seconds after which a tunnel is closed whose other end takes nothing"""
FLUSH: Final = 10.0
"""seconds for the last bytes of a tunnel that an end has closed"""
LAST: Final = 1.0
"""seconds for them when this peer ends; less than `watch.GOODBYE`"""
NAME: Final = 255
"""bytes of a user, of a password and of a host name, at most"""
_LOST: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_THERE: Final = "start the proxy, or correct [network] proxy: a SOCKS5 server must listen there, not an HTTP proxy"
_RULES: Final = "allow this host and port in the proxy; its log may say more"
REPLIES: Final = {
    1: ("the proxy failed", _RULES, DialFault.PROXY_REFUSES),
    2: ("the proxy does not allow it", _RULES, DialFault.PROXY_REFUSES),
    3: ("unreachable, according to the proxy", "", DialFault.NO_ROUTE),
    4: ("unreachable, according to the proxy", "", DialFault.NO_ROUTE),
    5: ("refused, according to the proxy", "", DialFault.REFUSED),
    6: ("timed out, according to the proxy", "", DialFault.DROPPED),
    7: ("the proxy does not support connections", _RULES, DialFault.PROXY_REFUSES),
    8: (
        "the proxy does not support this kind of address",
        "dial a name, or an address of the other IP version",
        DialFault.PROXY_REFUSES,
    ),
}
"""reply of the proxy -> what is told, what to do, and the fault (RFC 1928 section 6)"""
Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where a SOCKS5 proxy listens, and the user and password that it wants."""

    host: str
    port: int
    login: tuple[bytes, bytes] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def proxy_of(text: str, login: str = "") -> Proxy | None:
    """The proxy of the setting `[network] proxy`; None for an empty one.

    Args:
        text: ``socks5://host:port``, as the rule of the setting has it.
        login: path of a file with ``user:password``; "" for a proxy that wants none.

    Raises:
        ConfigError: GD-206, the file cannot be read, or others can read it.
    """
    if not text:
        return None
    return Proxy(*split_address(text.removeprefix(SCHEME)), _login(login) if login else None)


def _login(path: str) -> tuple[bytes, bytes]:
    """User and password. No error may show them."""
    try:
        with reading(expanded(path)) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            user, _, password = file.read(4 * NAME).rstrip(b"\r\n").partition(b":")
    except OSError as error:
        seen, do = f"{path}: {error.strerror}", "name a file with user:password in [network] proxy_login"
        raise ConfigError("GD-206", "the login of the proxy cannot be read", seen=seen, do=do) from None
    if mode & 0o077:
        seen, do = f"{path} has mode {mode:03o}", f"chmod 600 {path}"
        raise ConfigError("GD-206", "other users can read the login of the proxy", seen=seen, do=do)
    if not (0 < len(user) <= NAME and 0 < len(password) <= NAME) or b"\n" in password:
        do = "write user:password on one line"
        raise ConfigError("GD-206", "the login of the proxy is not user:password", seen=path, do=do)
    return user, password


@dataclass(frozen=True, slots=True)
class Reached:
    """The proxy has reached the target of this number. Dial `endpoint` within some seconds."""

    number: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """There is no way to the target of this number, or no peer answers there."""

    number: int
    cause: Cause


class _NoWay(Exception):
    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.text)
        self.cause = cause


# -- the handshake -----------------------------------------------------------------------------------------------


def probe(proxy: Proxy, address: str, patience: float) -> Cause | None:
    """Why `proxy` does not work, or why no peer answers at `address` behind it; None if all is well. It blocks.

    Args:
        address: ``host:port``; "" to examine the proxy alone.
        patience: seconds until the proxy must have reached the address.
    """
    return asyncio.run(_probe(proxy, address, patience))


async def _probe(proxy: Proxy, address: str, patience: float) -> Cause | None:
    try:
        reader, writer = await _reach(proxy, split_address(address) if address else None, patience)
        try:
            if address:
                writer.write(SIGNATURE)
                async with _by(_now() + SPEAKS, no_greeting()):
                    return not_a_peer(await _read(reader))
        finally:
            writer.transport.abort()
    except _NoWay as error:
        return error.cause
    return None


async def _reach(proxy: Proxy, target: tuple[str, int] | None, patience: float) -> Ends:
    """A connection to the target, made by the proxy; to the proxy itself without a target. Raises _NoWay."""
    end, first = _now() + patience, min(patience, FIRST)
    async with _by(_now() + first, _no_proxy("cannot be reached", f"no answer from {proxy} in {first:g} s")):
        reader, writer = await _connect(proxy)
    try:
        try:
            async with _by(min(end, _now() + first), _no_proxy("does not answer", f"{proxy} accepted the connection")):
                await _greet(proxy, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            raise _NoWay(_no_proxy("closed the connection", f"{proxy} may not be a SOCKS5 server")) from None
        if target is not None:
            try:
                async with _by(end, timed_out(join_address(*target), patience)):
                    await _ask(reader, writer, *target)
            except (OSError, asyncio.IncompleteReadError):
                told, do = (
                    "the proxy closed the connection when asked for it",
                    "check that a peer runs there, and that the proxy may dial it",
                )
                seen = "refused, unreachable or not allowed: `ssh -D` does not say which"
                raise _NoWay(Cause("GD-101", told, seen, do, DialFault.PROXY_REFUSES)) from None
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _connect(proxy: Proxy) -> Ends:
    try:
        return await asyncio.open_connection(proxy.host, proxy.port, limit=BUFFER)
    except TimeoutError:
        raise  # as if nothing had come
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        seen = os.strerror(number) if number is not None and number > 0 else str(error)
        if number in _LOST:
            raise _NoWay(Cause("GD-104", "cannot open a socket here", seen)) from None
        raise _NoWay(_no_proxy("cannot be reached", f"{proxy}: {seen}")) from None


async def _greet(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Agree on how this host proves itself, and do it."""
    writer.write(b"\x05\x01\x00" if proxy.login is None else b"\x05\x02\x00\x02")
    said = await reader.read(SHOWN)
    if len(said) == 1:
        said += await reader.read(SHOWN)
    if not said:
        raise ConnectionResetError
    if len(said) != 2 or said[0] != 5:
        raise _NoWay(_no_proxy("does not speak SOCKS5", f"{proxy} answered {said.decode('latin-1')!a}"))
    if said[1] == 2 and proxy.login is not None:
        user, password = proxy.login
        writer.write(b"\x01" + _counted(user) + _counted(password))
        if (await reader.readexactly(2))[1]:
            do = "correct user:password in the file that [network] proxy_login names"
            raise _NoWay(Cause("GD-101", "the proxy rejects user or password", str(proxy), do, DialFault.PROXY_LOGIN))
    elif said[1]:
        do = "set [network] proxy_login to a file with user:password"
        wants = "a user and a password" if proxy.login is None else "another kind of login"
        raise _NoWay(Cause("GD-101", f"the proxy wants {wants}", str(proxy), do, DialFault.PROXY_LOGIN))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Have the proxy connect to the target."""
    try:
        address = _address(host)
    except ValueError:
        raise _NoWay(Cause("GD-101", "is not a valid name", fault=DialFault.NAME_UNKNOWN)) from None
    writer.write(b"\x05\x01\x00" + address + port.to_bytes(2, "big"))
    _, reply, _, kind = await reader.readexactly(4)
    if reply:
        other = f"the proxy replied with error {reply}", _RULES, DialFault.PROXY_REFUSES
        told, do, fault = REPLIES.get(reply, other)
        raise _NoWay(Cause("GD-101", told, "", do, fault))
    await reader.readexactly({1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0])
    await reader.readexactly(2)


def _address(host: str) -> bytes:
    """Raises ValueError: the text is neither an IP address nor a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return b"\x03" + _counted(host.encode("idna"))
    return (b"\x01" if ip.version == 4 else b"\x04") + ip.packed


def _counted(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _no_proxy(what: str, seen: str) -> Cause:
    return Cause("GD-101", f"the proxy {what}", seen, _THERE, DialFault.NO_PROXY)


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def _by(end: float, late: Cause) -> AsyncIterator[None]:
    """A step that must be over at `end`. Raises _NoWay with `late` if it is not."""
    try:
        async with asyncio.timeout_at(end):
            yield
    except TimeoutError:
        raise _NoWay(late) from None


async def _read(reader: asyncio.StreamReader) -> bytes:
    """What comes next; b"" if the connection is over."""
    try:
        return await reader.read(BUFFER)
    except OSError:
        return b""


# -- tunnels -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Tunnel:
    task: asyncio.Task[None]
    passes: bool = False
    """libzmq has dialled it"""
    came: int = 0
    """bytes from the proxy"""

    def take(self, data: bytes) -> None:
        """Count what came from the proxy. Raises _NoWay if its begin is not that of a peer."""
        if not self.came and (cause := not_a_peer(data)) is not None:
            raise _NoWay(cause)  # ssh -D says that it has reached a target before it tries to
        self.came += len(data)


class Tunnels(Watch[Reached | Unreached]):
    """Connections through a proxy.

    Args:
        patience: seconds until the proxy must have reached a target.
    """

    def __init__(self, proxy: Proxy, patience: float) -> None:
        self._proxy, self._patience = proxy, patience
        self._folder = Path(tempfile.mkdtemp(prefix="gossipdp-proxy-"))
        self._loop = asyncio.new_event_loop()
        self._tunnels: dict[int, _Tunnel] = {}
        super().__init__("gossipdp-proxy")

    def open(self, number: int, host: str, port: int) -> None:
        """Reach the target. `collect` tells what came of it."""
        self._loop.call_soon_threadsafe(self._begin, number, host, port)

    def drop(self, number: int) -> None:
        """The target of this number is not wanted any more. A tunnel that libzmq has dialled stays until either end
        closes it."""
        self._loop.call_soon_threadsafe(self._drop, number)

    def came(self, number: int) -> int:
        """Bytes that have come from the proxy through this tunnel."""
        tunnel = self._tunnels.get(number)
        return 0 if tunnel is None else tunnel.came

    def close(self) -> None:
        """End the thread. What libzmq has handed over still has a second to leave."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for number in list(self._tunnels):
            self._drop(number)
        if tasks := [tunnel.task for tunnel in self._tunnels.values()]:
            _, late = await asyncio.wait(tasks, timeout=LAST)
            await _cancel(late)
        await asyncio.sleep(0)  # an aborted connection is closed in the next turn of the loop

    def _begin(self, number: int, host: str, port: int) -> None:
        task = self._loop.create_task(self._tunnel(number, host, port))
        self._tunnels[number] = _Tunnel(task)
        task.add_done_callback(lambda _: self._tunnels.pop(number))

    def _drop(self, number: int) -> None:
        if (tunnel := self._tunnels.get(number)) is not None and not tunnel.passes:
            tunnel.task.cancel()

    async def _tunnel(self, number: int, host: str, port: int) -> None:
        tunnel, writers = self._tunnels[number], list[asyncio.StreamWriter]()
        try:
            reader, writer = await _reach(self._proxy, (host, port), self._patience)
            writers.append(writer)
            near_reader, near_writer = await self._accept(number)
            writers.append(near_writer)
            tunnel.passes = True
            await _both(_pass(near_reader, writer, lambda _: None), _pass(reader, near_writer, tunnel.take))
        except OSError:
            pass  # nobody has dialled it in time
        except _NoWay as error:
            self._tell(Unreached(number, error.cause))
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _accept(self, number: int) -> Ends:
        """Tell where libzmq is to dial, and wait for that. Raises _NoWay or OSError."""
        path = self._folder / str(number)
        with self._listener(path) as listener:
            self._tell(Reached(number, f"ipc://{path}"))
            try:
                async with asyncio.timeout(self._patience):
                    await self._readable(listener)
                near, _ = listener.accept()
            finally:
                path.unlink(missing_ok=True)
        near.setblocking(False)
        return await asyncio.open_unix_connection(sock=near, limit=BUFFER)

    def _listener(self, path: Path) -> socket.socket:
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                listener.bind(str(path))
                listener.listen(1)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise _NoWay(Cause("GD-104", "cannot open a socket here", error.strerror or str(error))) from None
        return listener

    async def _readable(self, waits: socket.socket) -> None:
        came = self._loop.create_future()

        def tell() -> None:
            if not came.done():
                came.set_result(None)

        self._loop.add_reader(waits, tell)
        try:
            await came
        finally:
            self._loop.remove_reader(waits)


async def _both(*ways: Coroutine[Any, Any, None]) -> None:
    """Run both until one ends, and end the other one. Raises what that one raises."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(tasks)
    for task in done:
        task.result()


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter, take: Callable[[bytes], None]) -> None:
    """Pass bytes on until an end closes its connection, or takes nothing for a long time.

    Args:
        take: is told what comes, and b"" at last.
    """
    with contextlib.suppress(OSError):
        while True:
            take(data := await _read(source))
            if not data:
                break
            target.write(data)
            async with asyncio.timeout(STALLED):
                await target.drain()
        target.close()
        async with asyncio.timeout(FLUSH):
            await target.wait_closed()
