"""The daemons and training processes of a cluster: how they start, stop, crash and save, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import (
    CheckpointAhead,
    Event,
    Left,
    ResyncEnded,
    SessionOpened,
    SessionRefused,
    StateReady,
)
from gossipdp.protocol.jobs import Job
from gossipdp.protocol.membership.config import PRESETS
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.presets import SIMULATED
from gossipdp.protocol.schema import Dtype, Kind, Schema
from gossipdp.protocol.transfer.arrived import Origin
from gossipdp.protocol.wire.messages import Message
from simulations.simulator.host import Checkpoint, Host
from simulations.simulator.invariants import Books
from simulations.simulator.nemesis import Nemesis
from simulations.simulator.network import Network, Record
from simulations.simulator.plans import Plan
from simulations.simulator.progress import Progress
from simulations.simulator.settings import averaging_config, peer_config
from simulations.simulator.trainer import Trainer, TrainerConfig

__all__ = ["SETTINGS", "ClusterProcesses"]

SETTINGS = b"settings of a run"[:16]


class ClusterProcesses:
    """The network of a plan, with the daemon and the training process of each host.

    Args:
        outbound: number of hosts, the last ones, that no other host can dial.
        tampers, latency: see `Network`.
    """

    def __init__(
        self,
        seed: int,
        plan: Plan,
        trace: Callable[[Record], None] | None = None,
        *,
        outbound: int = 0,
        tampers: Callable[[Host, Envelope], Iterable[Envelope]] | None = None,
        latency: Callable[[Host, Host], float] | None = None,
    ) -> None:
        self.plan = plan
        replays = any(fault.kind == "replay" for fault in plan.script)
        self.network = Network(
            seed,
            plan.before,
            listen=self._heard,
            execute=self._execute,
            passes=self._passes,
            trace=trace,
            tampers=tampers,
            replay_delays=self._replay_delays if replays else None,
            latency=latency,
        )
        self.books = Books(self.network.hosts, lambda: self.network.now)
        tensors: list[tuple[str, tuple[int, ...], Dtype, Kind]] = [
            ("weight", (plan.size - plan.buffers,), "float32", "parameter"),
            ("mean", (plan.buffers,), "float32", "buffer"),
        ]
        self.schema = Schema.of(tensors if plan.buffers else tensors[:1])
        self.trainers: dict[int, Trainer] = {}
        """host -> its latest training process"""
        self.listeners: list[Callable[[Host, Event], None]] = []
        """receive every event of every peer"""
        self.progress = Progress(step_time=plan.step_time, most_every=2 * plan.every)
        self.founded = False
        """the network has a model"""
        self.later_checkpoints: dict[int, list[Checkpoint]] = {}
        """host -> its checkpoints that were later than the model it fetched; a daemon pins them"""
        self._replaced: dict[int, int] = {}
        """host whose model another has replaced since its last checkpoint -> the least clock of training peers then"""
        self._random = self.network.random("script")
        self._trainer_numbers = 0
        self._older: dict[int, Checkpoint | None] = {}
        """host -> its last checkpoint but one"""
        self._nemesis: Nemesis | None = None
        self._dead: Host | None = None
        """the host that died for good"""
        for index in range(plan.peers):
            slowness = plan.slowness[index] if index < len(plan.slowness) else 1.0
            self.network.add(self._config(), outbound=index >= plan.peers - outbound, slowness=slowness)

    def _config(self) -> PeerConfig:
        plan = self.plan
        return peer_config(
            replace(SIMULATED, membership=PRESETS[plan.preset]),
            settings=SETTINGS,
            averaging=averaging_config(SIMULATED, window=plan.window),
            every=plan.every,
            warmup_steps=20,
            early_steps=60,
            apart_rounds=plan.apart_rounds,
            leave_within=2.0,
            moments=plan.moments > 0,
        )

    # -- driver -----------------------------------------------------------------------------------------------

    def _execute(self, host: Host, job: Job[object]) -> object:
        return self.books.run(host, job)

    def _passes(self, sender: Host, target: Host, message: Message) -> bool:
        return self._nemesis is None or self._nemesis.passes(sender, message)

    def _replay_delays(self, sender: Host) -> Iterable[float]:
        return () if self._nemesis is None else self._nemesis.replay_delays(sender)

    def _heard(self, host: Host, event: Event) -> None:
        self.books.heard(host, event)
        for listener in self.listeners:
            listener(host, event)
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.hear(event)
        self.progress.heard(host, event, self.network.now)
        match event:
            case SessionOpened(_, kept) if (
                not kept and self.network.links.whole_for > 1.0 and not host.running.view.leaving
            ):
                self.books.check_start(host)
            case StateReady(Origin.FOUNDED):
                self.founded = True
            case CheckpointAhead(clock, rounds):
                saved = host.checkpoint
                assert saved is not None and (saved.clock, saved.rounds) == (clock, rounds), f"{host.name}: {event}"
                self.later_checkpoints.setdefault(host.index, []).append(saved)
            case ResyncEnded(complete=True):
                up = [other.running._replica for other in self.network.hosts if other.peer is not None]
                if clocks := [each.clock for each in up if each.rounds.trains]:
                    self._replaced[host.index] = min(clocks)
            case SessionRefused(code, reason):
                raise AssertionError(f"{host.name}: {code} {reason}")
            case Left():
                self.network.at(self.network.now + 0.3, "exit", host, lambda: self._exit(host))

    def _exit(self, host: Host) -> None:
        self.save(host)
        self.stop(host)
        if self._nemesis is not None:
            self._nemesis.has_left(host)

    def save(self, host: Host) -> None:
        """Write a checkpoint. It may not be older than the one before, unless the peer reported that (I14).

        A re-sync replaces the model. The network's clock reaches some peers later than others, so the new model's may
        be lower. It may not be lower than that of each peer that trains.
        """
        before = host.checkpoint
        host.save()
        after = host.checkpoint
        if before is None or after is before:
            return
        assert after is not None
        reported = any(before is checkpoint for checkpoint in self.later_checkpoints.get(host.index, ()))
        lost = min(before.clock, self._replaced.pop(host.index, before.clock)) - after.clock
        assert reported or lost <= 2 * self.plan.every, f"I14 {host.name}: {lost} steps are lost without a report"

    # -- what may happen ----------------------------------------------------------------------------------------

    def start(self, host: Host) -> None:
        """Start the daemon. A living training process attaches; otherwise a new one starts."""
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
        """Start a training process on `host`, if its daemon runs without one."""
        old = self.trainers.get(host.index)
        if host.peer is not None and (old is None or not old.alive):
            self._trainer_numbers += 1
            config = TrainerConfig(step_time=self.plan.step_time, rate=self.plan.pull, tells=self.plan.moments)
            trainer = Trainer(self.network, host, self.schema, config, self._trainer_numbers, self.books.touched)
            self.trainers[host.index] = trainer
            self.books.trains(trainer)

    def stop(self, host: Host, *, keep_disk: bool = True) -> None:
        """Kill the daemon."""
        self.books.stopped(host)
        self.network.stop(host, keep_disk=keep_disk)

    def crash(self, host: Host, *, trainer: bool, disk: bool, torn: bool) -> None:
        """kill -9 of the daemon.

        The last copy of the model survives: no protocol could bring it back.

        Args:
            trainer: kill its training process too.
            disk: the disk survives.
            torn: the last checkpoint is damaged.
        """
        if host.peer is None:
            return
        others = [other for other in self.network.hosts if other is not host]
        kept = any(other.checkpoint is not None or (other.peer and other.peer.view.ready) for other in others)
        older = self._older.get(host.index)
        if torn and (kept or older is not None or host.peer.view.ready):
            host.tear(older)
        if not kept and host.checkpoint is None:
            self.save(host)
        if trainer:
            self.kill_trainer(host)
        self.stop(host, keep_disk=disk or not kept)

    def restart(self, host: Host) -> None:
        """Start the daemon if it is down, unless the host died for good."""
        if host.peer is None and host is not self._dead:
            self.start(host)

    def kill_trainer(self, host: Host) -> None:
        trainer = self.trainers.get(host.index)
        if trainer is not None and trainer.alive:
            trainer.die()
