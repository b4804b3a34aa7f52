"""Daemons for tests of data: real peers and data servers in one thread, their messages handed over at once."""

from __future__ import annotations

import contextlib
import hashlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from gossipdp.protocol.events import DataCovered, DataKnown, Event
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.wire.messages import Member, State
from gossipdp.runtime.link.data_server import DataServer
from simulations.processes.progress import until
from simulations.simulator.settings import averaging_config, peer_config
from tests.training.repeated import repeated


class DataDaemon:
    """One host: a peer, and the server to which readers of `home` connect."""

    def __init__(self, daemons: DataDaemons, home: Path, number: int) -> None:
        self._daemons = daemons
        self.home = home
        self.events: list[Event] = []
        self.id = hashlib.blake2b(bytes([number]), digest_size=32).digest()
        home.mkdir(mode=0o700, exist_ok=True)
        config = peer_config(averaging=averaging_config(fineness={"modulo4": 4}), settings=bytes(16))
        me = Member(self.id, f"p{number}", f"10.0.0.{number}:4710", daemons.incarnation(number), 0, State.ALIVE)
        self.peer = Peer(
            config, me, random=Random(number), sign=lambda _: bytes(64), verify=lambda *_: True, now=daemons.now()
        )
        self.server: DataServer | None = None
        self.server = DataServer(home, self.feed, lambda text: None)

    def feed(self, command: Callable[[Peer, float], Any]) -> Any:
        result = command(self.peer, self._daemons.now())
        self.drain()
        return result

    def drain(self) -> None:
        for envelope in self.peer.messages_to_send():
            self._daemons.carry(self, envelope)
        while (event := self.peer.next_event()) is not None:
            self.events.append(event)
            if isinstance(event, DataKnown) and self.server is not None:
                self.server.known()

    @property
    def covered(self) -> list[DataCovered]:
        return [event for event in self.events if isinstance(event, DataCovered)]


class DataDaemons:
    """All hosts of a test."""

    def __init__(self) -> None:
        self.all: list[DataDaemon] = []
        self._lives: dict[int, int] = {}
        self._mail: list[tuple[DataDaemon, list[bytes], bytes]] = []
        self._lock = threading.RLock()
        self._skew = 0.0

    def incarnation(self, number: int) -> int:
        self._lives[number] = self._lives.get(number, 0) + 1
        return self._lives[number]

    def start(self, home: Path, number: int = 0) -> DataDaemon:
        """Start a host's daemon, and wait until all know each other."""
        with self._lock:
            daemon = DataDaemon(self, home, number)
            self.all.append(daemon)
            if len(self.all) > 1:
                first = self.all[0].peer.view.me.address
                daemon.feed(lambda peer, now: peer._membership.join([first], now))
            while any(len(each.peer.view.alive) < len(self.all) - 1 for each in self.all):
                self._turn(0.01)
        return daemon

    def now(self) -> float:
        return time.monotonic() + self._skew

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass for all daemons, with everything that they do in that time."""
        with self._lock:
            until = self._skew + seconds
            while self._skew < until:
                self._skew += min(0.05, until - self._skew)
                self._turn(0.0)

    def until(self, holds: Callable[[], bool]) -> None:
        """Run the daemons until `holds`."""
        with self._lock:
            until("it happens", holds, meanwhile=lambda: self._turn(0.01))

    def kill(self, daemon: DataDaemon) -> None:
        """The process is gone at once, without a message."""
        with self._lock:
            self.all.remove(daemon)
            assert daemon.server is not None
            daemon.server.close()

    def carry(self, sender: DataDaemon, envelope: Any) -> None:
        for other in self.all:
            me = other.peer.view.me
            if other is not sender and (
                other.id == envelope.to or (not envelope.to and me.address == envelope.address)
            ):
                self._mail.append((other, [bytes(frame) for frame in envelope.frames], sender.id))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the daemons in a thread meanwhile."""

        def turn() -> None:
            with self._lock:
                self._turn(0.002)

        try:
            with repeated(turn):
                yield
        finally:
            for daemon in list(self.all):
                self.kill(daemon)

    def _turn(self, timeout: float) -> None:
        poll = select.poll()
        owners: dict[int, DataServer] = {}
        for daemon in self.all:
            assert daemon.server is not None
            for fd in daemon.server.filenos():
                owners[fd] = daemon.server
                poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000 * timeout):
            owners[fd].handle(fd)
        now = self.now()
        for daemon in self.all:
            if daemon.server is not None:
                daemon.server.tick(now)
            timer = daemon.peer.timer()
            if timer is not None and timer <= now:
                daemon.feed(lambda peer, now: peer.handle_timer(now))
        while self._mail:
            target, frames, source = self._mail.pop(0)
            if target in self.all:
                target.feed(lambda peer, now, f=frames, s=source: peer.receive(f, s, now))  # type: ignore[misc]
