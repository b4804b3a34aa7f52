"""Two peers and one exchange between them, in which a single thing goes wrong. `exhaustive` plays all of them.

A `Duel` runs identically until its fault strikes. So a fault can be named by what it strikes: the n-th message of a
kind in one direction, or the n-th event of the exchange (a delivery, a job, the receipt of its result). After the fault
both peers go on until all is calm. Then `invariants` must hold and both must have averaged again. The survivor must
have counted a chunk as in doubt exactly if it cannot know whether it was mixed (`doubt_oracle`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gossipdp.protocol import jobs
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import Event, Left, SessionRefused
from gossipdp.protocol.presets import SIMULATED_LINK
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.messages import Accept, Ack, Ask, Data, End, Message, Miss, Offer, Ranges, Refuse, Void
from simulations.campaigns.doubt_oracle import DoubtOracle, ExchangeId, exchange_of
from simulations.campaigns.exchange_faults import Fault, Label, Setting, Step
from simulations.simulator.host import Host
from simulations.simulator.invariants import Books
from simulations.simulator.network import Conditions, Network, Record
from simulations.simulator.settings import averaging_config, peer_config
from simulations.simulator.trainer import Trainer, TrainerConfig

__all__ = ["MISPREDICTED", "Duel"]

FORMED = 2.1
"""virtual seconds after which the next exchange is watched, once both peers train"""
CALM, PATIENCE = 1.2, 25.0
"""seconds of calm before the final check, and longest time until all must be well"""
MISPREDICTED = 1e-6
"""range that both sides predict for the first chunk, far too small: it escalates through every stage"""
LATE = 0.9
"""delay in seconds of a late copy: longer than the exchange and what follows it"""

OF_EXCHANGES = (Offer, Accept, Refuse, Ranges, Data, Ack, Ask, Miss, Void, End)
WORK = (jobs.Begin, jobs.Answer, jobs.Decode, jobs.DecodeAndMix, jobs.Mix, jobs.Drop)


class Wire(Network):
    """A network with two hooks.

    Args:
        before: asked for each message before its delivery; False: the hook delivers it itself, or never.
        after: called after each event.
    """

    def __init__(
        self,
        seed: int,
        conditions: Conditions,
        *,
        listen: Callable[[Host, Event], None],
        execute: Callable[[Host, jobs.Job[object]], object],
        trace: Callable[[Record], None],
        before: Callable[[Host, Host, list[bytes], Message], bool],
        after: Callable[[str, Host | None], None],
    ) -> None:
        super().__init__(seed, conditions, listen=listen, execute=execute, trace=trace)
        self._before, self._after = before, after

    def at(self, when: float, kind: str, host: Host | None, action: Callable[[], None]) -> None:
        def act() -> None:
            action()
            self._after(kind, host)

        super().at(when, kind, host, act)

    def _deliver(self, sender: Host, target: Host, frames: list[bytes], message: Message) -> None:
        if self._before(sender, target, frames, message):
            self.hand_over(sender, target, frames, message)

    def hand_over(self, sender: Host, target: Host, frames: list[bytes], message: Message) -> None:
        super()._deliver(sender, target, frames, message)


class Duel:
    """One run of the watched exchange.

    Args:
        setting: the kind of exchange.
        faults: what goes wrong in it.
        trace: receives all records.
    """

    def __init__(
        self, setting: Setting, faults: Iterable[Fault] = (), trace: Callable[[Record], None] | None = None
    ) -> None:
        self.setting, self.faults = setting, tuple(faults)
        self.labels: list[Label] = []
        self.steps: list[Step] = []
        self.last_step = 0
        """the step that delivers the last message of the watched exchange"""
        self.struck: tuple[int, int] | None = None
        """numbers of messages and steps when the first fault struck, that message included"""
        self.network = Wire(
            setting.seed,
            Conditions(latency=0.005, jitter=0.2, job=setting.job),
            listen=self._listen,
            execute=self._execute,
            trace=self._traced,
            before=self._before,
            after=self._after,
        )
        self._trace = trace
        self.books = Books(self.network.hosts, lambda: self.network.now)
        self.oracle = DoubtOracle(self.network.hosts, setting.window, setting.chunks)
        size = 8192 * (setting.chunks - 1) + 300
        self.schema = Schema.of([("weight", (size,), "float32", "parameter")])
        self.trainers: dict[int, Trainer] = {}
        self._number = 0
        self.watched: list[ExchangeId] = []
        """the watched exchange, or both of two that cross"""
        self._waits = False
        self._seen: Counter[tuple[int, str, int, int]] = Counter()
        self._held: list[tuple[Host, Host, list[bytes], Message]] = []
        self._again: dict[int, float] = {}
        """host -> delay of the repetition of its messages"""
        self._ends = 0.0
        for _ in range(2):
            self.network.add(self._config())

    def _config(self) -> PeerConfig:
        return peer_config(
            SIMULATED_LINK,
            settings=b"settings of duels"[:16],
            averaging=averaging_config(SIMULATED_LINK, window=self.setting.window),
            every=4,
            warmup_steps=0,
            leave_within=1.0,
        )

    # -- the course -------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Play the run.

        Raises:
            AssertionError: an invariant broke.
        """
        network = self.network
        one, two = network.hosts
        self._start(one)
        network.at(0.2, "start", None, lambda: self._start(two))
        network.run(FORMED)
        assert all(host.running.view.ready for host in network.hosts), "the network has not formed"
        while any(host.running.view.partner or not host.running._replica.rounds.trains for host in network.hosts):
            assert network.now < FORMED + PATIENCE, "a peer does not train, or an exchange does not end"
            network.run(network.now + 0.01)
        for host in network.hosts:
            blocks = slice(0, len(host.algorithm.ledger.blocks[0]))
            host.algorithm.range[blocks], host.algorithm.moved[blocks] = MISPREDICTED, 0.0
        self._waits = True
        offering = network.hosts if self.setting.crossing else network.hosts[:1]
        for host in offering:
            network.command(host, "want", lambda peer: peer._replica.averaging.want(1, network.now))
        network.run(network.now + 0.6)
        assert self.watched, "no exchange has begun"
        self._calm()

    def _calm(self) -> None:
        """Run on until all has been well for a while."""
        network = self.network
        deadline = max(self._ends, network.now) + PATIENCE
        network.run(max(self._ends, network.now) + CALM)
        exchanged = self.books.exchanges
        while True:
            try:
                self.books.check_rest()
                self.books.beliefs.check_views()
                assert self.books.exchanges > exchanged, "I7: they exchange no more"
                for host in network.hosts:
                    assert host.running.view.ready, f"I7 {host.name} has no model"
                    assert self.trainers[host.index].session, f"I7 {host.name}: training has no session"
                self.oracle.check(self.books.doubts)
                return
            except AssertionError:
                if network.now >= deadline:
                    raise
            network.run(network.now + 0.5)

    def _start(self, host: Host) -> None:
        if host.peer is not None:
            return
        self.network.start(host, seeds=self.network.hosts, found=host.index == 0 and not self.trainers)
        self.books.started(host)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.attach()
            return
        self._number += 1
        trainer = Trainer(
            self.network, host, self.schema, TrainerConfig(step_time=0.2, noise=0.05), self._number, self.books.touched
        )
        self.trainers[host.index] = trainer
        self.books.trains(trainer)

    def _execute(self, host: Host, job: jobs.Job[object]) -> object:
        return self.books.run(host, job)

    # -- what is heard ----------------------------------------------------------------------------------------

    def _listen(self, host: Host, event: Event) -> None:
        self.books.heard(host, event)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)
        if isinstance(event, Left):
            self.network.at(self.network.now + 0.1, "exit", host, lambda: self._crash(host, self._ends, True))
        if isinstance(event, SessionRefused):
            raise AssertionError(f"{host.name}: {event}")

    def _traced(self, record: Record) -> None:
        self.oracle.take(record)
        if self._trace is not None:
            self._trace(record)

    # -- messages ---------------------------------------------------------------------------------------------

    def _before(self, sender: Host, target: Host, frames: list[bytes], message: Message) -> bool:
        """Whether the network delivers the message as usual."""
        if not isinstance(message, OF_EXCHANGES):
            return True
        network = self.network
        number = exchange_of(message, sender.index, target.index)
        if self._waits and isinstance(message, Offer):
            self.watched.append(number)
            self._waits = len(self.watched) < 1 + self.setting.crossing
        held, self._held = self._held, []
        fate = self._fate(sender, message) if number in self.watched else ""
        match fate:
            case "lose":
                network.record("lost", sender, target, message)
            case "behind":
                self._held = [(sender, target, frames, message)]
                # Without a next message it arrives alone.
                network.at(network.now + LATE, "held", None, self._release)
            case "double" | "double late" | "late":
                if fate != "late":
                    network.hand_over(sender, target, frames, message)
                when = network.now + LATE * fate.endswith("late")
                network.at(when, "copy", target, lambda: network.hand_over(sender, target, frames, message))
            case _:
                network.hand_over(sender, target, frames, message)
        for late in held:
            network.hand_over(*late)
        if number in self.watched and sender.index in self._again:
            when = network.now + self._again[sender.index]
            self._ends = max(self._ends, when)
            network.at(when, "copy", target, lambda: network.hand_over(sender, target, frames, message))
        return False

    def _release(self) -> None:
        held, self._held = self._held, []
        for late in held:
            self.network.hand_over(*late)

    def _fate(self, sender: Host, message: Message) -> str:
        what: Any = message
        chunk, turn = getattr(what, "chunk", -1), getattr(what, "turn", -1)
        key = (sender.index, type(message).__name__, chunk, turn)
        label = Label(*key, self._seen[key])
        self._seen[key] += 1
        self.labels.append(label)
        self.last_step = len(self.steps)
        for fault in self.faults:
            if fault.label is None:
                continue
            if fault.label == label and self.struck is None:
                self.struck = len(self.labels), len(self.steps)
            if fault.label == label and fault.kind == "again":
                self._again[sender.index] = fault.lasts
            elif fault.label == label:
                self._ends = max(self._ends, self.network.now + LATE)
                return {"lose twice": "lose"}.get(fault.kind, fault.kind)
            if fault.kind == "lose twice" and fault.label._replace(occurrence=fault.label.occurrence + 1) == label:
                return "lose"
        return ""

    # -- events -----------------------------------------------------------------------------------------------

    def _after(self, kind: str, host: Host | None) -> None:
        """Record an event of the exchange, and let faults strike after it."""
        if not self.watched or host is None or not _of_exchanges(kind):
            return
        self.steps.append(Step(self.network.now, host.index, kind))
        for fault in self.faults:
            if fault.after == len(self.steps) - 1:
                self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        network, host = self.network, self.network.hosts[fault.host]
        other = network.hosts[1 - fault.host]
        back = network.now + fault.lasts
        self._ends = max(self._ends, back)
        self.struck = self.struck or (len(self.labels), len(self.steps))
        network.record("fault", host, None, str(fault))
        match fault.kind:
            case "crash":
                self._crash(host, back, fault.disk)
            case "both crash":
                for each in network.hosts:
                    self._crash(each, back + 0.01 * each.index, True)
            case "cut" | "cut and crash":
                cut = network.links.cut([host], [other])
                network.at(back, "heal", None, lambda: network.links.heal(cut))
                if fault.kind == "cut and crash":
                    half = fault.lasts / 2
                    network.at(network.now + half, "crash", None, lambda: self._crash(host, back - half / 2, True))
            case "one-way":
                one_way = network.links.cut([host], [other], both=False)
                network.at(back, "heal", None, lambda: network.links.heal(one_way))
            case "leave":
                network.command(host, "leave", lambda peer: peer.leave(network.now))
            case "pause":
                network.pause(host, fault.lasts)
            case _:
                raise ValueError(fault.kind)

    def _crash(self, host: Host, back: float, disk: bool) -> None:
        """Kill the daemon. Without its disk, the training process dies too."""
        if host.peer is None:
            return
        if disk:
            host.save()
        else:
            self.trainers[host.index].die()
        self.books.stopped(host)
        self.network.stop(host, keep_disk=disk)
        self.network.at(back, "restart", None, lambda: self._start(host))


def _of_exchanges(kind: str) -> bool:
    verb, _, noun = kind.partition(" ")
    if verb == "message":
        return noun in {message.__name__ for message in OF_EXCHANGES}
    return verb in ("run", "done") and noun in {job.__name__ for job in WORK}
