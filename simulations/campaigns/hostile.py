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
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from random import Random
from typing import Final

import numpy as np
from msgspec.structs import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import Event, ExchangeEnded, ExchangeStarted, Struck
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    Accept,
    Ack,
    Ask,
    Data,
    End,
    Lane,
    Member,
    Message,
    Miss,
    Offer,
    Ping,
    Pong,
    Progress,
    PushPull,
    Ranges,
    Refuse,
    State,
    StateRequest,
    Void,
)
from gossipdp.protocol.wire.table import DATA_LANE
from simulations.simulator.cluster import SETTINGS, Cluster, Plan
from simulations.simulator.host import Host, perform, sign, verify
from simulations.simulator.network import Conditions

__all__ = ["BEHAVIOURS", "Behaviour", "Siege", "Verdict", "besiege"]

CULPRIT: Final = 3
"""the host that is hostile; the first two are those that newcomers dial"""
FORMING: Final = 6.0
SIEGE: Final = 16.0
"""virtual seconds of the two acts"""
LOOK: Final = 0.05
"""virtual seconds between two looks at whom honest peers take for dead"""


def envelope(to: Host, message: Message, buffers: tuple[Buffer, ...] = ()) -> Envelope:
    lane = Lane.DATA if type(message) in DATA_LANE else Lane.CONTROL
    return Envelope(to.id, to.address, lane, wire.encode(message, buffers), message)


class Behaviour:
    """Honest in everything; what a behaviour does not override is.

    Args: siege: the network, in which the culprit is up and has the model.
    """

    excuse = "it is honest"
    """why no word of it proves anything: who honest says the same, and when; "" if there is a word that nobody honest
    says, for which it must be set aside"""
    answers = False
    """is that an answer, which only those hear who offer it an exchange? A schedule has some always offered one"""
    beat = math.inf
    """seconds between two times that it speaks unasked"""

    def __init__(self, siege: Siege) -> None:
        self.siege, self.host = siege, siege.culprit
        self.random = Random(f"hostile/{siege.network.seed}")

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        """What goes out in the place of `envelope`."""
        return (envelope,)

    def does(self, job: jobs.Job[object]) -> object:
        """Carry out one of its own jobs."""
        return perform(self.host, job)

    def speaks(self) -> Iterable[Envelope]:
        """Once a beat."""
        return ()


class Flood(Behaviour):
    """Eighty offers, questions and requests a second to each, all of them well-formed."""

    excuse = "each word is an honest one, and how many come at once is the network's doing, too"
    beat = 0.05

    def __init__(self, siege: Siege) -> None:
        super().__init__(siege)
        self._number = self.host.incarnation << 32 | 1 << 20

    def speaks(self) -> Iterator[Envelope]:
        self._number += 1
        schema = self.siege.schema.digest
        for to in self.siege.honest:
            told = self._number
            yield envelope(to, Offer(told, schema, SETTINGS, "modulo4", 0.5, 0.0, 0, 8))
            yield envelope(to, Ask(self.random.randrange(told), 0, 0))
            yield envelope(to, StateRequest(told))
            yield envelope(to, Ping(told % 2**32))


class NeverAck(Behaviour):
    """Takes part until its partner waits for the last word, and falls silent."""

    excuse = "last words get lost, and the honest crash before theirs"

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        last = isinstance(envelope.message, Ack | End | Void) or (
            isinstance(envelope.message, Data) and envelope.message.turn > 1
        )
        return () if last else (envelope,)


class AckWithoutApplying(Behaviour):
    """Acknowledges, and stays where it is: others come to it."""

    excuse = "nobody sees another's anchor, which moves by its own steps and others' exchanges, too"

    def does(self, job: jobs.Job[object]) -> object:
        if not isinstance(job, jobs.DecodeAndMix | jobs.Mix):
            return perform(self.host, job)
        ledger = self.host.algorithm.ledger
        anchor, momentum = ledger.a.copy(), ledger.v.copy()
        result = perform(self.host, job)
        ledger.a[:], ledger.v[:] = anchor, momentum
        return result


class OneByteASecond(Behaviour):
    """Each word of an exchange takes as long as is just not silence yet; and it is always there with the next offer."""

    excuse = "so does an honest peer on a link that is as slow"
    beat = 0.5
    hesitates = 0.8
    """of what its partner puts up with"""

    def __init__(self, siege: Siege) -> None:
        super().__init__(siege)
        self._number = self.host.incarnation << 32 | 1 << 20

    def speaks(self) -> Iterator[Envelope]:
        self._number += 1
        for to in self.siege.honest:
            yield envelope(to, Offer(self._number, self.siege.schema.digest, SETTINGS, "modulo4", 0.5, 0.0, 0, 8))

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if isinstance(envelope.message, End):
            return ()
        if not isinstance(envelope.message, Ranges | Data | Ack | Miss):
            return (envelope,)
        network = self.siege.network
        strategy = self.host.config.strategy
        assert isinstance(strategy, PairwiseConfig)
        wait = self.hesitates * strategy.deadlines.silence
        network.at(network.now + wait, "hesitates", self.host, partial(network.say, self.host, envelope))
        return ()


class Equivocation(Behaviour):
    """Tells everybody of another anchor."""

    excuse = "nobody compares what it told two partners at different times, and no word of pairwise is signed"

    def does(self, job: jobs.Job[object]) -> object:
        if not isinstance(job, jobs.Begin | jobs.Answer):
            return perform(self.host, job)
        ledger = self.host.algorithm.ledger
        span = ledger.span(job.key.chunk)
        anchor = ledger.a[span].copy()
        other = np.random.default_rng(job.key.exchange).standard_normal(len(anchor)).astype(np.float32)
        ledger.a[span] += other * np.std(anchor)
        result = perform(self.host, job)
        ledger.a[span] = anchor
        return result


class Replay(Behaviour):
    """Says again, to anybody, what it has ever said to somebody."""

    excuse = "networks double and delay what the honest say"
    beat = 0.05

    def __init__(self, siege: Siege) -> None:
        super().__init__(siege)
        self._said: deque[Envelope] = deque(maxlen=4000)

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if envelope.to and not isinstance(envelope.message, Ping):
            self._said.append(envelope)
        return (envelope,)

    def speaks(self) -> Iterator[Envelope]:
        for _ in range(4 if self._said else 0):
            said = self.random.choice(self._said)
            to = self.random.choice(self.siege.honest)
            yield said if self.random.random() < 0.5 else said._replace(to=to.id, address=to.address)


class ForgedSender(Behaviour):
    """Speaks of others' exchanges as if it were one of the two, and tells of others what only they may say."""

    excuse = "a word about an exchange that is not known is what a restart or a long delay leaves of an honest one"
    beat = 0.2

    def __init__(self, siege: Siege) -> None:
        super().__init__(siege)
        self._counters: Counter[int] = Counter()

    def speaks(self) -> Iterator[Envelope]:
        one, other = self.random.sample(self.siege.honest, 2)
        # Numbers are incarnation and counter: easily guessed.
        exchange = one.incarnation << 32 | self.random.randint(1, 80)
        for to in (one, other):
            for turn in range(1, 4):
                yield envelope(to, Data(exchange, 0, turn, math.inf), (b"\0" * 64,))
                yield envelope(to, Ack(exchange, 0, turn, 1.0))
            yield envelope(to, Void(exchange, 0))
            yield envelope(to, Refuse(exchange, "busy"))
            yield envelope(to, Accept(exchange, "modulo4", 0.5, 0.0, 8))
            yield envelope(to, End(exchange, to is other, "lost"))
            accused = replace(one.running.membership.me, state=State.SUSPECT, accusers=(other.id,))
            yield envelope(to, Ping(self.random.getrandbits(32), (accused,)))


class ForgedWords(Behaviour):
    """Says in the name of each other member that it left, restarted, moved or trained far ahead."""

    excuse = ""
    beat = 0.2

    def speaks(self) -> Iterator[Envelope]:
        signer = Signer(partial(sign, self.host.id), verify)
        for to in self.siege.honest:
            victim = self.random.choice([host for host in self.siege.honest if host is not to])
            word = victim.running.membership.me
            records = (
                replace(word, state=State.LEFT),
                replace(word, state=State.LEFT, refutation=word.refutation + 1),
                replace(word, incarnation=word.incarnation + 1),
                replace(word, refutation=2**32 - 1, state=State.FAILED),
                replace(word, refutation=word.refutation + 1, address=self.host.address),
            )
            report = Progress(victim.id, 1 << 30, 1 << 30, 1, 1)
            yield envelope(to, Ping(self.random.getrandbits(32), (signer.sign_member(self.random.choice(records)),)))
            yield envelope(to, Ping(self.random.getrandbits(32), (), (signer.sign_progress(report),)))


class FalseDeaths(Behaviour):
    """Says of each other member that it failed: a verdict on its own latest word."""

    excuse = "an honest member that a cut keeps from another says the same"
    beat = 0.2

    def speaks(self) -> Iterator[Envelope]:
        for to in self.siege.honest:
            dead = [replace(host.running.membership.me, state=State.FAILED) for host in self.siege.honest]
            yield envelope(to, Ping(self.random.getrandbits(32), tuple(dead)))


class Storm(Behaviour):
    """Doubts each member at its latest word and repeats its earlier ones, 24 times a second."""

    excuse = "doubts and words that come late are the network's doing, too"
    beat = 0.04

    def __init__(self, siege: Siege) -> None:
        super().__init__(siege)
        self._words: dict[bytes, deque[Member]] = {host.id: deque(maxlen=8) for host in siege.honest}

    def speaks(self) -> Iterator[Envelope]:
        for host in self.siege.honest:
            word = host.running.membership.me
            if word not in self._words[host.id]:
                self._words[host.id].append(word)
        for to in self.siege.honest:
            others = [words for peer, words in self._words.items() if peer != to.id]
            accusers = tuple(host.id for host in self.siege.honest)
            doubts = tuple(replace(words[-1], state=State.SUSPECT, accusers=accusers) for words in others)
            doubts += (replace(self._words[to.id][-1], state=State.FAILED),)
            earlier = tuple(self.random.choice(words) for words in others)
            yield envelope(to, Pong(0, doubts))
            yield envelope(to, Pong(0, earlier))
            yield envelope(to, PushPull(True, earlier))


class Ghosts(Behaviour):
    """Introduces 1,250 members a second that do not exist, each with a key of its own."""

    excuse = "a network may grow by as many"
    beat = 0.04
    a_message = 15

    def speaks(self) -> Iterator[Envelope]:
        for to in self.siege.honest:
            for _ in range(3):
                ids = [self.random.randbytes(32) for _ in range(self.a_message)]
                ghosts = [Member(peer, "ghost", "10.66.0.1:4000", 1, 0, State.ALIVE) for peer in ids]
                signed = [Signer(partial(sign, ghost.id), verify).sign_member(ghost) for ghost in ghosts]
                yield envelope(to, Pong(0, tuple(signed)))


class Garbage(Behaviour):
    """Bytes that are no message."""

    excuse = ""
    beat = 0.05

    def speaks(self) -> Iterator[Envelope]:
        for to in self.siege.honest:
            junk = self.random.randbytes(self.random.randint(1, 200))
            yield envelope(to, Ping(0))._replace(frames=[junk])


class Malformed(Behaviour):
    """Its codes are of no codec."""

    excuse = ""

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if isinstance(envelope.message, Data | Ranges) and envelope.frames[1:]:
            return (envelope._replace(frames=[envelope.frames[0], *(b"\1" * 7 for _ in envelope.frames[1:])]),)
        return (envelope,)


class Overclaim(Behaviour):
    """Has its partner move all the way, where less was agreed: acknowledges a share of 1, from far away."""

    excuse = ""
    answers = True

    def does(self, job: jobs.Job[object]) -> object:
        if not isinstance(job, jobs.Begin | jobs.Answer):
            return perform(self.host, job)
        span = self.host.algorithm.ledger.span(job.key.chunk)
        anchor = self.host.algorithm.ledger.a[span].copy()
        self.host.algorithm.ledger.a[span] += np.float32(10.0)
        result = perform(self.host, job)
        self.host.algorithm.ledger.a[span] = anchor
        return result

    def sends(self, envelope: Envelope) -> Iterable[Envelope]:
        if isinstance(envelope.message, Ack):
            message = replace(envelope.message, share=1.0)
            return (envelope._replace(frames=[*wire.encode(message), *envelope.frames[1:]], message=message),)
        return (envelope,)


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

    def _execute(self, host: Host, job: jobs.Job[object]) -> object:
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
