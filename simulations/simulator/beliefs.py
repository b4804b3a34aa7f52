"""What each peer believes of the members, compared with what these members have said (I7, I8)."""

from __future__ import annotations

from gossipdp.protocol.wire.messages import Member, State
from simulations.simulator.host import Host
from simulations.simulator.lives import Life, life_of

__all__ = ["Beliefs"]


class Beliefs:
    """The latest record of each member that each life of a host has reported.

    Args:
        hosts: all hosts of the network; the list may grow.
    """

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self._incarnations: dict[int, int] = {}
        """host -> its latest incarnation"""
        self._latest: dict[int, tuple[int, int]] = {}
        """host that is down -> the latest incarnation and refutation that it can have told"""
        self._believed: dict[tuple[Life, bytes], Member] = {}
        """(life, member) -> the record that the life last reported"""

    def started(self, host: Host) -> None:
        """A daemon has started.

        Raises:
            AssertionError: I7, its incarnation did not rise.
        """
        assert host.incarnation > self._incarnations.get(host.index, 0), f"I7 {host.name}: incarnation went back"
        self._incarnations[host.index] = host.incarnation

    def stopped(self, host: Host) -> None:
        """A daemon is about to stop."""
        if host.peer is not None:
            self._latest[host.index] = _version(host)

    def changed(self, host: Host, member: Member, *, new: bool) -> None:
        """A host reports a changed record.

        Args:
            new: the host did not know the member, or had forgotten it.

        Raises:
            AssertionError: I8, the record goes back, or is newer than the member, or old news revives the member.
        """
        key = (life_of(host), member.id)
        if new:
            self._believed.pop(key, None)
        other = next(other for other in self._hosts if other.id == member.id)
        version = (member.incarnation, member.refutation)
        latest = self._latest[other.index] if other.peer is None else _version(other)
        assert version <= latest, f"I8 {host.name} believes what {other.name} has never said: {member}"
        before = self._believed.get(key, member)
        held = (before.incarnation, before.refutation)
        assert version >= held, f"I8 {host.name} goes back to an earlier word of {other.name}: {member} after {before}"
        risen = before.state in (State.FAILED, State.LEFT) and member.state in (State.ALIVE, State.SUSPECT)
        assert not risen or version > held, (
            f"I8 {host.name}: old gossip has raised {other.name} from the dead: {member}"
        )
        self._believed[key] = member

    def check_views(self) -> None:
        """Check that all running hosts believe each other alive, and no stopped host.

        Raises:
            AssertionError: I8.
        """
        for host in self._hosts:
            for other in self._hosts:
                if host.peer is not None and other is not host:
                    _check_view(host, other)


def _version(host: Host) -> tuple[int, int]:
    return host.incarnation, host.running.view.me.refutation


def _check_view(host: Host, other: Host) -> None:
    record = host.running.view.members.get(other.id)
    if other.peer is not None:
        assert record is not None and record.state == State.ALIVE, f"I8 {host.name} does not see {other.name}: {record}"
        assert record.incarnation == other.incarnation, f"I8 {host.name} knows an earlier life of {other.name}"
    else:
        dead = record is None or record.state in (State.FAILED, State.LEFT)
        assert dead, f"I8 {host.name} thinks {other.name} lives: {record}"
