"""N peers with their training processes under scripted faults, all drawn from one seed; every invariant is checked.

    python -m simulations.simulator.cluster --seed 17 --trace

A run has four acts:

1. The network forms. In some runs the hosts have unequal speeds.
2. Faults strike (`nemesis`). In some runs they begin as soon as the network is founded.
3. All faults stop. After a calm everything must be at rest and run at its usual rate.
4. In some runs training stops, and the replicas must agree.

A seed that fails raises AssertionError with the commands that replay it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gossipdp.protocol.membership.config import PRESETS
from simulations.simulator.agreement import Agreement, check_agreement, disagreement, observe_agreement
from simulations.simulator.bounds import check_bounds
from simulations.simulator.cluster_processes import ClusterProcesses
from simulations.simulator.deaths import check_found_dead, lives_that_know, longest_detection, watch_living
from simulations.simulator.host import Host
from simulations.simulator.nemesis import Nemesis
from simulations.simulator.network import Record
from simulations.simulator.plans import Plan

__all__ = ["Cluster", "Outcome", "Plan", "run_seed"]

COLD_START = 12.0
"""more seconds until all is at rest if no running peer has the model: peers with a checkpoint first look for a later
one"""
LATEST_DRAIN = 5.0
"""seconds within which a correction reaches x in a calm network"""
REUNION = 50
"""periods (`join_interval`) after the calm within which separated sides become one"""


@dataclass(frozen=True)
class Outcome:
    """Result of one seed."""

    seed: int
    peers: int
    events: int
    log_hash: str
    exchanges: int
    mixed: int
    rounds: int
    doubts: int
    resyncs: dict[str, int]
    """resyncs by reason"""
    escalated: int
    false_accepts: int
    """blocks of which the check noticed that the differences did not fit, and blocks of which it did not"""
    inherited: int
    """training processes that began with moments of another process"""
    up: int
    """hosts that run at the end"""
    faults: tuple[str, ...]
    wall: float
    """real seconds"""


class Cluster(ClusterProcesses):
    """Plays the script of a plan, and checks that everything is well at the end."""

    # -- the script ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the plan.

        Raises:
            AssertionError: an invariant broke.
        """
        network, plan = self.network, self.plan
        joiners = {host for fault in plan.script if fault.kind == "join" for host in fault.hosts}
        for host in network.hosts:
            after = 0.0 if host.index == 0 else self._random.uniform(0.0, plan.forming / 2)
            if host.index not in joiners:
                network.at(after, "start", None, partial(self.restart, host))
        for host in network.hosts:
            for beat in range(1, int((plan.forming + plan.chaos) / 7) + 1):
                network.at(7.0 * beat + 0.3 * host.index, "checkpoint", None, partial(self._save, host))
        self._nemesis = Nemesis(self, plan.script)
        network.run(plan.forming / 2)
        self._nemesis.set_weather(plan.conditions)
        network.run(plan.forming + plan.chaos)
        cold = self._end_faults()
        # Hosts that were paused for longer than the second act go on during the calm.
        calm = max(plan.forming + plan.chaos, min(self._nemesis.ends, plan.forming + plan.chaos + 60.0))
        length = plan.calm if self._dead is None else max(plan.calm, longest_detection(plan) + 1.0)
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

    def _end_faults(self) -> bool:
        """End all loss and cuts. Most stopped hosts come back, and every running host trains.

        Returns:
            whether only disks hold the model.
        """
        network = self.network
        assert self._nemesis is not None
        self._nemesis.end()
        network.set_conditions(self.plan.before)
        watch_living(network, PRESETS[self.plan.preset].probe_interval)
        # Without a running peer that has the model, all hosts with a checkpoint must come back. One seed must run.
        cold = not any(host.peer is not None and host.peer.view.ready for host in network.hosts)
        seed = self._seed_that_must_run(self._random.randrange(2))
        if self.plan.dead:
            self._kill_for_good(network.hosts[seed])
        for host in network.hosts:
            if host.peer is None and (host.index == seed or self._random.random() < 0.7 or cold):
                network.at(network.now + self._random.random(), "restart", None, partial(self.restart, host))
            late = self.plan.lateness[host.index] / 2 if self.plan.lateness else 0.0
            network.at(network.now + 2.5 + late, "train", None, partial(self.train, host))
        return cold

    def _seed_that_must_run(self, drawn: int) -> int:
        """Which of the two seeds must run after the faults."""
        return drawn

    def _kill_for_good(self, needed: Host) -> None:
        """Kill a host that never comes back, so that the others must notice while nothing else goes wrong (I8).

        Args:
            needed: the seed that joiners need. It survives, and so does the last host with the model.
        """
        network, now = self.network, self.network.now
        up = [host for host in network.hosts if host.peer is not None and now >= host.paused_until]
        ready = {host for host in up if host.running.view.ready}
        mortal = [host for host in up if host is not needed and ready - {host}]
        if not mortal:
            return
        self._dead = dead = network.random("dead").choice(mortal)
        self.crash(dead, trainer=True, disk=True, torn=False)
        lives = lives_that_know(up, dead)
        network.at(now + longest_detection(self.plan), "buried", None, lambda: check_found_dead(dead, lives))

    def _reunite(self, latest: float) -> None:
        """Run until one side is left, or until `latest`, and then through another calm.

        It takes longest with three sides, one of which is a single peer with a line of its own.
        """
        begun = self.network.now
        while any(host.peer and (host.peer.view.apart or host.peer.view.resyncing) for host in self.network.hosts):
            if self.network.now >= latest:
                return
            self.network.run(self.network.now + 1.0)
        if self.network.now > begun:
            self.network.run(self.network.now + self.plan.calm)

    # -- what must hold -----------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Check that the replicas agree once training stops (I4)."""
        for trainer in self.trainers.values():
            trainer.stand_still()
        self.network.run(self.network.now + 4.0)  # earlier steps are still on their way into the anchors
        self._check_agreement(observe_agreement(self.network, self.listeners))

    def _check_agreement(self, seen: Agreement) -> None:
        check_agreement(seen)

    def disagreement(self) -> float:
        """Mean over parameters and peers of (a_i - mean a)^2."""
        return disagreement(self.network)

    def check_rest(self) -> None:
        """Check, long after the last fault, that everything is settled and progresses.

        Raises:
            AssertionError: an invariant broke.
        """
        self.books.check_rest()
        now = self.network.now
        for host in self.network.hosts:
            if host.peer is None:
                continue
            assert host.peer.view.ready, f"I7 {host.name} has no model at the end"
            trainer = self.trainers[host.index]
            assert trainer.alive and trainer.session, f"I7 {host.name}: the training process has no session"
            mixed = self.books.mixes.at.get((host.index, host.incarnation), [])
            waits = now - min((at for at in mixed if at > trainer.drained_at), default=now)
            assert waits < LATEST_DRAIN, f"I7 {host.name}: corrections have waited for {waits:.1f} s"
            self.progress.check_last_round(host, now)
            check_bounds(host, len(self.network.hosts))
        self._check_rates(now - self.plan.calm / 2, now)
        self._check_views()

    def _check_views(self) -> None:
        self.books.beliefs.check_views()

    def _check_rates(self, since: float, now: float) -> None:
        """Check rounds and exchanges in the second half of the calm, well within a minute of the last fault (I7)."""
        up = [host for host in self.network.hosts if host.peer is not None]
        made = {host.index: self.progress.check_rounds(host, since, now) for host in up}
        least = self._least_exchange_ends(made) - 1 if len(up) > 1 else 0
        self.progress.check_exchanges(made, least, since, now)

    def _least_exchange_ends(self, made: Mapping[int, int]) -> float:
        """Least number of ends of exchanges: a quarter of the rounds `made` by each host.

        Every round wants an exchange, but a peer that wasted its partners' time may still be left alone.
        """
        return sum(made.values()) / 4


def run_seed(seed: int, *, plan: Plan | None = None, trace: Callable[[Record], None] | None = None) -> Outcome:
    """Play one seed.

    Args:
        plan: replaces the plan that the seed draws.
        trace: receives all records.

    Raises:
        AssertionError: an invariant broke. The message ends with the commands that replay a plan drawn by the seed.
    """
    own, plan = plan, plan or Plan.draw(seed)
    # A run makes little garbage before its end. Collect that of the previous run.
    gc.collect(1)
    gc.disable()
    cluster = Cluster(seed, plan, trace)
    started = time.perf_counter()
    try:
        cluster.run()
    except Exception as error:
        when = f"seed {seed}, {plan.peers} peers, at {cluster.network.now:.3f} s"
        small = f"python -m simulations chaos --seed {seed}"
        play = f"python -m simulations.simulator.cluster --seed {seed} --trace"
        replay = f"shrunk and told: {small}\n  replay: {play}"
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
        books.inherited,
        sum(host.peer is not None for host in cluster.network.hosts),
        tuple(map(str, plan.script)),
        time.perf_counter() - started,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="number of seeds, from --seed on")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="print every event")
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
