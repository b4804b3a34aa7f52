"""Leagues of hostile members (campaign T12): some act together among 8 to 64 honest peers.

The honest peers have known each other for long, so they have a voice (`contacts`). An old league has one too. A young
league has just joined. Each league is compared with the same honest peers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from gossipdp.protocol.data.blocks import Lease
from gossipdp.protocol.events import Event, FinishBegan, ResyncBegan, ResyncEnded
from gossipdp.protocol.membership.config import LOCAL
from simulations.campaigns.behaviours.base import Behaviour
from simulations.campaigns.behaviours.exchanges import AckWithoutApplying, NeverAck, Pushes, SignFlip, Silent
from simulations.campaigns.behaviours.leagues import DATA, AllRead, FalseClock, Finish, GreaterSide, LeftBehind
from simulations.campaigns.behaviours.membership import FalseDeaths, FewGhosts
from simulations.campaigns.siege import FORMING, SIEGE, Outcome, Siege
from simulations.simulator.host import Host

__all__ = ["HONEST", "LEAGUES", "SIZES", "League", "LeagueOutcome", "LeagueSiege", "alone", "broken", "play", "table"]

LEAGUES: Final[Mapping[str, type[Behaviour]]] = {
    "none": Behaviour,
    "greater side": GreaterSide,
    "left behind": LeftBehind,
    "finish": Finish,
    "false clock": FalseClock,
    "all read": AllRead,
    "silent": Silent,
    "never ack": NeverAck,
    "ghosts": FewGhosts,
    "false deaths": FalseDeaths,
    "sign flip": SignFlip,
    "pushes": Pushes,
    "ack without applying": AckWithoutApplying,
}
HONEST: Final = (8, 16, 64)
SIZES: Final = (1, 2, 3, 5)
LARGE: Final = 64
"""honest peers from which a siege takes half as long"""
KEPT: Final = 0.4
"""least share of an honest peer's exchanges with honest ones, of what blind choices would leave"""
PUSHING: Final = frozenset({"sign flip", "pushes", "ack without applying"})
NEAR: Final = 3.0
"""most times the squared distance to the optimum without a league"""
AWAY: Final = 20.0
"""the same against a league that pushes"""
SPREAD: Final = 10.0
"""most times the squared distance of the honest anchors from their mean without a league"""
DEAD: Final = 5.0
"""probe intervals for which an honest peer may take another for dead; two, if one member alone says so"""
FEW: Final = 0.3
"""largest share of the honest peers that took the model of an old member, because they had fallen behind"""
CLOCK: Final = 16.0
"""most times as fast as training that one old member lets the network's clock run, with the room that it had saved"""
YOUNG_CLOCK: Final = 1.2
"""the same of a young league; rounds end at different times"""
LONGEST: Final = 60.0
"""virtual seconds within which all have the model"""
PARAMETERS: Final = 300
READS: Final = 0.5
"""virtual seconds in which an honest peer reads a block"""


@dataclass(frozen=True)
class League:
    """Who is there. `old`: the honest peers have known the hostile members for long."""

    hostile: int
    honest: int
    old: bool = False

    @property
    def fair(self) -> float:
        """Share of the exchanges of an honest peer that are with honest ones, if it chooses partners blindly."""
        return (self.honest - 1) / (self.honest + self.hostile - 1)


@dataclass(frozen=True, kw_only=True)
class LeagueOutcome(Outcome):
    gave_up: int = 0
    """honest peers that gave up their model for the side of a league, or for the model of a member of it"""
    ended: int = 0
    """honest peers whose run was ended"""
    clock: float = 1.0
    """steps that an honest peer's network clock gained, divided by those of the fastest honest training process"""
    read: float = 1.0
    """blocks that an honest peer believed finished, divided by those that honest peers had read"""
    spread: float = 0.0
    """mean squared distance of the honest anchors from their mean"""


class LeagueSiege(Siege):
    """Honest peers that have known each other for long, and read a data set, against a league."""

    def __init__(self, seed: int, kind: type[Behaviour], league: League) -> None:
        super().__init__(seed, kind, honest=league.honest, hostile=league.hostile, size=PARAMETERS)
        self._young = [] if league.old else self.culprits
        old = [host for host in self.network.hosts if host not in self._young]
        for host in old:
            host.known = {other.id: LOCAL.proven_after for other in old if other is not host}
        self._gave_up: set[int] = set()
        self._ended: set[int] = set()
        self._clocks: dict[int, tuple[int, int]] = {}
        """honest host -> the network's clock and the steps of its training process when the siege began"""
        self._read: set[Lease] = set()

    def begin(self) -> None:
        old = [host for host in self.network.hosts if host not in self._young]
        for host, after in zip(old, np.linspace(0.0, FORMING / 2, len(old)), strict=True):
            self.network.at(float(after), "start", None, partial(self.restart, host))
        self._form(old)
        for host in self.honest:
            self.network.command(host, "open", lambda peer: peer.leasing.open(DATA, self.network.now))
            self._reads(host, None)
        for host in self._young:
            self.network.at(self.network.now, "start", None, partial(self.restart, host))
        self._form(self.network.hosts)
        for host in self.honest:
            self._clocks[host.index] = host.running.view.clock, self.trainers[host.index].steps
        self._besiege()

    def _form(self, hosts: Sequence[Host]) -> None:
        """Run until all of `hosts` have the model, and for as long again as a small network needs for that."""
        while not all(host.peer is not None and host.peer.view.ready for host in hosts):
            self.network.run(self.network.now + 1.0)
            assert self.network.now < LONGEST, "the network never formed"
        self.network.run(self.network.now + FORMING / 2)

    def _reads(self, host: Host, lease: Lease | None) -> None:
        """The host has read the block of `lease`, and takes the next."""
        network = self.network
        if lease is not None:
            self._read.add(lease)
            network.command(host, "read", lambda peer: peer.leasing.finish(DATA.digest, lease, network.now))
        known = host.running.leasing.known(DATA.digest)
        taken = host.running.leasing.lease(DATA.digest, network.now) if known else None
        network.drain(host)
        network.at(network.now + READS, "reads", host, partial(self._reads, host, taken))

    def _watch(self, host: Host, event: Event) -> None:
        super()._watch(host, event)
        if self.network.now < self._began or host in self.culprits:
            return
        match event:
            case ResyncBegan("apart"):
                self._gave_up.add(host.index)
            case ResyncEnded(source=source, complete=True) if source in self._ids:
                self._gave_up.add(host.index)
            case FinishBegan():
                self._ended.add(host.index)

    def siege(self, seconds: float = SIEGE) -> LeagueOutcome:
        outcome = super().siege(seconds)
        gained = [host.running.view.clock - self._clocks[host.index][0] for host in self.honest]
        trained = [self.trainers[host.index].steps - self._clocks[host.index][1] for host in self.honest]
        tables = [host.running.leasing.table(DATA.digest) for host in self.honest]
        finished = [table.epoch * DATA.blocks + sum(map(int.bit_count, table.finished)) for table in tables if table]
        anchors = np.array([host.algorithm.ledger.a for host in self.honest], np.float64)
        return LeagueOutcome(
            **vars(outcome),
            gave_up=len(self._gave_up),
            ended=len(self._ended),
            clock=max(gained) / max(trained),
            read=max(finished) / len(self._read),
            spread=float(np.mean(np.var(anchors, axis=0))),
        )


def play(seed: int, behaviour: str, league: League) -> LeagueOutcome:
    """Play one siege by a league.

    Raises:
        AssertionError: an honest peer failed, or was found at fault.
    """
    siege = LeagueSiege(seed, LEAGUES[behaviour], league)
    siege.begin()
    # A large network shows as much in less time.
    return siege.siege(SIEGE if league.honest < LARGE else SIEGE / 2)


def alone(seed: int, honest: int) -> LeagueOutcome:
    """The same honest peers without a league."""
    return play(seed, "none", League(0, honest))


def broken(behaviour: str, league: League, found: LeagueOutcome, calm: LeagueOutcome) -> Iterator[str]:
    """What does not hold of the honest peers, and must. calm: without the league."""
    kept, away = found.exchanges / calm.exchanges, found.distance / calm.distance
    if kept < KEPT * league.fair:
        yield f"{kept:.2f} of the exchanges are left"
    if away > (AWAY if behaviour in PUSHING else NEAR) or found.spread > SPREAD * calm.spread:
        yield f"models are {away:.1f} times as far away"
    if found.believed_dead > DEAD * LOCAL.probe_interval:
        yield f"taken for dead for {found.believed_dead:.2f} s"
    if found.aside:
        yield "set aside without proof"
    if league.old and league.hostile > 1:
        return  # two members with a voice decide for all
    if found.gave_up > (FEW * league.honest if league.old else 0):
        yield f"{found.gave_up} gave up their model"
    if found.clock > (CLOCK if league.old else YOUNG_CLOCK):
        yield f"the clock ran {found.clock:.1f} times as fast"
    if found.ended and not league.old:
        yield f"{found.ended} runs were ended"


def table(
    seeds: Sequence[int], honest: Sequence[int], behaviours: Sequence[str], say: Callable[[str], None] = print
) -> int:
    """Print the worst of all behaviours and seeds for each league. Returns how many sieges broke a rule."""
    say("honest league      exchanges  gave up  ended   clock   data  distance   broken rules")
    failed = 0
    for peers in honest:
        calm = {seed: alone(seed, peers) for seed in seeds}
        for size, old in product(SIZES, (False, True)):
            league, worst, faults = League(size, peers, old), Worst(), []
            for seed, name in product(seeds, behaviours):
                found = play(seed, name, league)
                worst = worst.with_(found, calm[seed])
                faults += [f"{name}, seed {seed}: {fault}" for fault in broken(name, league, found, calm[seed])]
            failed += len(faults)
            age = "old" if old else "young"
            say(f"{peers:6} {size} {age:9} {worst}   {'; '.join(faults) or 'none'}")
    return failed


class Worst(NamedTuple):
    """The worst figures of several sieges."""

    kept: float = math.inf
    gave_up: int = 0
    ended: int = 0
    clock: float = 0.0
    read: float = 0.0
    away: float = 0.0

    def with_(self, found: LeagueOutcome, calm: LeagueOutcome) -> Worst:
        """Counts one more siege. calm: without the league."""
        return Worst(
            min(self.kept, found.exchanges / calm.exchanges),
            max(self.gave_up, found.gave_up),
            max(self.ended, found.ended),
            max(self.clock, found.clock),
            max(self.read, found.read),
            max(self.away, found.distance / calm.distance),
        )

    def __str__(self) -> str:
        figures = f"{self.kept:9.2f} {self.gave_up:8} {self.ended:6} {self.clock:7.1f} {self.read:6.1f}"
        return f"{figures} {self.away:9.2f}"
