"""Members that are admitted and mean harm (campaign T12): what each does, and the network that has to bear with it.

A hostile host runs the very peer that all run, but what its peer says passes through its hands, and so do the jobs on
its vectors; besides it says what no peer would. It cannot speak in another's name, for the transport knows who is at
the other end of a link, nor read what others say to each other. Bad updates that are well-formed are T13's subject
(`attacks`). Nothing of the defence may stand here.

    python -m simulations.campaigns.hostile --seeds 100

plays every behaviour against the same network without it, and says what honest peers lost and when it was set aside.
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
from gossipdp.protocol.events import Event, ExchangeEnded, ExchangeStarted, Struck
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.pairwise.config import PairwiseConfig
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
from simulations.campaigns.behaviours.membership import FalseDeaths, ForgedSender, ForgedWords, Ghosts, Storm
from simulations.campaigns.behaviours.traffic import Flood, Garbage, Replay
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions

__all__ = ["BEHAVIOURS", "Behaviour", "Siege", "Verdict", "besiege"]

CULPRIT: Final = 3
"""the host that is hostile; the first two are those that newcomers dial"""
FORMING: Final = 6.0
SIEGE: Final = 16.0
"""virtual seconds of the two acts"""
LOOK: Final = 0.05
"""virtual seconds between two looks at whom honest peers take for dead"""

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
}


@dataclass
class Verdict:
    """What one siege came to."""

    exchanges: int = 0
    """sides of exchanges among honest peers that mixed something, since it began"""
    distance: float = math.nan
    """mean over honest peers of the squared distance to where training leads"""
    met: Counter[int] = field(default_factory=Counter)
    """exchanges in which each honest peer could have heard the culprit's fault before it set it aside"""
    aside: dict[int, float] = field(default_factory=dict)
    """when each did so"""
    strikes: Counter[str] = field(default_factory=Counter)
    """by reason"""
    buried: float = 0.0
    """longest time in seconds for which an honest peer took another one for dead"""
    control: float = 0.0
    """most bytes that an honest peer sent in any four seconds on the control lane, a second"""


class Siege(Cluster):
    """Four peers that train, of whom one is hostile from a time on; the network itself is fair."""

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
        super().__init__(seed, plan)
        self.culprit = self.network.hosts[CULPRIT]
        self.honest = [host for host in self.network.hosts if host is not self.culprit]
        self.verdict = Verdict()
        self.listeners.append(self._watch)
        self.behaviour: Behaviour | None = None
        self._sent: Counter[tuple[int, int]] = Counter()
        """(an honest peer, second) -> bytes on the control lane"""
        self._dead: dict[tuple[int, int], float] = {}
        """(an honest peer, one that it takes for dead) -> since when"""
        self._kind = BEHAVIOURS[behaviour]

    def _config(self) -> PeerConfig:
        """Times in proportion to rounds of 0.8 s: about one of them is waited for who is silent, as by default, and a
        fault in each of two exchanges is two."""
        config = super()._config()
        deadlines = Deadlines(ask=0.3, silence=1.0, doubt=0.5)
        assert isinstance(config.strategy, PairwiseConfig)
        strategy = dataclasses.replace(config.strategy, deadlines=deadlines)
        return dataclasses.replace(config, strategy=strategy, quarantine=QuarantineConfig(together=0.1))

    def begin(self) -> None:
        """All come, and have the model; then the culprit is what it is."""
        for host in self.network.hosts:
            self.network.at(0.5 * host.index, "start", None, partial(self.restart, host))
        self.network.run(FORMING)
        assert all(host.running.ready for host in self.network.hosts), "the network never formed"
        self.books.hostile = () if self._kind is Behaviour else (self.culprit.id,)
        self._look()
        self.behaviour = self._kind(self)
        self.network.tampers = self._tampers
        self._beat()

    def relent(self) -> None:
        """From now on the culprit is honest."""
        self.behaviour = Behaviour(self)

    def siege(self, seconds: float = SIEGE) -> Verdict:
        """The second act; what must hold of honest peers is checked around every job."""
        self.network.run(self.network.now + seconds)
        away = []
        for host in self.honest:
            self.books.check(host, range(host.algorithm.ledger.chunks))
            trainer = self.trainers[host.index]
            away.append(float(np.mean((trainer.x - trainer.optimum).astype(np.float64) ** 2)))
        self.verdict.distance = float(np.mean(away))
        for index, begun in self._sent:
            sent = sum(self._sent[index, second] for second in range(begun, begun + 4))
            self.verdict.control = max(self.verdict.control, sent / 4.0)
        return self.verdict

    def _execute(self, host: Host, job: jobs.Job) -> jobs.Result:
        if self.behaviour is not None and host.id in self.books.hostile:
            return self.behaviour.does(job)
        return self.books.run(host, job)

    def _tampers(self, host: Host, envelope: Envelope) -> Iterable[Envelope]:
        if host is not self.culprit and envelope.lane == Lane.CONTROL:
            self._sent[host.index, int(self.network.now)] += sum(memoryview(frame).nbytes for frame in envelope.frames)
        if host is self.culprit and self.behaviour is not None:
            return self.behaviour.sends(envelope)
        return (envelope,)

    def _beat(self) -> None:
        assert self.behaviour is not None
        for told in self.behaviour.speaks():
            self.network.say(self.culprit, told)
        if math.isfinite(self.behaviour.beat):
            self.network.at(self.network.now + self.behaviour.beat, "speaks", self.culprit, self._beat)

    def _look(self) -> None:
        now = self.network.now
        for one, other in permutations(self.honest, 2):
            if one.running.membership.members[other.id].state in (State.FAILED, State.LEFT):
                begun = self._dead.setdefault((one.index, other.index), now)
                self.verdict.buried = max(self.verdict.buried, now - begun)
            else:
                self._dead.pop((one.index, other.index), None)
        self.network.at(now + LOOK, "looks", None, self._look)

    def _watch(self, host: Host, event: Event) -> None:
        if self.behaviour is None or host is self.culprit:
            return
        verdict, culprit = self.verdict, self.culprit.id
        match event:
            case ExchangeEnded(partner=partner, chunks=chunks) if chunks and partner != culprit:
                verdict.exchanges += 1
            case ExchangeStarted(partner=partner, initiator=initiator) if partner == culprit:
                if host.index not in verdict.aside and (initiator or not self.behaviour.answers):
                    verdict.met[host.index] += 1
            case Struck(peer, reason, _, pause):
                assert peer == culprit, f"{host.name} struck an honest peer: {event}"
                verdict.strikes[reason] += 1
                if pause:
                    verdict.aside.setdefault(host.index, self.network.now)


def besiege(seed: int, behaviour: str) -> Verdict:
    """Play one siege through.

    Raises:
        AssertionError: an invariant of the honest is broken, or one of them was found at fault.
    """
    siege = Siege(seed, behaviour)
    siege.begin()
    return siege.siege()


def main(arguments: list[str] | None = None, tell: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=BEHAVIOURS, default=list(BEHAVIOURS))
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    calm = {seed: besiege(seed, "none") for seed in seeds}
    tell(f"{'behaviour':22} {'exchanges':>10} {'distance':>10} {'met':>5} {'aside':>6}   strikes")
    for name in options.only:
        found = {seed: calm[seed] if name == "none" else besiege(seed, name) for seed in seeds}
        rate = min(found[seed].exchanges / calm[seed].exchanges for seed in seeds)
        away = max(found[seed].distance / calm[seed].distance for seed in seeds)
        met = max((max(each.met.values(), default=0) for each in found.values()), default=0)
        aside = min(len(each.aside) for each in found.values())
        strikes = sum((each.strikes for each in found.values()), Counter())
        tell(f"{name:22} {rate:10.2f} {away:10.2f} {met:5} {aside:4}/3   {dict(strikes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
