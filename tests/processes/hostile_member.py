"""A member with a key of its own that runs the honest protocol, and also sends what a test has it send.

It has the network's secret, a real transport and a real peer. Its jobs are not carried out, so it has no model and
stays a joiner. Tests drive it by `act`, in their own thread.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Lane, Member, Message, State
from gossipdp.protocol.wire.table import DATA_LANE
from gossipdp.runtime.network.events import LinkDown, Received
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.transport import Transport
from peers import home as homes
from peers.settings import peer_config
from peers.version import SOFTWARE
from tests.processes.running import Host, until


class HostileMember:
    """A member that joins a network of hosts.

    Args:
        hosts: hosts of the network; it joins through the first.
        name: what it calls itself; an operator could not choose every name.
        ignores: messages of these types never reach its peer.
    """

    def __init__(self, hosts: Sequence[Host], name: str = "hostile", ignores: tuple[type[Message], ...] = ()) -> None:
        self._hosts, founder, self._ignores = hosts, hosts[0], ignores
        self.identity, self.random = Identity.generate(), Random(1)
        config = homes.read_config(founder.home, {}, {})
        self.transport = Transport(
            self.identity,
            founder.secret(),
            network=config.network.name,
            run=b"",
            incarnation=1,
            listen="tcp://127.0.0.1:0",
        )
        address = f"127.0.0.1:{self.transport.port}"
        self.transport.advertise([address])
        me = Member(self.identity.id, name, address, 1, 0, State.ALIVE, software=SOFTWARE)
        now = time.monotonic()
        self.peer = Peer(
            peer_config(config), me, random=self.random, sign=self.identity.sign, verify=Identity.verify, now=now
        )
        self.peer.join([founder.address], now)
        self.sent = 0
        """bytes of the messages that the test had it send"""
        self.ignored = 0
        """messages that it ignored"""

    def close(self) -> None:
        self.transport.close()

    def victims(self) -> list[Member]:
        """The latest records of the other members."""
        return self.peer.view.alive

    def signed(self, record: Member) -> Member:
        """`record`, signed by this member's own key."""
        return Signer(self.identity.sign, Identity.verify).sign_member(record)

    def say(self, to: Member, message: Message, *buffers: bytes) -> None:
        frames = wire.encode(message, buffers)
        self.sent += sum(memoryview(frame).nbytes for frame in frames)
        lane = Lane.DATA if type(message) in DATA_LANE else Lane.CONTROL
        self.transport.send(to.id, to.address, lane, frames)

    def act(self, seconds: float, beat: float, speaks: Callable[[], object] = lambda: None) -> None:
        """Take part for `seconds`, and call `speaks` every `beat` seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._take_part(beat, speaks)

    def until(
        self, what: str, condition: Callable[[], object], beat: float = 0.1, speaks: Callable[[], object] = lambda: None
    ) -> None:
        """Take part until `condition` is true. It is looked at, and `speaks` is called, every `beat` seconds."""

        def holds() -> bool:
            found = bool(condition())
            self._take_part(beat, speaks)
            return found

        until(what, holds, self._hosts)

    def _take_part(self, beat: float, speaks: Callable[[], object]) -> None:
        speaks()
        next_ = time.monotonic() + beat
        while (left := next_ - time.monotonic()) > 0:
            self._turn(left)

    def _turn(self, most: float) -> None:
        timer = self.peer.timer()
        wait = min(most, most if timer is None else timer - time.monotonic())
        arrived, _ = self.transport.poll(max(0.0, wait), [])
        now = time.monotonic()
        for event in arrived:
            match event:
                case Received(peer, _, frames):
                    if self._ignores and isinstance(wire.decode(frames)[0], self._ignores):
                        self.ignored += 1
                    else:
                        self.peer.receive(frames, peer, now)
                case LinkDown(peer, reason):
                    self.peer.link_down(peer, reason, now)
        if (timer := self.peer.timer()) is not None and timer <= now:
            self.peer.handle_timer(now)
        for envelope in self.peer.messages_to_send():
            self.transport.send(envelope.to, envelope.address, envelope.lane, envelope.frames)
        while self.peer.next_job() is not None or self.peer.next_event() is not None:
            pass


def remembered(home: Path) -> Iterable[str]:
    """Names of members that the daemon of `home` dials after a restart."""
    from gossipdp.runtime.files import load_members

    return {member.name for member in load_members(home / "members.json")}
