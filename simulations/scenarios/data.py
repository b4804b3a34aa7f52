"""Is every sample used, and are few used twice? Peers read a data set together while hosts come and go (I6).

    python -m simulations.scenarios.data --seeds 3

Whole peers run in virtual time. Readers of unequal speed (1 : 2 : 4) replace the training processes. A reader takes a
lease, uses its samples one after another, reports that it is finished, and takes the next. Hosts crash, leave and come
back. The run counts from outside how often each sample was used, in every epoch that a peer believes covered. Samples
of a block that was open at a crash are counted apart, as I6 does. Those open at a leave are not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gossipdp.protocol.data.blocks import DataSet, Lease
from gossipdp.protocol.events import DataKnown, Event, Left
from gossipdp.protocol.membership.config import PRESETS
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.wire.messages import Coverage
from simulations.simulator.host import Host
from simulations.simulator.network import Conditions, Network
from simulations.simulator.settings import averaging_config, peer_config

__all__ = ["Outcome", "run"]

SPEEDS = (1, 2, 4)
SETTINGS = bytes(16)
AWAY = (5.0, 40.0)
"""shortest and longest time in seconds until a host comes back"""
TRIES = 1.0
"""seconds until a reader without work asks again"""


@dataclass(frozen=True)
class Outcome:
    """Result of one run. A duplicate is a further use of a sample in a covered epoch."""

    seed: int
    peers: int
    epochs: int
    """covered epochs"""
    samples: int
    """samples in the covered epochs"""
    missed: int
    duplicates: int
    crashed: int
    """duplicates from hosts that crashed before they reported the block as finished"""
    crashes: int
    departures: int
    counted: int
    """blocks that peers counted as duplicates themselves"""
    idle: float
    """share of the readers' time without work"""
    traffic: float
    """mean bytes per second of Coverage that a peer sent"""
    busiest: float
    events: int
    log_hash: str
    wall: float

    @property
    def share(self) -> float:
        """Share of samples used again, leases of crashed peers left out."""
        return (self.duplicates - self.crashed) / max(1, self.samples)


class Reader:
    """Replaces the training process of one host, for one life of its daemon."""

    def __init__(self, run: _Run, host: Host) -> None:
        self._run, self._host, self._network = run, host, run.network
        self._pace = run.pace / SPEEDS[host.index % len(SPEEDS)]
        """seconds per sample"""
        self.lease: Lease | None = None
        self._began = 0.0
        self._ended = False
        self.idle = 0.0

    def take(self) -> None:
        network, digest = self._network, self._run.data.digest

        def ask(peer: Peer) -> None:
            self.lease, self._began = peer.leasing.lease(digest, network.now), network.now

        if self._ended:
            return
        network.command(self._host, "lease", ask)
        if self.lease is None:
            self.idle += TRIES
            network.at(network.now + TRIES, "take", self._host, self.take)
        else:
            network.at(network.now + self._pace * self._run.block, "used", self._host, self._finish)

    def _finish(self) -> None:
        lease, network, digest = self.lease, self._network, self._run.data.digest
        if lease is not None:
            self._used(lease)
            network.command(self._host, "finish", lambda peer: peer.leasing.finish(digest, lease, network.now))
            self.take()

    def _used(self, lease: Lease) -> None:
        self._run.uses[lease].append(self._run.block)

    def die(self, *, crash: bool) -> None:
        """End with the daemon. Samples of the open block that were read by then count as used."""
        if self.lease is not None:
            used = min(self._run.block, int((self._network.now - self._began) / self._pace))
            self._run.uses[self.lease].append(used)
            if crash:
                self._run.lost[self.lease] += used
        self.lease, self._ended = None, True


class _Metered(Network):
    """A network that counts the bytes of Coverage of each host."""

    def __init__(self, seed: int, conditions: Conditions, *, listen: Callable[[Host, Event], None]) -> None:
        super().__init__(seed, conditions, listen=listen)
        self.sent: defaultdict[int, int] = defaultdict(int)

    def _transmit(self, sender: Host, envelope: Envelope) -> None:
        if isinstance(envelope.message, Coverage):
            self.sent[sender.index] += sum(memoryview(frame).nbytes for frame in envelope.frames)
        super()._transmit(sender, envelope)


class _Run:
    def __init__(
        self, seed: int, peers: int, blocks: int, block: int, pace: float, conditions: Conditions, preset: str
    ) -> None:
        self.block, self.pace = block, pace
        self.data = DataSet(b"the data set read"[:16], "data", blocks)
        self.uses: defaultdict[Lease, list[int]] = defaultdict(list)
        """lease -> samples used from the front of the block, each time it was open"""
        self.lost: defaultdict[Lease, int] = defaultdict(int)
        self.readers: dict[int, Reader] = {}
        self.over: list[Reader] = []
        self.crashes = self.departures = self.counted = 0
        self.network = _Metered(seed, conditions, listen=self._heard)
        averaging = averaging_config(fineness={"modulo4": 4})
        config = peer_config(membership=PRESETS[preset], averaging=averaging, settings=SETTINGS)
        for _ in range(peers):
            self.network.add(config)

    def start(self, host: Host) -> None:
        if host.peer is None:
            self.network.start(host, seeds=self.network.hosts[:3])
            # The daemon runs for some time before the training process.
            self.network.at(self.network.now + 3.0, "open", host, lambda: self._open(host))

    def _open(self, host: Host) -> None:
        self.network.command(host, "open", lambda peer: peer.leasing.open(self.data, self.network.now))

    def _heard(self, host: Host, event: Event) -> None:
        match event:
            case DataKnown():
                reader = self.readers[host.index] = Reader(self, host)
                self.network.at(self.network.now, "take", host, reader.take)
            case Left():
                self.network.at(self.network.now + 0.3, "exit", host, lambda: self._stop(host))

    def _stop(self, host: Host) -> None:
        table = host.running.leasing.table(self.data.digest)
        self.counted += 0 if table is None else table.duplicates
        self.network.stop(host)

    def end(self, host: Host, *, crash: bool) -> None:
        if host.peer is None:
            return
        self.crashes += crash
        self.departures += not crash
        reader = self.readers.pop(host.index, None)
        if reader is not None:
            reader.die(crash=crash)
            self.over.append(reader)
        if crash:
            self._stop(host)
        else:
            self.network.command(host, "leave", lambda peer: peer.leave(self.network.now))


def run(
    seed: int,
    peers: int = 16,
    *,
    churn: float = 0.2,
    minutes: float = 10.0,
    blocks: int = 2048,
    block: int = 64,
    epoch: float = 120.0,
    conditions: Conditions | None = None,
    preset: str = "lan",
) -> Outcome:
    """Play one seed.

    Args:
        churn: share of the hosts that crash or leave in a minute, half of them each.
        minutes: virtual minutes of churn.
        blocks, block: blocks of an epoch, and samples of a block.
        epoch: approximate seconds of an epoch while all hosts run.
    """
    began = time.perf_counter()
    speed = sum(SPEEDS[index % len(SPEEDS)] for index in range(peers))
    # Seconds per sample of the slowest reader.
    pace = epoch * speed / (blocks * block)
    one = _Run(seed, peers, blocks, block, pace, conditions or Conditions(loss=0.01), preset)
    network, script = one.network, one.network.random("script")
    for host in network.hosts:
        network.at(script.uniform(0.0, 3.0), "start", None, partial(one.start, host))
    at, until = 10.0, 10.0 + 60.0 * minutes
    while churn and (at := at + script.expovariate(churn * peers / 60.0)) < until:
        host, crash, back = script.choice(network.hosts[1:]), script.random() < 0.5, at + script.uniform(*AWAY)
        network.at(at, "end", None, partial(one.end, host, crash=crash))
        network.at(back, "start", None, partial(one.start, host))
    network.run(until)
    return _judge(seed, one, until, time.perf_counter() - began)


def _judge(seed: int, one: _Run, seconds: float, wall: float) -> Outcome:
    live = [host for host in one.network.hosts if host.peer is not None]
    tables = [table for host in live if (table := host.running.leasing.table(one.data.digest)) is not None]
    epochs = max(table.epoch for table in tables)
    missed = duplicates = crashed = 0
    for number in range(epochs * one.data.blocks):
        lease = Lease(*divmod(number, one.data.blocks))
        uses = one.uses.get(lease, [])
        missed += one.block - max(uses, default=0)
        again = sum(uses) - max(uses, default=0)
        duplicates += again
        crashed += min(again, one.lost[lease])
    readers = [*one.over, *one.readers.values()]
    traffic = [one.network.sent[host.index] / seconds for host in one.network.hosts]
    return Outcome(
        seed,
        len(one.network.hosts),
        epochs,
        epochs * one.data.blocks * one.block,
        missed,
        duplicates,
        crashed,
        one.crashes,
        one.departures,
        one.counted + sum(table.duplicates for table in tables),
        sum(reader.idle for reader in readers) / (seconds * len(one.network.hosts)),
        sum(traffic) / len(traffic),
        max(traffic),
        one.network.events,
        one.network.log_hash,
        wall,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.data", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --seed on")
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--churn", type=float, default=0.2, help="share of the hosts that crash or leave in a minute")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--blocks", type=int, default=2048)
    parser.add_argument("--epoch", type=float, default=120.0, help="approximate seconds of an epoch")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="lan")
    options = parser.parse_args(arguments)
    print(f"{'seed':>5} {'peers':>6} {'crashes':>8} {'leaves':>7} {'epochs':>7} {'samples':>9} {'missed':>7} "
          f"{'again':>7} {'of crashed':>11} {'the rest':>9} {'counted':>8} {'idle':>6} {'B/s':>6} {'busiest':>8} "
          f"{'wall s':>7}")  # fmt: skip
    failed = False
    for seed in range(options.seed, options.seed + options.seeds):
        one = run(
            seed,
            options.peers,
            churn=options.churn,
            minutes=options.minutes,
            blocks=options.blocks,
            epoch=options.epoch,
            preset=options.preset,
        )
        failed = failed or one.missed > 0 or one.share > 0.01 or not one.epochs
        print(
            f"{seed:5d} {one.peers:6d} {one.crashes:8d} {one.departures:7d} {one.epochs:7d} {one.samples:9d} "
            f"{one.missed:7d} {one.duplicates:7d} {one.crashed:11d} {one.share:9.2%} {one.counted:8d} {one.idle:6.1%} "
            f"{one.traffic:6.0f} {one.busiest:8.0f} {one.wall:7.1f}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
