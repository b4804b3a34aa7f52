"""What goes wrong in a run, as data that a seed draws before the run. So a failing run can shrink to a short one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias

__all__ = ["FOREVER", "KINDS", "Fault", "FaultKind", "draw", "draw_joins", "draw_replays"]

FaultKind: TypeAlias = Literal[
    "crash",
    "torn",
    "die",
    "leave",
    "pause",
    "halves",
    "isolated",
    "one-way",
    "bridge",
    "ring",
    "flapping",
    "storm",
    "slow",
    "join",
    "replay",
    "straggler",
    "lose",
]
"""
torn: a crash during the write of a checkpoint, so that the one before must do. die: the training process alone. storm:
half of all messages are lost for a while. slow: the jobs of one host take ten times as long. join: a host starts only
then. replay: a stranger repeats the host's messages. Never drawn, but written by scenarios: straggler, jobs and
training steps of the hosts take `factor` times as long; lose, the network loses the host's next message `on`
"""
KINDS: Final[Mapping[FaultKind, int]] = {
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
"""relative frequency of each kind in a draw"""
FOREVER = float("inf")
CUTS = {"halves", "isolated", "one-way", "bridge", "ring", "flapping"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. Times in virtual seconds.

    `hosts` are numbers. `lasts` is the time until a crashed host restarts, or a pause or a cut ends.
    """

    at: float
    kind: FaultKind
    hosts: tuple[int, ...]
    lasts: float
    busy: bool = False
    """strike a host that is averaging at that moment, if there is one, instead of the first of `hosts`"""
    trainer: bool = False
    """a crash kills the training process too"""
    disk: bool = True
    """a crashed host keeps its disk"""
    on: str = ""
    """wait until the first of `hosts`, or with `busy` any host, sends a message of this type, and strike that host"""
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
    """Draw `count` faults between `begin` and `end`, by time. `long` ones outlast suspicions and settlements."""
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
    """Draw late starts of one to three hosts. The founder never starts late."""
    late = random.sample(range(1, peers), random.randint(1, min(3, peers - 1)))
    times = sorted(round(random.uniform(begin, end), 3) for _ in late)
    return tuple(Fault(at=at, kind="join", hosts=(host,), lasts=FOREVER) for at, host in zip(times, late, strict=True))


def draw_replays(random: Random, *, peers: int, begin: float, end: float) -> tuple[Fault, ...]:
    """Draw strangers that repeat messages. All repetitions come before the end of all faults."""
    faults = []
    for _ in range(random.randint(1, 3)):
        lasts, later = random.choice((1.0, 3.0)), random.choice((0.1, 0.3, 2.0, 5.0))
        lasts = min(lasts, end - begin - later)
        at = round(random.uniform(begin, end - lasts - later), 3)
        faults.append(Fault(at=at, kind="replay", hosts=(random.randrange(peers),), lasts=lasts, factor=later))
    return tuple(sorted(faults, key=lambda fault: fault.at))
