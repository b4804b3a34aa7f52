"""Campaign T12: an admitted member that is hostile, in a network of three honest peers.

    python -m simulations.campaigns.hostile --seeds 100

A hostile host runs the peer that all run. Its behaviour (`behaviours`) changes what the peer sends, changes its jobs on
vectors, and sends messages of its own. It cannot send in another member's name, because the transport knows the peer at
each end of a link. It cannot read what others send to each other. Well-formed bad updates are campaign T13.

The command plays every behaviour against the same network without it. It prints what the honest peers lost, and when
they set the culprit aside.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from random import Random
from typing import Final

import numpy as np

from gossipdp.protocol import jobs
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import Event, ExchangeEnded, ExchangeStarted, MessageFailed, Struck
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.wire.messages import (
    Lane,
    State,
)
from simulations.campaigns.behaviours.base import Behaviour
from simulations.campaigns.behaviours.exchanges import (
    AckWithoutApplying,
    Equivocation,
    Malformed,
    NeverAck,
    OneByteASecond,
    Overclaim,
)
from simulations.campaigns.behaviours.extremes import Extremes
from simulations.campaigns.behaviours.membership import FalseDeaths, ForgedSender, ForgedWords, Ghosts, Storm
from simulations.campaigns.behaviours.traffic import Flood, Garbage, Replay
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions

__all__ = ["BEHAVIOURS", "Outcome", "Siege", "play"]

CULPRIT: Final = 3
"""the hostile host; newcomers dial the first two"""
FORMING: Final = 6.0
SIEGE: Final = 16.0
"""virtual seconds of each act"""
LOOK: Final = 0.05
"""virtual seconds between two checks of which honest peers are believed dead"""

BEHAVIOURS: Final[Mapping[str, type[Behaviour]]] = {
    "none": Behaviour,
    "flood": Flood,
    "never ack": NeverAck,
    "ack without applying": AckWithoutApplying,
    "1 B/s": OneByteASecond,
    "equivocation": Equivocation,
    "replay": Replay,
    "forged sender": ForgedSender,
    "forged words": ForgedWords,
    "false deaths": FalseDeaths,
    "storm": Storm,
    "ghosts": Ghosts,
    "garbage": Garbage,
    "malformed": Malformed,
    "overclaim": Overclaim,
    "extremes": Extremes,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one siege. Hosts are numbers, times are virtual seconds."""

    exchanges: int = 0
    """sides of exchanges between honest peers that mixed something, since the siege began"""
    distance: float = math.nan
    """mean squared distance of the honest peers to the optimum of training"""
    met: Counter[int] = field(default_factory=Counter)
    """honest host -> exchanges in which it could have noticed the culprit's fault before it set the culprit aside"""
    aside: dict[int, float] = field(default_factory=dict)
    """honest host -> when it set the culprit aside"""
    strikes: Counter[str] = field(default_factory=Counter)
    """strikes by reason"""
    believed_dead: float = 0.0
    """longest time for which an honest peer believed another dead"""
    control_rate: float = 0.0
    """most bytes per second that an honest peer sent on the control lane, over four seconds"""


class Siege(Cluster):
    """Four peers that train in a fair network. One of them becomes hostile."""

    def __init__(self, seed: int, behaviour: str) -> None:
        random = Random(f"siege/{seed}")
        fair = Conditions(
            latency=random.choice((0.005, 0.02, 0.05)),
            bandwidth=1.25e7,
            loss=random.choice((0.0, 0.02)),
            duplicate=0.02,
            job=0.002,
        )
        plan = Plan(peers=4, size=8192 + 300, conditions=fair, every=4, window=random.choice((2, 8)), before=fair)
        self.behaviour: Behaviour | None = None
        super().__init__(seed, plan, tampers=self._tampers)
        self.culprit = self.network.hosts[CULPRIT]
        self.honest = [host for host in self.network.hosts if host is not self.culprit]
        self.listeners.append(self._watch)
        self._kind = BEHAVIOURS[behaviour]
        self._exchanges = 0
        self._met: Counter[int] = Counter()
        self._aside: dict[int, float] = {}
        self._strikes: Counter[str] = Counter()
        self._sent: Counter[tuple[int, int]] = Counter()
        """(honest host, second) -> bytes on the control lane"""
        self._dead_since: dict[tuple[int, int], float] = {}
        """(honest host, host that it believes dead) -> since when"""
        self._believed_dead = 0.0

    def _config(self) -> PeerConfig:
        """Deadlines fit rounds of 0.8 s: a silent partner costs about one round, as with the defaults. Faults of two
        exchanges count as two."""
        config = super()._config()
        deadlines = Deadlines(ask=0.3, silence=1.0, doubt=0.5)
        averaging = dataclasses.replace(config.averaging, deadlines=deadlines)
        return dataclasses.replace(config, averaging=averaging, quarantine=QuarantineConfig(together=0.1))

    def begin(self) -> None:
        """Form the network. Then the culprit begins to misbehave."""
        for host in self.network.hosts:
            self.network.at(0.5 * host.index, "start", None, partial(self.restart, host))
        self.network.run(FORMING)
        assert all(host.running.replica.ready for host in self.network.hosts), "the network never formed"
        if self._kind is not Behaviour:
            self.books.expect_faults_of(self.culprit.id)
        self._look()
        self.behaviour = self._kind(self)
        self._beat()

    def end_hostility(self) -> None:
        """From now on the culprit is honest."""
        self.behaviour = Behaviour(self)

    def siege(self, seconds: float = SIEGE) -> Outcome:
        """Run on. What must hold of honest peers is checked around every job."""
        self.network.run(self.network.now + seconds)
        distances = []
        for host in self.honest:
            self.books.check(host, range(host.algorithm.ledger.chunks))
            trainer = self.trainers[host.index]
            distances.append(float(np.mean((trainer.x - trainer.optimum).astype(np.float64) ** 2)))
        control = (sum(self._sent[index, second + later] for later in range(4)) for index, second in list(self._sent))
        return Outcome(
            exchanges=self._exchanges,
            distance=float(np.mean(distances)),
            met=self._met,
            aside=self._aside,
            strikes=self._strikes,
            believed_dead=self._believed_dead,
            control_rate=max(control, default=0) / 4.0,
        )

    def _execute(self, host: Host, job: jobs.Job[object]) -> object:
        if self.behaviour is not None and host.id in self.books.hostile:
            return self.behaviour.does(job)
        return self.books.run(host, job)

    def _tampers(self, host: Host, envelope: Envelope) -> Iterable[Envelope]:
        if self.behaviour is None:
            return (envelope,)
        if host is self.culprit:
            return self.behaviour.sends(envelope)
        if envelope.lane == Lane.CONTROL:
            self._sent[host.index, int(self.network.now)] += sum(memoryview(frame).nbytes for frame in envelope.frames)
        return (envelope,)

    def _beat(self) -> None:
        assert self.behaviour is not None
        for envelope in self.behaviour.speaks():
            self.network.inject(self.culprit, envelope)
        if math.isfinite(self.behaviour.beat):
            self.network.at(self.network.now + self.behaviour.beat, "speaks", self.culprit, self._beat)

    def _look(self) -> None:
        now = self.network.now
        for one, other in permutations(self.honest, 2):
            if one.running.membership.members[other.id].state in (State.FAILED, State.LEFT):
                since = self._dead_since.setdefault((one.index, other.index), now)
                self._believed_dead = max(self._believed_dead, now - since)
            else:
                self._dead_since.pop((one.index, other.index), None)
        self.network.at(now + LOOK, "looks", None, self._look)

    def _watch(self, host: Host, event: Event) -> None:
        if self.behaviour is None or host is self.culprit:
            return
        culprit = self.culprit.id
        match event:
            case ExchangeEnded(partner=partner, chunks=chunks) if chunks and partner != culprit:
                self._exchanges += 1
            case ExchangeStarted(partner=partner, initiator=initiator) if partner == culprit:
                if host.index not in self._aside and (initiator or not self.behaviour.answers):
                    self._met[host.index] += 1
            case MessageFailed():
                raise AssertionError(f"{host.name}: {event}")
            case Struck(peer, reason, _, pause):
                assert peer == culprit, f"{host.name} struck an honest peer: {event}"
                self._strikes[reason] += 1
                if pause:
                    self._aside.setdefault(host.index, self.network.now)


def play(seed: int, behaviour: str) -> Outcome:
    """Play one siege.

    Raises:
        AssertionError: an invariant of the honest peers broke, or one of them was found at fault.
    """
    siege = Siege(seed, behaviour)
    siege.begin()
    return siege.siege()


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=BEHAVIOURS, default=list(BEHAVIOURS))
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    calm = {seed: play(seed, "none") for seed in seeds}
    say(f"{'behaviour':22} {'exchanges':>10} {'distance':>10} {'met':>5} {'aside':>6}   strikes")
    for name in options.only:
        found = {seed: calm[seed] if name == "none" else play(seed, name) for seed in seeds}
        rate = min(found[seed].exchanges / calm[seed].exchanges for seed in seeds)
        away = max(found[seed].distance / calm[seed].distance for seed in seeds)
        met = max((max(each.met.values(), default=0) for each in found.values()), default=0)
        aside = min(len(each.aside) for each in found.values())
        strikes = sum((each.strikes for each in found.values()), Counter())
        say(f"{name:22} {rate:10.2f} {away:10.2f} {met:5} {aside:4}/3   {dict(strikes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
