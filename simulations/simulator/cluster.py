"""N peers with their training processes under scripted churn, all drawn from one seed; every invariant checked.

    python -m simulations.simulator.cluster --seed 17 --trace

A run has four acts: the network forms, in some runs of hosts of unequal speed; then, or in some runs as soon as it is
founded, messages are lost, doubled and reordered, links cut, hosts join, crash, pause, leave and come back or stay
away, training processes die (`nemesis`); then all faults stop, and after a calm everything must be at rest, and run at
its rate; then, in some runs, training stands still and the replicas must agree, geometrically. A seed that fails raises
AssertionError with the commands that replay it. Nothing here may know how a peer works inside.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, pairwise

import numpy as np

from gossipdp.codecs import CODECS
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import (
    CheckpointAhead,
    Event,
    ExchangeEnded,
    Left,
    Pace,
    RoundDone,
    SessionOpened,
    SessionRefused,
    StateReady,
)
from gossipdp.protocol.jobs import Job
from gossipdp.protocol.membership.membership import PRESETS
from gossipdp.protocol.membership.suspicion import suspicion_bounds
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.presets import SIMULATED
from gossipdp.protocol.schema import Dtype, Kind, Schema
from gossipdp.protocol.wire.messages import Message, State
from simulations.simulator.bounds import check_bounds
from simulations.simulator.host import Checkpoint, Host
from simulations.simulator.invariants import Books
from simulations.simulator.nemesis import Nemesis
from simulations.simulator.network import Network, Record
from simulations.simulator.plans import Plan
from simulations.simulator.trainer import Trainer, TrainerConfig

__all__ = ["Cluster", "Outcome", "Plan", "run_seed"]

MOMENTUM_FADES = 10
"""rounds in which what outer momentum drives replicas apart falls to less than 1e-2 of its square: 0.7^20"""
COLD_START = 12.0
"""seconds more until all is at rest if nobody up has the model: whoever has it on a disk looks for a later one first"""
SELDOM = 8
"""probe periods in which somebody of many probes any member, if not each in its turn"""
FALLS = 4.0
"""times, at the least, that squared distances fall from one third of these rounds to the next"""
NOISE = 1e-9
"""squared distance that is agreement whatever it was before"""
LATEST_DRAIN = 5.0
"""seconds within which a correction reaches x when all is calm"""
REUNION = 50
"""periods (`join_interval`) that sides which were apart may take longer than the calm to be one"""
MISSED = 32
"""of so many members gossip may miss one, who is told when its view is next compared"""
SETTINGS = b"settings of a run"[:16]


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    seed: int
    peers: int
    events: int
    log_hash: str
    exchanges: int
    mixed: int
    rounds: int
    doubts: int
    resyncs: dict[str, int]
    """by reason"""
    escalated: int
    false_accepts: int
    """blocks whose check told that the differences did not fit, and blocks whose check missed it"""
    heirs: int
    """training processes that began with the moments of another"""
    up: int
    """hosts that run at the end"""
    faults: tuple[str, ...]
    wall: float


class Cluster:
    """One network and its training processes."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[Record], None] | None = None) -> None:
        self.plan = plan
        self.network = Network(
            seed, plan.before, listen=self._heard, execute=self._execute, passes=self._passes, trace=trace
        )
        self.books = Books(self.network.hosts, lambda: self.network.now)
        tensors: list[tuple[str, tuple[int, ...], Dtype, Kind]] = [
            ("weight", (plan.size - plan.buffers,), "float32", "parameter"),
            ("mean", (plan.buffers,), "float32", "buffer"),
        ]
        self.schema = Schema.of(tensors if plan.buffers else tensors[:1])
        self.trainers: dict[int, Trainer] = {}
        self.listeners: list[Callable[[Host, Event], None]] = []
        """they hear every event of every peer, too"""
        self._random = self.network.random("script")
        self.founded = False
        """the network has a model"""
        self._trainer_numbers = 0
        self._rounds_at: dict[int, list[float]] = {}
        self._paces: dict[int, list[tuple[float, int]]] = {}
        """of each host: when it told its training process another H, and which"""
        self._exchanged_at: list[float] = []
        """each exchange that mixed something, when each of its sides ended it"""
        self._older: dict[int, Checkpoint | None] = {}
        self.kept: dict[int, list[Checkpoint]] = {}
        """checkpoints that were later than what their host fetched, and would be pinned on its disk"""
        self._nemesis: Nemesis | None = None
        self._buried: Host | None = None
        """it stays down"""
        for _ in range(plan.peers):
            self.network.add(self._config())
        for host, slowness in zip(self.network.hosts, plan.slowness, strict=False):
            host.usual_slowness = host.step_slowness = slowness

    def _config(self) -> PeerConfig:
        plan = self.plan
        return PeerConfig(
            membership=PRESETS[plan.preset],
            settings=SETTINGS,
            strategy=PairwiseConfig(
                fineness={name: codec.fineness for name, codec in CODECS.items()},
                early_steps=60,
                window=plan.window,
                matching=SIMULATED.matching,
                deadlines=SIMULATED.deadlines,
            ),
            transfer=SIMULATED.transfer,
            every=plan.every,
            warmup_steps=20,
            resume_after=SIMULATED.resume_after,
            apart_rounds=plan.apart_rounds,
            leave_within=2.0,
            moments=plan.moments > 0,
        )

    # -- driver -----------------------------------------------------------------------------------------------

    def _execute(self, host: Host, job: Job[object]) -> object:
        return self.books.run(host, job)

    def _passes(self, sender: Host, target: Host, message: Message) -> bool:
        return self._nemesis is None or self._nemesis.passes(sender, message)

    def _heard(self, host: Host, event: Event) -> None:
        self.books.heard(host, event)
        for listener in self.listeners:
            listener(host, event)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)
        match event:
            case SessionOpened(_, kept) if not kept and self.network.whole_for > 1.0 and not host.running.leaving:
                self.books.handed(host)
            case StateReady("founded"):
                self.founded = True
            case CheckpointAhead(clock, rounds):
                saved = host.checkpoint
                assert saved is not None and (saved.clock, saved.rounds) == (clock, rounds), f"{host.name}: {event}"
                self.kept.setdefault(host.index, []).append(saved)
            case RoundDone():
                self._rounds_at.setdefault(host.index, []).append(self.network.now)
            case Pace(every):
                assert every <= 2 * self.plan.every, f"{host.name}: H {every}"  # rounds that are due go by it
                self._paces.setdefault(host.index, []).append((self.network.now, every))
            case ExchangeEnded(chunks=chunks) if chunks:
                self._exchanged_at.append(self.network.now)
            case SessionRefused(code, reason):
                raise AssertionError(f"{host.name}: {code} {reason}")
            case Left():
                self.network.at(self.network.now + 0.3, "exit", host, lambda: self._exit(host))

    def _exit(self, host: Host) -> None:
        self.save(host)
        self.stop(host)
        if self._nemesis is not None:
            self._nemesis.left(host)

    def save(self, host: Host) -> None:
        """A checkpoint takes the place of the one before, which must not be later unless that was said (I14)."""
        before = host.checkpoint
        self.network.save(host)
        after = host.checkpoint
        if before is None or after is before:
            return
        assert after is not None
        kept = any(before is checkpoint for checkpoint in self.kept.get(host.index, ()))
        behind = before.clock - after.clock
        assert kept or behind <= 2 * self.plan.every, f"I14 {host.name}: {behind} steps are lost and nobody was told"

    # -- what may happen ----------------------------------------------------------------------------------------

    def start(self, host: Host) -> None:
        found = host.index == 0 and not self.founded
        self.network.start(host, seeds=self.network.hosts[:2], found=found)
        self.books.started(host)
        trainer = self.trainers.get(host.index)
        late = self.plan.lateness[host.index] if self.plan.lateness else 0.0
        if trainer is not None and trainer.alive:
            trainer.attach()
        elif late:
            self.network.at(self.network.now + late, "train", None, partial(self.train, host))
        else:
            self.train(host)

    def train(self, host: Host) -> None:
        """Start a training process on `host`, if it has none and its daemon runs."""
        old = self.trainers.get(host.index)
        if host.peer is not None and (old is None or not old.alive):
            self._trainer_numbers += 1
            config = TrainerConfig(step_time=self.plan.step_time, tells=self.plan.moments)
            trainer = Trainer(self.network, host, self.schema, config, self._trainer_numbers, self.books.touched)
            self.trainers[host.index] = trainer
            self.books.trains(trainer)

    def stop(self, host: Host, *, keep_disk: bool = True) -> None:
        self.books.stopped(host)
        self.network.stop(host, keep_disk=keep_disk)

    def crash(self, host: Host, *, trainer: bool, disk: bool, torn: bool) -> None:
        """kill -9 of the daemon, and of its training process if `trainer`. `torn`: its last checkpoint is of no use."""
        if host.peer is None:
            return
        others = [other for other in self.network.hosts if other is not host]
        kept = any(other.checkpoint is not None or (other.peer and other.peer.ready) for other in others)
        older = self._older.get(host.index)
        if torn and (kept or older is not None or host.peer.ready):
            host.checkpoint = older
        if not kept and host.checkpoint is None:
            # Nobody else has the model, up or on a disk: nothing could bring it back, and no protocol would help.
            self.save(host)
        if trainer:
            self.kill_trainer(host)
        self.stop(host, keep_disk=disk or not kept)

    def restart(self, host: Host) -> None:
        if host.peer is None and host is not self._buried:
            self.start(host)

    def kill_trainer(self, host: Host) -> None:
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.die()

    # -- the script ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        network, plan = self.network, self.plan
        late = {host for fault in plan.script if fault.kind == "join" for host in fault.hosts}
        for host in network.hosts:
            after = 0.0 if host.index == 0 else self._random.uniform(0.0, plan.forming / 2)
            if host.index not in late:
                network.at(after, "start", None, partial(self.restart, host))
        for host in network.hosts:
            for beat in range(1, int((plan.forming + plan.chaos) / 7) + 1):
                network.at(7.0 * beat + 0.3 * host.index, "checkpoint", None, partial(self._save, host))
        self._nemesis = Nemesis(self, plan.script)
        if any(fault.kind == "replay" for fault in plan.script):
            network.overheard = self._nemesis.overheard
        network.run(plan.forming / 2)
        self._nemesis.weather(plan.conditions)
        network.run(plan.forming + plan.chaos)
        cold = self._end_of_faults()
        # What stopped for longer than the second act comes round in the calm.
        calm = max(plan.forming + plan.chaos, min(self._nemesis.ends, plan.forming + plan.chaos + 60.0))
        length = plan.calm if self._buried is None else max(plan.calm, self._mourning() + 1.0)
        network.run(calm + (COLD_START if cold else 0.0) + length)
        self._reunite(network.now + REUNION * PRESETS[plan.preset].join_interval)
        self.check_rest()
        if plan.agree:
            self._agree()

    def _save(self, host: Host) -> None:
        if host.peer is not None:
            self._older[host.index] = host.checkpoint
            self.save(host)
            check_bounds(host, len(self.network.hosts))

    def _end_of_faults(self) -> bool:
        """No more loss or cuts; most of the dead come back, and every living host trains. True if the model is on disks
        alone."""
        network = self.network
        assert self._nemesis is not None
        self._nemesis.end()
        network.conditions = self.plan.before
        self._watch_the_living()
        # If nobody up has the model, whoever has it on a disk must come back; and one of those whom all know.
        needed = not any(host.peer is not None and host.peer.ready for host in network.hosts)
        known = self._dialled(self._random.randrange(2))
        if self.plan.dead:
            self._bury(network.hosts[known])
        for host in network.hosts:
            if host.peer is None and (host.index == known or self._random.random() < 0.7 or needed):
                network.at(network.now + self._random.random(), "restart", None, partial(self.restart, host))
            late = self.plan.lateness[host.index] / 2 if self.plan.lateness else 0.0
            network.at(network.now + 2.5 + late, "train", None, partial(self.train, host))
        return needed

    def _watch_the_living(self) -> None:
        """I8: of those that are up and stay up nobody is held for dead by another for more than two probe periods; by
        more than one in `MISSED` of them, for gossip reaches all but a few, who hear when views are compared."""
        network, period = self.network, PRESETS[self.plan.preset].probe_interval
        lives = {host: host.life for host in network.hosts if host.peer and network.now >= host.paused_until}
        since: dict[tuple[Host, Host], float] = {}

        def look() -> None:
            up = [host for host, life in lives.items() if host.peer is not None and host.life == life]
            held = {(one, other) for one in up for other in up if _is_dead_to(one, other)}
            for pair in list(since):
                if pair not in held:
                    del since[pair]
            long: dict[Host, list[Host]] = {}
            for one, other in held:
                # Looks are half a period apart: exactly two may come out longer by a rounding.
                if network.now - since.setdefault((one, other), network.now) >= 2.1 * period:
                    long.setdefault(other, []).append(one)
            for other, those in long.items():
                names = ", ".join(sorted(one.name for one in those))
                assert len(those) <= len(up) // MISSED, f"I8 {names} took {other.name} for dead for two probe periods"

        for beat in range(20):
            network.at(network.now + beat * period / 2, "seen", None, look)

    def _dialled(self, drawn: int) -> int:
        """Which of the two that newcomers dial must be there."""
        return drawn

    def _bury(self, needed: Host) -> None:
        """Somebody dies for good, so that the living find it out while nothing else goes wrong (I8): not who is needed
        by those who look for the network, nor the last that has the model."""
        network, now = self.network, self.network.now
        up = [host for host in network.hosts if host.peer is not None and now >= host.paused_until]
        ready = {host for host in up if host.running.ready}
        if not (mortal := [host for host in up if host is not needed and ready - {host}]):
            return
        self._buried = dead = network.random("dead").choice(mortal)
        self.crash(dead, trainer=True, disk=True, torn=False)
        # Who has never heard of it need not learn that it is dead.
        seen = {host: host.running.membership.members.get(dead.id) for host in up if host is not dead}
        believe = (State.ALIVE, State.SUSPECT)
        lives = {host: host.life for host, record in seen.items() if record is not None and record.state in believe}
        network.at(now + self._mourning(), "buried", None, lambda: self._check_buried(dead, lives))

    def _mourning(self) -> float:
        """Seconds after which the dead are failed by all who knew them: until somebody's probe is missed, though all
        probe as seldom as they ever do, that is told, the longest suspicion, and what of their words came late. Two
        probes of one member are up to 2 (N - 1) - 1 periods apart, for each prober has an order of its own, new each
        time; that nobody of many probes it in `SELDOM` of them does not happen."""
        preset, plan = PRESETS[self.plan.preset], self.plan
        longest = suspicion_bounds(
            preset.suspicion_multiplier, preset.suspicion_longest, plan.peers, preset.probe_interval
        )[1]
        periods = min(2 * (plan.peers - 1) - 1, SELDOM) + 1
        return longest + periods * preset.probe_interval * preset.awareness_max + plan.conditions.late

    def _check_buried(self, dead: Host, lives: Mapping[Host, int]) -> None:
        for host, life in lives.items():
            if host.peer is not None and host.life == life:
                record = host.peer.membership.members.get(dead.id)
                known = record is not None and record.state in (State.FAILED, State.LEFT)
                assert known, f"I8 {host.name} has not noticed that {dead.name} is dead: {record}"

    def _agree(self) -> None:
        """I4: replicas that train no more agree, geometrically: to 1e-2 of their squared distance in a few rounds."""
        network = self.network
        for trainer in self.trainers.values():
            trainer.stand_still()
        network.run(network.now + 4.0)  # steps taken before are still on their way into the anchors
        up = [host for host in network.hosts if host.peer is not None]
        rounds = 8 + 6 * math.log2(max(2, len(up))) + MOMENTUM_FADES
        begun = {host.index: host.running.rounds.rounds for host in up}
        start = left = self.disagreement()
        worst = [start, 0.0, 0.0]
        """of each third of the rounds: while a chunk is mixed on one side alone, two anchors are further apart"""
        met = [dict.fromkeys(begun, 0) for _ in worst]
        """exchanges of each host in it"""
        patience = network.now + 20.0 * rounds
        done = third = 0

        def ended(host: Host, event: Event) -> None:
            if isinstance(event, ExchangeEnded) and event.chunks and host.index in begun:
                met[third][host.index] += 1

        self.listeners.append(ended)
        while done < rounds:
            assert network.now < patience, "I7: rounds do not go on"
            network.run(network.now + 1.0)
            left = self.disagreement()
            worst[third] = max(worst[third], left)
            done = min(host.running.rounds.rounds - begun[host.index] for host in up)
            third = min(2, int(3 * done / rounds))
        # Who has wasted others' time may be left alone for a minute, and of three the third finds the one it may ask
        # busy: it comes to agree, for that is asked of all, but not evenly.
        self._check_agreement(start, worst, left, rounds, [min(each.values()) >= rounds / 6 for each in met])

    def _check_agreement(
        self, start: float, worst: Sequence[float], left: float, rounds: float, met: Sequence[bool]
    ) -> None:
        assert left <= 1e-2 * start + NOISE, f"I4: squared distance {start:.3g} -> {left:.3g} in {rounds:.0f} rounds"
        for before, after in compress(pairwise(worst), met):
            assert after <= before / FALLS + NOISE, f"I4: squared distance does not fall geometrically: {worst}"

    def _reunite(self, latest: float) -> None:
        """Until one side is left. It takes longest where there are three, and of one of them a single peer is left,
        with a line that only it holds."""
        begun = self.network.now
        while any(host.peer and (host.peer.apart or host.peer.resyncing) for host in self.network.hosts):
            if self.network.now >= latest:
                return
            self.network.run(self.network.now + 1.0)
        if self.network.now > begun:
            self.network.run(self.network.now + self.plan.calm)

    def disagreement(self) -> float:
        """Mean over parameters and peers of (a_i - mean a)^2."""
        anchors = [host.algorithm.ledger.a for host in self.network.hosts if host.peer is not None and host.peer.ready]
        return float(np.mean(np.var(np.array(anchors, np.float64), axis=0)))

    def check_rest(self) -> None:
        self.books.at_rest()
        now, plan = self.network.now, self.plan
        for host in self.network.hosts:
            if host.peer is None:
                continue
            assert host.peer.ready, f"I7 {host.name} has no model at the end"
            trainer = self.trainers[host.index]
            assert trainer.alive and trainer.session, f"I7 {host.name}: the training process has no session"
            mixed = self.books.mixed_at.get((host.index, host.incarnation), [])
            waits = now - min((at for at in mixed if at > trainer.drained_at), default=now)
            assert waits < LATEST_DRAIN, f"I7 {host.name}: corrections have waited for {waits:.1f} s"
            quiet = now - self._rounds_at.get(host.index, [0.0])[-1]
            assert quiet < 6.0, f"I7 {host.name}: no round for {quiet:.1f} s"
            check_bounds(host, len(self.network.hosts))
        self._check_rates(now - plan.calm / 2)
        self._check_views()

    def _check_views(self) -> None:
        self.books.all_seen()

    def _check_rates(self, since: float) -> None:
        """I7: in the second half of the calm, well within a minute of the last fault, rounds come at half the rate at
        least at which training makes them due, and exchanges at a quarter of the rate of rounds: each wants one, but
        who has wasted others' time before may still be left alone."""
        up = [host for host in self.network.hosts if host.peer is not None]
        window, made = self.network.now - since, {}
        for host in up:
            due = self._due(host, since)
            rounds = made[host.index] = sum(at > since for at in self._rounds_at[host.index])
            assert rounds >= due / 2 - 1, f"I7 {host.name}: {rounds} rounds in {window:.1f} s, of {due:.1f}"
        ended, all_rounds = sum(at > since for at in self._exchanged_at), sum(made.values())
        least = self._least_ends(made) - 1 if len(up) > 1 else 0
        assert ended >= least, f"I7: {ended} exchanges ended in {window:.1f} s of {all_rounds} rounds"

    def _least_ends(self, made: Mapping[int, int]) -> float:
        """Ends of exchanges that are wanted where peers, by number, have made so many rounds."""
        return sum(made.values()) / 4

    def _due(self, host: Host, since: float) -> float:
        """Rounds that training makes due since then, at H as the daemon told it: of speed, once that is known."""
        due, paces, end = 0.0, self._paces[host.index], self.network.now
        for begin, every in reversed(paces):
            due += max(0.0, end - max(begin, since)) / (every * self.plan.step_time * host.step_slowness)
            end = min(end, begin)
        return due


def _is_dead_to(one: Host, other: Host) -> bool:
    """Does `one` take `other` for dead, though either could dial the other?"""
    record = one.running.membership.members.get(other.id)
    return record is not None and record.state == State.FAILED and not (one.outbound or other.outbound)


def run_seed(seed: int, *, plan: Plan | None = None, trace: Callable[[Record], None] | None = None) -> Outcome:
    """Play one seed through.

    Raises:
        AssertionError: an invariant is broken; the message ends with the commands that replay a plan drawn by the seed.
    """
    own, plan = plan, plan or Plan.draw(seed)
    # A run makes no garbage that counts before its end; then the run before this one is what there is.
    gc.collect(1)
    gc.disable()
    cluster = Cluster(seed, plan, trace)
    started = time.perf_counter()
    try:
        cluster.run()
    except Exception as error:
        when = f"seed {seed}, {plan.peers} peers, at {cluster.network.now:.3f} s"
        small = f"gossipdp simulate chaos --seed {seed}"
        play = f"python -m simulations.simulator.cluster --seed {seed} --trace"
        replay = f"made small and told: {small}\n  replay: {play}"
        told = f"{type(error).__name__}: {error}\n  {when}"
        raise AssertionError(told if own is not None else f"{told}\n  {replay}") from error
    finally:
        gc.enable()
    books = cluster.books
    return Outcome(
        seed,
        plan.peers,
        cluster.network.events,
        cluster.network.log_hash,
        books.exchanges,
        books.mixed,
        books.rounds,
        sum(books.doubts.values()),
        dict(books.resyncs),
        books.escalated,
        books.false_accepts,
        books.heirs,
        sum(host.peer is not None for host in cluster.network.hosts),
        tuple(map(str, plan.script)),
        time.perf_counter() - started,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="play so many seeds, from --seed on")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            outcome = run_seed(seed, trace=print if arguments.trace else None)
        except AssertionError as error:
            if arguments.count == 1:
                raise
            failed += 1
            print(f"seed {seed} FAILED: {error}", flush=True)
            if arguments.first_failure:
                break
        else:
            print(outcome, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
