"""Plays a script of faults against a cluster (the term is Jepsen's).

A fault names hosts by number. With `busy` it strikes a host that is in the middle of an exchange at that moment. Every
fault heals by itself and undoes only its own harm: of two faults that overlap, each lasts as long as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gossipdp.protocol.wire.messages import Message
from simulations.simulator.faults import FOREVER, Fault, FaultKind
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions, Cut, Network

__all__ = ["Nemesis", "Victims"]

OF_ONE = {"crash", "torn", "die", "leave", "pause", "isolated", "one-way", "flapping", "slow", "join", "replay"}
"""kinds that strike one host"""


class Victims(Protocol):
    """The parts of a cluster that a nemesis uses, apart from its network."""

    network: Network

    @property
    def founded(self) -> bool: ...

    def crash(self, host: Host, *, trainer: bool, disk: bool, torn: bool) -> None: ...

    def restart(self, host: Host) -> None: ...

    def kill_trainer(self, host: Host) -> None: ...

    def train(self, host: Host) -> None: ...


@dataclass(frozen=True, eq=False)
class _Slowed:
    """A slowdown of one host by one fault."""

    host: Host
    factor: float
    steps: bool
    """its training steps are slower too"""


class Nemesis:
    """Plays a script.

    `ends` is the time at which its last fault has healed, without those that last for ever.

    Args:
        victims: the cluster.
        script: the faults, in order of time.
    """

    def __init__(self, victims: Victims, script: Sequence[Fault]) -> None:
        self._victims, self._network = victims, victims.network
        self._over = False
        self._armed: list[Fault] = []
        """faults that wait for a message"""
        self._weather = victims.network.conditions
        self._storms = 0
        self._slowed: list[_Slowed] = []
        self._taps: list[tuple[Host, float, float]] = []
        """(host, end, delay): a stranger repeats the host's messages of until then, so much later"""
        self._away: dict[int, float] = {}
        """hosts that were told to leave -> seconds that they stay away"""
        self.ends = max((fault.at + fault.lasts for fault in script if fault.lasts < FOREVER), default=0.0)
        for fault in script:
            self._network.at(fault.at, f"fault {fault.kind}", None, partial(self._fall_due, fault))

    def end(self) -> None:
        """End all faults. What is broken heals now."""
        self._over, self._storms = True, 0
        self._armed.clear()
        self._taps.clear()
        self._network.links.heal()
        self._slowed.clear()
        for host in self._network.hosts:
            self._pace(host)

    def set_weather(self, conditions: Conditions) -> None:
        """Set the network's conditions outside of storms."""
        self._weather = conditions
        worse = replace(conditions, loss=max(0.5, conditions.loss), latency=conditions.latency + 0.3)
        self._network.set_conditions(worse if self._storms else conditions)

    def has_left(self, host: Host) -> None:
        """The host has left. It comes back when it is due, counted from now, because leaving may take long.

        A host that was told to leave while it was paused leaves after the end of all faults, and comes back soon.
        """
        away = self._away.pop(host.index, FOREVER)
        self._later(min(away, 1.0) if self._over else away, "restart", lambda: self._victims.restart(host))

    def _fall_due(self, fault: Fault) -> None:
        if not self._victims.founded and not self._over:
            # The fault would destroy nothing: a founder that dies has founded nothing.
            self._later(0.25, f"fault {fault.kind}", lambda: self._fall_due(fault))
        elif fault.on and not self._over:
            self._armed.append(fault)
        else:
            self._strike(fault)

    def replay_delays(self, sender: Host) -> list[float]:
        """Delays after which strangers repeat what `sender` sends now."""
        now = self._network.now
        self._taps = [tap for tap in self._taps if now < tap[1]]
        return [later for host, _, later in self._taps if host is sender]

    def passes(self, sender: Host, message: Message) -> bool:
        """Whether a message of `sender` gets through. It may be the message that faults wait for."""
        if not self._armed:
            return True
        name, through = type(message).__name__, True
        waited = [fault for fault in self._armed if fault.on == name]
        for fault in [fault for fault in waited if fault.busy or fault.hosts[0] == sender.index]:
            found = replace(fault, hosts=(sender.index, *fault.hosts[1:]), busy=False)
            if fault.kind != "lose":
                # After all that the sender does in this moment.
                self._later(0.0, f"fault {fault.kind}", partial(self._strike, found))
            elif through:
                self._network.record("fault", sender, None, found)
                through = False
            else:
                continue  # two such faults lose one message each
            self._armed.remove(fault)
        return through

    def _later(self, seconds: float, kind: str, action: Callable[[], None]) -> None:
        if seconds < FOREVER:
            self._network.at(self._network.now + seconds, kind, None, action)

    def _strike(self, fault: Fault) -> None:
        if self._over:
            return
        network, victims = self._network, self._victims
        hosts = [network.hosts[number] for number in fault.hosts if number < len(network.hosts)]
        if not hosts:
            return
        busy = [host for host in network.hosts if host.peer is not None and host.peer.view.partner is not None]
        host = busy[fault.hosts[0] % len(busy)] if fault.busy and busy else hosts[0]
        rest = [other for other in network.hosts if other not in hosts]
        network.record("fault", host if fault.kind in OF_ONE else None, None, fault)
        match fault.kind:
            case "crash" | "torn":
                if host.peer is not None:
                    victims.crash(host, trainer=fault.trainer, disk=fault.disk, torn=fault.kind == "torn")
                    self._later(fault.lasts, "restart", partial(self._restart, host, host.life))
            case "die":
                victims.kill_trainer(host)
                self._later(fault.lasts, "train", lambda: victims.train(host))
            case "leave":
                if host.peer is not None:
                    self._away[host.index] = fault.lasts
                    # After a pause.
                    leave = partial(network.command, host, "leave", lambda peer: peer.leave(network.now))
                    network.at(network.now, "told to leave", host, leave)
            case "pause":
                if host.peer is not None:
                    network.pause(host, fault.lasts)
            case "slow":
                self._slow([host], 10.0, fault.lasts, steps=False)
            case "straggler":
                self._slow(hosts, fault.factor, fault.lasts, steps=True)
            case "join":
                victims.restart(host)
            case "replay":
                self._taps.append((host, network.now + fault.lasts, fault.factor))
            case "storm":
                self._storm(fault.lasts)
            case "flapping":
                self._flap(host, fault.lasts)
            case _:
                cuts = self._cut(fault.kind, host, hosts, rest)
                self._later(fault.lasts, "mend", lambda: self._mend(cuts))

    def _restart(self, host: Host, life: int) -> None:
        """Restart the host unless it was started meanwhile."""
        if host.life == life:
            self._victims.restart(host)

    def _slow(self, hosts: list[Host], factor: float, lasts: float, *, steps: bool) -> None:
        for host in hosts:
            slowed = _Slowed(host, factor, steps)
            self._slowed.append(slowed)
            self._pace(host)
            self._later(lasts, "fast again", partial(self._fast, slowed))

    def _fast(self, slowed: _Slowed) -> None:
        self._slowed = [other for other in self._slowed if other is not slowed]
        self._pace(slowed.host)

    def _pace(self, host: Host) -> None:
        """Slow the host down by the worst of its faults."""
        mine = [slowed for slowed in self._slowed if slowed.host is host]
        host.slow_down(
            jobs=max((slowed.factor for slowed in mine), default=1.0),
            steps=max((slowed.factor for slowed in mine if slowed.steps), default=1.0),
        )

    def _mend(self, cuts: Sequence[Cut]) -> None:
        if self._over:
            return
        for cut in cuts:
            self._network.links.heal(cut)
        if self._network.links.whole:
            self._network.record("heal", None)

    def _cut(self, kind: FaultKind, host: Host, hosts: list[Host], rest: list[Host]) -> list[Cut]:
        network = self._network
        others = [other for other in network.hosts if other is not host]
        match kind:
            case "halves":
                return [network.links.cut(hosts, rest)]
            case "isolated":
                return [network.links.cut([host], others)]
            case "one-way":
                return [network.links.cut([host], others, both=False)]
            case "bridge":
                # The first host of the island still reaches all.
                return [network.links.cut(hosts[1:], rest)]
            case "ring":
                # Each host reaches two neighbours only.
                near = [
                    {hosts[place - 1].index, hosts[(place + 1) % len(hosts)].index, one.index}
                    for place, one in enumerate(hosts)
                ]
                return [
                    network.links.cut([one], [other for other in hosts if other.index not in beside])
                    for one, beside in zip(hosts, near, strict=True)
                ]
        raise ValueError(kind)

    def _flap(self, host: Host, lasts: float) -> None:
        """Cut the host off and heal it again, every 0.4 s."""
        others = [other for other in self._network.hosts if other is not host]

        def out() -> None:
            if not self._over:
                cut = self._network.links.cut([host], others)
                self._later(0.4, "mend", lambda: self._mend([cut]))

        for beat in range(max(1, int(lasts / 0.8))):
            self._later(0.8 * beat, "cut", out)

    def _storm(self, lasts: float) -> None:
        self._storms += 1
        self.set_weather(self._weather)

        def calm() -> None:
            if not self._over:
                self._storms -= 1
                self.set_weather(self._weather)

        self._later(lasts, "calm", calm)
