"""What goes wrong in a run, as data, drawn from a seed beforehand: a failing run can then be cut down to a short one.

A `Fault` says when, what, to whom and for how long; `draw` makes a script of them; `Nemesis` plays one against a
cluster. Faults name hosts by number, or `busy` ones, whoever is in the middle of an exchange at that moment, for
these are the interesting ones. Every fault heals by itself, and undoes its own harm and nobody else's, so that of two
that overlap each lasts as long as it says. Nothing here may know how a peer works inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Protocol

from gossipdp.protocol.wire.messages import Message
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions, Cut, Network

__all__ = ["KINDS", "Fault", "Nemesis", "Victims", "draw", "draw_joins", "draw_replays"]

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
host's jobs take ten times as long. Drawn beside them: join, a host that starts only then. Never drawn, but written by
scenarios: straggler, whose jobs and training steps take `factor` times as long; lose, of its next message `on`"""
FOREVER = float("inf")
OF_ONE = {"crash", "torn", "die", "leave", "pause", "isolated", "one-way", "flapping", "slow", "join", "replay"}
"""those that hit one host"""
CUTS = {"halves", "isolated", "one-way", "bridge", "ring", "flapping"}


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
        notes += [f"{self.factor:g} s later"] * (self.kind == "replay")
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
            lasts = random.choice((0.05, 0.5, 3.0, 8.0, FOREVER))
        elif kind == "die":
            lasts = random.choice((0.002, 0.02, 2.0))
        elif kind == "leave":
            lasts = random.choice((0.5, 3.0, 6.0, FOREVER))
        elif kind == "pause":
            lasts = random.choice((0.3, 2.0, 6.0, 60.0) if long else (0.3, 2.0, 6.0))
        at = random.uniform(begin, end)
        if kind in CUTS and lasts < end - begin and random.random() < 0.7:
            at = random.uniform(begin, end - lasts)  # else the end of all faults would end most long cuts early
        faults.append(
            Fault(
                at=round(at, 3),
                kind=kind,
                hosts=hosts,
                lasts=lasts,
                busy=random.random() < 0.7,
                trainer=random.random() < 0.5,
                disk=random.random() < 0.7,
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at))


def draw_joins(random: Random, *, peers: int, begin: float, end: float) -> tuple[Fault, ...]:
    """Some of the hosts, but never the founder, start only then."""
    late = random.sample(range(1, peers), random.randint(1, min(3, peers - 1)))
    times = sorted(round(random.uniform(begin, end), 3) for _ in late)
    return tuple(Fault(at=at, kind="join", hosts=(host,), lasts=FOREVER) for at, host in zip(times, late, strict=True))


def draw_replays(random: Random, *, peers: int, begin: float, end: float) -> tuple[Fault, ...]:
    """A stranger on a few cables. All it repeats comes before the end of all faults."""
    faults = []
    for _ in range(random.randint(1, 3)):
        lasts, later = random.choice((1.0, 3.0)), random.choice((0.1, 0.3, 2.0, 5.0))
        lasts = min(lasts, end - begin - later)
        at = round(random.uniform(begin, end - lasts - later), 3)
        faults.append(Fault(at=at, kind="replay", hosts=(random.randrange(peers),), lasts=lasts, factor=later))
    return tuple(sorted(faults, key=lambda fault: fault.at))


class Victims(Protocol):
    """What a nemesis does to a cluster besides its network."""

    network: Network

    @property
    def founded(self) -> bool: ...

    def crash(self, host: Host, *, trainer: bool, disk: bool, torn: bool) -> None: ...

    def restart(self, host: Host) -> None: ...

    def kill_trainer(self, host: Host) -> None: ...

    def train(self, host: Host) -> None: ...


@dataclass(frozen=True, eq=False)
class _Slowed:
    """What one fault does to one host."""

    host: Host
    factor: float
    steps: bool
    """its training steps, too"""


class Nemesis:
    """Plays a script. `ends` is when its last fault has healed, those that last for ever left out."""

    def __init__(self, victims: Victims, script: Sequence[Fault]) -> None:
        self._victims, self._network = victims, victims.network
        self._over = False
        self._armed: list[Fault] = []
        """faults that wait for a message"""
        self._fair = victims.network.conditions
        self._storms = 0
        self._slowed: list[_Slowed] = []
        self._taps: list[tuple[Host, float, float]] = []
        """whose words a stranger records, until when, and how much later it repeats them"""
        self._away: dict[int, float] = {}
        """hosts told to leave, and how long they stay away"""
        self.ends = max((fault.at + fault.lasts for fault in script if fault.lasts < FOREVER), default=0.0)
        for fault in script:
            self._network.at(fault.at, f"fault {fault.kind}", None, partial(self._due, fault))

    def end(self) -> None:
        """No more faults: what is still broken heals now."""
        self._over, self._storms = True, 0
        self._armed.clear()
        self._taps.clear()
        self._network.heal()
        self._slowed.clear()
        for host in self._network.hosts:
            self._pace(host)

    def weather(self, conditions: Conditions) -> None:
        """What the network does to messages when no storm makes it worse."""
        self._fair = conditions
        worse = replace(conditions, loss=max(0.5, conditions.loss), latency=conditions.latency + 0.3)
        self._network.conditions = worse if self._storms else conditions

    def left(self, host: Host) -> None:
        """It has said goodbye and is gone: it comes back when it is due, counted from now, for it may have taken long.

        Who was told to leave while stopped leaves after all faults, when nobody else would start it again.
        """
        away = self._away.pop(host.index, FOREVER)
        self._later(min(away, 1.0) if self._over else away, "restart", lambda: self._victims.restart(host))

    def _due(self, fault: Fault) -> None:
        if not self._victims.founded and not self._over:
            # Nothing there is would be lost: a process that is to found the network and dies has founded nothing.
            self._later(0.25, f"fault {fault.kind}", lambda: self._due(fault))
        elif fault.on and not self._over:
            self._armed.append(fault)
        else:
            self._strike(fault)

    def overheard(self, sender: Host) -> list[float]:
        """How much later each stranger repeats what `sender` says now."""
        now = self._network.now
        self._taps = [tap for tap in self._taps if now < tap[1]]
        return [later for host, _, later in self._taps if host is sender]

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
                self._later(0.0, f"fault {fault.kind}", partial(self._strike, found))
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
        busy = [host for host in network.hosts if host.peer is not None and host.peer.strategy.partner is not None]
        host = busy[fault.hosts[0] % len(busy)] if fault.busy and busy else hosts[0]
        rest = [other for other in network.hosts if other not in hosts]
        network.tell("fault", host if fault.kind in OF_ONE else None, None, fault)
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
                    # Not while it is stopped.
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
        """Unless it has been started, and perhaps has crashed again, meanwhile."""
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
        """Of several things that slow a host down the worst counts."""
        mine = [slowed for slowed in self._slowed if slowed.host is host]
        host.slowness = max((slowed.factor for slowed in mine), default=1.0)
        worst = max((slowed.factor for slowed in mine if slowed.steps), default=1.0)
        host.step_slowness = host.usual_slowness * worst

    def _mend(self, cuts: Sequence[Cut]) -> None:
        if self._over:
            return
        for cut in cuts:
            self._network.heal(cut)
        if self._network.whole:
            self._network.tell("heal", None)

    def _cut(self, kind: str, host: Host, hosts: list[Host], rest: list[Host]) -> list[Cut]:
        network = self._network
        others = [other for other in network.hosts if other is not host]
        match kind:
            case "halves":
                return [network.cut(hosts, rest)]
            case "isolated":
                return [network.cut([host], others)]
            case "one-way":
                return [network.cut([host], others, both=False)]
            case "bridge":
                # The first of the island still speaks to everybody.
                return [network.cut(hosts[1:], rest)]
            case "ring":
                # Everybody speaks to two neighbours only.
                near = [
                    {hosts[place - 1].index, hosts[(place + 1) % len(hosts)].index, one.index}
                    for place, one in enumerate(hosts)
                ]
                return [
                    network.cut([one], [other for other in hosts if other.index not in beside])
                    for one, beside in zip(hosts, near, strict=True)
                ]
        raise ValueError(kind)

    def _flap(self, host: Host, lasts: float) -> None:
        """The host's cable is out and in again, every 0.4 s."""
        others = [other for other in self._network.hosts if other is not host]

        def out() -> None:
            if not self._over:
                cut = self._network.cut([host], others)
                self._later(0.4, "mend", lambda: self._mend([cut]))

        for beat in range(max(1, int(lasts / 0.8))):
            self._later(0.8 * beat, "cut", out)

    def _storm(self, lasts: float) -> None:
        self._storms += 1
        self.weather(self._fair)

        def calm() -> None:
            if not self._over:
                self._storms -= 1
                self.weather(self._fair)

        self._later(lasts, "calm", calm)
