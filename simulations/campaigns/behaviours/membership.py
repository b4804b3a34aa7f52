"""Hostile members: false news of other members and of their exchanges."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire.messages import (
    Accept,
    Ack,
    Data,
    End,
    Member,
    Ping,
    Pong,
    Progress,
    PushPull,
    Refuse,
    State,
    Void,
)
from simulations.campaigns.behaviours.base import Behaviour, Surroundings, envelope
from simulations.simulator.host import sign, verify

__all__ = ["FalseDeaths", "FewGhosts", "ForgedSender", "ForgedWords", "Ghosts", "Storm"]


class ForgedSender(Behaviour):
    """Sends messages of other peers' exchanges as if it took part, and accuses other members."""

    excuse = "after a restart or a long delay an honest peer sends messages of unknown exchanges too"
    beat = 0.2

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._counters: Counter[int] = Counter()

    def speaks(self) -> Iterator[Envelope]:
        one, other = self.random.sample(self.honest, 2)
        # Numbers are incarnation and counter, so they are easy to guess.
        exchange = one.incarnation << 32 | self.random.randint(1, 80)
        for to in (one, other):
            for turn in range(1, 4):
                yield envelope(to, Data(exchange, 0, turn, math.inf), (b"\0" * 64,))
                yield envelope(to, Ack(exchange, 0, turn, 1.0))
            yield envelope(to, Void(exchange, 0))
            yield envelope(to, Refuse(exchange, "busy"))
            yield envelope(to, Accept(exchange, "modulo4", 0.5, 0.0, 8))
            yield envelope(to, End(exchange, to is other, "lost"))
            accused = replace(one.running.view.me, state=State.SUSPECT, accusers=(other.id,))
            yield envelope(to, Ping(self.random.getrandbits(32), (accused,)))


class ForgedWords(Behaviour):
    """Claims in the name of each other member that it left, restarted, moved or trained far ahead."""

    excuse = ""
    beat = 0.2

    def speaks(self) -> Iterator[Envelope]:
        signer = Signer(partial(sign, self.host.id), verify)
        for to in self.honest:
            victim = self.random.choice([host for host in self.honest if host is not to])
            word = victim.running.view.me
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
    """Claims that each other member failed, at its latest record."""

    excuse = "an honest member behind a cut says the same"
    beat = 0.2

    def speaks(self) -> Iterator[Envelope]:
        for to in self.honest:
            dead = [replace(host.running.view.me, state=State.FAILED) for host in self.honest]
            yield envelope(to, Ping(self.random.getrandbits(32), tuple(dead)))


class Storm(Behaviour):
    """Suspects each member at its latest record, and repeats its earlier records, 24 times a second."""

    excuse = "a bad network causes late doubts and records too"
    beat = 0.04

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._words: dict[bytes, deque[Member]] = {host.id: deque(maxlen=8) for host in surroundings.honest}

    def speaks(self) -> Iterator[Envelope]:
        for host in self.honest:
            word = host.running.view.me
            if word not in self._words[host.id]:
                self._words[host.id].append(word)
        for to in self.honest:
            others = [words for peer, words in self._words.items() if peer != to.id]
            accusers = tuple(host.id for host in self.honest)
            doubts = tuple(replace(words[-1], state=State.SUSPECT, accusers=accusers) for words in others)
            doubts += (replace(self._words[to.id][-1], state=State.FAILED),)
            earlier = tuple(self.random.choice(words) for words in others)
            yield envelope(to, Pong(0, doubts))
            yield envelope(to, Pong(0, earlier))
            yield envelope(to, PushPull(True, earlier))


class Ghosts(Behaviour):
    """Introduces 1,250 members a second that do not exist, each with a key of its own."""

    excuse = "a network may grow as fast"
    beat = 0.04
    a_message = 15

    def speaks(self) -> Iterator[Envelope]:
        for to in self.honest:
            for _ in range(3):
                ids = [self.random.randbytes(32) for _ in range(self.a_message)]
                ghosts = [Member(peer, "ghost", "10.66.0.1:4000", 1, 0, State.ALIVE) for peer in ids]
                signed = [Signer(partial(sign, ghost.id), verify).sign_member(ghost) for ghost in ghosts]
                yield envelope(to, Pong(0, tuple(signed)))


class FewGhosts(Ghosts):
    """Introduces 90 members a second. That is nine times as many as a peer takes from one member."""

    beat = 0.5
