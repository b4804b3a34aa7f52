"""What goes wrong in a run, as data, drawn from a seed beforehand: a failing run can then be cut down to a short one.

A `Fault` says when, what, to whom and for how long; `draw` makes a script of them; `Nemesis` plays one against a
cluster. Faults name hosts by number, or `busy` ones, whoever is in the middle of an exchange at that moment, for
these are the interesting ones. Every fault heals by itself; nothing here may know how a peer works inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from gossipdp.protocol.messages import Message
from simulations.host import Host
from simulations.network import Conditions, Network

__all__ = ["KINDS", "Fault", "Nemesis", "Victims", "draw"]

KINDS = {
    "crash": 6,
    "torn": 1,
    "die": 6,
    "leave": 3,
    "pause": 3,
    "halves": 2,
    "isolated": 2,
    "one-way": 2,
    "bridge": 1,
    "ring": 1,
    "flapping": 2,
    "storm": 1,
    "slow": 1,
}
"""kinds of faults and how often each is drawn, relatively. torn: a crash while a checkpoint was being written, so that
the one before must do; die: the training process alone; storm: half of all messages lost for a while; slow: one
host's jobs take ten times as long. Never drawn, but written by scenarios: join, a host that starts only then;
straggler, whose jobs and training steps take `factor` times as long; lose, of its next message `on`"""
FOREVER = float("inf")
OF_ONE = {"crash", "torn", "die", "leave", "pause", "isolated", "one-way", "flapping", "slow", "join"}
"""those that hit one host"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`hosts` are numbers; `lasts` seconds until a crashed host restarts, a pause or a cut ends. Times are virtual."""

    at: float
    kind: str
    hosts: tuple[int, ...]
    lasts: float
    busy: bool = False
    """take a host that is averaging at that moment, if there is one, instead of the first of `hosts`"""
    trainer: bool = False
    """a crash takes the training process along"""
    disk: bool = True
    """a crashed host keeps its disk"""
    on: str = ""
    """wait for the first of `hosts`, or with `busy` for anybody, to send such a message; strike that host then"""
    factor: float = 10.0

    def __str__(self) -> str:
        who = ",".join(f"p{host}" for host in self.hosts)
        notes = [
            note for note, on in (("busy", self.busy), ("trainer", self.trainer), ("no disk", not self.disk)) if on
        ]
        notes += [f"as it sends {self.on}"] * bool(self.on) + [f"{self.factor:g} times"] * (self.kind == "straggler")
        lasts = "for ever" if self.lasts == FOREVER else f"{self.lasts:g} s"
        return f"{self.at:.2f} {self.kind} {who} {lasts}{' (' + ', '.join(notes) + ')' if notes else ''}"


def draw(random: Random, *, count: int, peers: int, begin: float, end: float, long: bool) -> tuple[Fault, ...]:
    """So many faults between `begin` and `end`, in order of time. `long` ones outlast suspicions and settlements."""
    faults = []
    for _ in range(count):
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        first = random.randrange(peers)
        if kind in ("halves", "bridge"):
            hosts = tuple(random.sample(range(peers), random.randint(1, peers - 1)))
        elif kind == "ring":
            hosts = tuple(random.sample(range(peers), peers))
        else:
            hosts = (first,)
        lasts = random.choice((0.3, 2.0, 7.0, 30.0) if long else (0.3, 2.0, 7.0))
        if kind in ("crash", "torn"):
            # A process that founds the network and dies has founded nothing, so the first comes back.
            lasts = random.choice((0.05, 0.5, 3.0, 8.0, FOREVER)) if first else random.choice((0.05, 3.0))
        elif kind == "die":
            lasts = random.choice((0.002, 0.02, 2.0))
        elif kind == "leave":
            lasts = random.choice((3.0, 6.0))
        elif kind == "pause":
            lasts = random.choice((0.3, 2.0, 6.0, 60.0) if long else (0.3, 2.0, 6.0))
        faults.append(
            Fault(
                at=round(random.uniform(begin, end), 3),
                kind=kind,
                hosts=hosts,
                lasts=lasts,
                busy=random.random() < 0.7,
                trainer=random.random() < 0.5,
                disk=random.random() < 0.7,
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at))


class Victims(Protocol):
    """What a nemesis does to a cluster besides its network."""

    network: Network

    def crash(self, host: Host, *, trainer: bool, disk: bool, torn: bool) -> None: ...

    def restart(self, host: Host) -> None: ...

    def kill_trainer(self, host: Host) -> None: ...

    def train(self, host: Host) -> None: ...


class Nemesis:
    """Plays a script. `ends` is when its last fault has healed, those that last for ever left out."""

    def __init__(self, victims: Victims, script: Sequence[Fault]) -> None:
        self._victims, self._network = victims, victims.network
        self._over = False
        self._armed: list[Fault] = []
        """faults that wait for a message"""
        self.ends = max((fault.at + fault.lasts for fault in script if fault.lasts < FOREVER), default=0.0)
        for fault in script:
            self._network.at(fault.at, f"fault {fault.kind}", None, lambda fault=fault: self._due(fault))

    def end(self) -> None:
        """No more faults: what is still broken heals now."""
        self._over = True
        self._armed.clear()
        self._network.heal()
        for host in self._network.hosts:
            host.slowness = host.step_slowness = 1.0

    def _due(self, fault: Fault) -> None:
        if fault.on and not self._over:
            self._armed.append(fault)
        else:
            self._strike(fault)

    def passes(self, sender: Host, message: Message) -> bool:
        """Does what `sender` hands over get through? It may be what faults have waited for."""
        if not self._armed:
            return True
        name, through = type(message).__name__, True
        waited = [fault for fault in self._armed if fault.on == name]
        for fault in [fault for fault in waited if fault.busy or fault.hosts[0] == sender.index]:
            found = replace(fault, hosts=(sender.index, *fault.hosts[1:]), busy=False)
            if fault.kind != "lose":
                # Not before the sender has done all that it does in this moment.
                self._later(0.0, f"fault {fault.kind}", lambda fault=found: self._strike(fault))
            elif through:
                self._network.tell("fault", sender, None, found)
                through = False
            else:
                continue  # of two such faults each loses a message of its own
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
        busy = [host for host in network.hosts if host.peer is not None and host.peer.averaging.partner is not None]
        host = busy[fault.hosts[0] % len(busy)] if fault.busy and busy else hosts[0]
        rest = [other for other in network.hosts if other not in hosts]
        network.tell("fault", host if fault.kind in OF_ONE else None, None, fault)
        match fault.kind:
            case "crash" | "torn":
                if host.peer is not None:
                    victims.crash(host, trainer=fault.trainer, disk=fault.disk, torn=fault.kind == "torn")
                    self._later(
                        fault.lasts if host.index else min(fault.lasts, 3.0), "restart", lambda: victims.restart(host)
                    )
            case "die":
                victims.kill_trainer(host)
                self._later(fault.lasts, "train", lambda: victims.train(host))
            case "leave":
                if host.index:
                    network.command(host, "leave", lambda peer: peer.leave(network.now))
                    self._later(fault.lasts, "restart", lambda: victims.restart(host))
            case "pause":
                if host.peer is not None:
                    network.pause(host, fault.lasts)
            case "slow":
                host.slowness = 10.0
                self._later(fault.lasts, "fast again", lambda: setattr(host, "slowness", 1.0))
            case "straggler":
                for slow in hosts:
                    slow.slowness = slow.step_slowness = fault.factor
                    self._later(fault.lasts, "fast again", lambda host=slow: self._fast(host))
            case "join":
                victims.restart(host)
            case "storm":
                self._storm(fault.lasts)
            case "flapping":
                self._flap(host, fault.lasts)
            case _:
                self._cut(fault.kind, host, hosts, rest)
                self._later(fault.lasts, "heal", network.heal)

    def _fast(self, host: Host) -> None:
        host.slowness = host.step_slowness = 1.0

    def _cut(self, kind: str, host: Host, hosts: list[Host], rest: list[Host]) -> None:
        network = self._network
        others = [other for other in network.hosts if other is not host]
        match kind:
            case "halves":
                network.cut(hosts, rest)
            case "isolated":
                network.cut([host], others)
            case "one-way":
                network.cut([host], others, both=False)
            case "bridge":
                # The first of the island still speaks to everybody.
                network.cut(hosts[1:], rest)
            case "ring":
                # Everybody speaks to two neighbours only.
                for place, one in enumerate(hosts):
                    near = {hosts[place - 1].index, hosts[(place + 1) % len(hosts)].index, one.index}
                    network.cut([one], [other for other in hosts if other.index not in near])

    def _flap(self, host: Host, lasts: float) -> None:
        """The host's cable is out and in again, every 0.4 s."""
        others = [other for other in self._network.hosts if other is not host]
        for beat in range(max(1, int(lasts / 0.8))):
            self._later(0.8 * beat, "cut", lambda: None if self._over else self._network.cut([host], others))
            self._later(0.8 * beat + 0.4, "heal", self._network.heal)

    def _storm(self, lasts: float) -> None:
        network = self._network
        before = network.conditions
        worse: Conditions = replace(before, loss=max(0.5, before.loss), latency=before.latency + 0.3)
        network.conditions = worse

        def calm() -> None:
            if network.conditions is worse:
                network.conditions = before

        self._later(lasts, "calm", calm)
