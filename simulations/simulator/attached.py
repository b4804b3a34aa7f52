"""Training processes of this machine as those of simulated hosts: `gossipdp.attach` in virtual time.

The hosts of a `Network` are the daemon's own `Peer`s. Here each also has the daemon's link: its unix socket, its shared
memory and its `TrainingSessions`. A script calls `attach`, steps, and says when time passes. Nothing waits for a clock,
so equal calls give equal results. This module knows no model and no optimizer.
"""

from __future__ import annotations

import contextlib
import math
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar, cast

from gossipdp.algorithms.ledger import in_memory
from gossipdp.protocol.events import Event
from gossipdp.protocol.peer import PeerConfig
from gossipdp.runtime import link
from gossipdp.runtime.faults import FaultPoint
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.node.config import NodeConfig
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.node.records import Records
from gossipdp.runtime.node.training import TrainingSessions
from gossipdp.runtime.node.vector_jobs import SharedRegion
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.notices import Notices
from gossipdp.runtime.observability.status import Status
from simulations.simulator.conditions import Conditions
from simulations.simulator.host import Host, Region
from simulations.simulator.network import Network

__all__ = ["AttachedHost", "AttachedNetwork"]

T = TypeVar("T")

ANSWERED: Final = 1.0
"""virtual seconds after each message of a training process that attaches or detaches"""
MEETS: Final = 0.5
"""virtual seconds between two looks at whether a joiner has the model"""
LATEST: Final = 120.0
"""virtual seconds within which a joiner has it"""
CONFIG: Final = NodeConfig(
    network="attached", checkpoint_every=math.inf, mode="async", deadline=30.0, heal=True, workers=1, waiting=0
)


class _Mapped(Region):
    """A region of the link as the simulator's."""

    def __init__(self, region: link.Region, free: link.FreeBuffer) -> None:
        self.buffers, self.free = region.buffers, free
        self.take, self.give = region.take, region.give  # type: ignore[method-assign]


class _OneByOne(link.LinkServer):
    """Reports one event a call, so that virtual time may pass between two."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.waiting: deque[link.LinkEvent] = deque()
        self.taken = 0
        """events reported, without those that a clock causes"""

    def handle(self, fd: int) -> list[link.LinkEvent]:
        self.waiting += super().handle(fd)
        if not self.waiting:
            return []
        event = self.waiting.popleft()
        self.taken += not isinstance(event, link.Reported | link.Told)
        return [event]


class AttachedHost:
    """A simulated host whose daemon serves `home`.

    Args:
        host: its daemon runs.
        home: folder for the link's socket.
    """

    def __init__(self, network: Network, host: Host, home: Path) -> None:
        self.host, self.home, self._network = host, home, network
        self._server, self._shared = _OneByOne(home), SharedRegion()
        self._mapped: link.Region | None = None
        view = host.running.view
        # No command asks this status for its links, and no record is kept.
        self.status = Status(view, cast(Transport, None), CONFIG.network)
        metrics = Metrics("simulated", clock=lambda: network.now)
        self._notices = Notices(view, self.status, metrics)
        context = NodeContext(
            CONFIG,
            host.running,
            host.algorithm,
            host.incarnation,
            self.status,
            metrics,
            self._notices,
            cast(Records, None),
            lambda: b"the run",
            lambda: network.now,
        )
        self._sessions = TrainingSessions(
            context,
            self._server,
            self._shared,
            call=_at_once,
            keep=in_memory,
            drain=lambda now: network.drain(host),
            faults=FaultPoint(""),
        )

    @property
    def exchanges(self) -> int:
        """Exchanges that have averaged the model."""
        return self.status.exchanges["done"]

    def tell(self, event: Event) -> None:
        """Pass an event of the peer on, as the node does."""
        self._notices.observe(event, self._network.now)
        self._sessions.tell(event)

    def listen(self, timeout: float = 0.0, *, answers: float = 0.0) -> None:
        """Take what the training process has said, or says within `timeout` seconds.

        Args:
            answers: virtual seconds that pass after each of its messages.
        """
        server = self._server
        while server.waiting or (ready := self._readable(timeout)):
            timeout = 0.0
            for fd in [-1] if server.waiting else ready:
                taken = server.taken
                self._sessions.handle(fd, self._network.now)
                self._map()
                if server.taken > taken:
                    self._network.run(self._network.now + answers)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Answer meanwhile from another thread, because `attach` and `detach` wait for the daemon."""
        over, failed = threading.Event(), list[BaseException]()

        def answer() -> None:
            try:
                while not over.is_set():
                    self.listen(0.01, answers=ANSWERED)
            except BaseException as error:  # raised again below, in the thread that waits
                failed.append(error)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            if failed:
                raise failed[0]
            self.listen(answers=ANSWERED)

    def close(self) -> None:
        self._sessions.close()

    def _readable(self, timeout: float) -> list[int]:
        poll = select.poll()
        for fd in self._sessions.filenos():
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(1000 * timeout)]

    def _map(self) -> None:
        region = self._server.region
        if region is not None and region is not self._mapped:
            self._mapped = region
            self.host.region = _Mapped(region, self._shared.free)


class AttachedNetwork:
    """Hosts of one network, in the order in which they were added. The first one founds it.

    Args:
        directory: for the homes.
        config: of every peer.
        seed: of delays and partners.
    """

    def __init__(self, directory: Path, config: PeerConfig, seed: int) -> None:
        self._directory, self._config = directory, config
        self.network = Network(seed, Conditions(), listen=self._tell)
        self.hosts: list[AttachedHost] = []

    def __enter__(self) -> AttachedNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.hosts:
            each.close()

    def add(self) -> AttachedHost:
        """Start one more daemon. One that joins has the network's model when this returns.

        Raises:
            TimeoutError: it did not get the model.
        """
        network = self.network
        host = network.add(self._config)
        network.start(host, seeds=[each.host for each in self.hosts], found=not self.hosts)
        added = AttachedHost(network, host, self._directory / host.name)
        self.hosts.append(added)
        latest = network.now + LATEST
        while len(self.hosts) > 1 and not host.running.view.ready:
            if network.now >= latest:
                raise TimeoutError(f"{host.name} has no model after {LATEST:g} s")
            network.run(network.now + MEETS)
        return added

    def pass_time(self, seconds: float) -> None:
        """Let virtual time pass: messages travel and jobs run."""
        for each in self.hosts:
            each.listen()
        self.network.run(self.network.now + seconds)

    def _tell(self, host: Host, event: Event) -> None:
        for each in self.hosts:
            if each.host is host:
                each.tell(event)


def _at_once(function: Callable[[], T], done: Callable[[T], None], place: int | None = None) -> None:
    """Runs a piece of work without a compute thread."""
    done(function())
