"""The age that a peer reports for a state after a long transfer, to joiners and as a witness (algorithms section 8).

A transfer takes time while others train. A peer that passes a fetched state on as current would be called implausible.
So the age of the state counts, and halves with each exchange.
"""

from gossipdp.protocol.events import ExchangeEnded, ResyncBegan, ResyncEnded, StateReady
from gossipdp.protocol.peer import PeerConfig
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import StateAsk, StateManifest, StateRefuse, StateRequest
from simulations.simulator.network import Conditions, Network
from simulations.simulator.settings import peer_config
from simulations.simulator.trainer import Trainer, TrainerConfig

SIZE = 4 * 8192
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])
STEP, EVERY = 0.1, 5
ASKED = 7
"""The number of the test's own transfer."""


class Hosts:
    """The last host is asked for its state, and may be on a slow link.

    Args:
        keep: Seconds after which it freezes its state anew for the next joiner.
    """

    def __init__(self, peers: int, *, keep: float) -> None:
        self.events: list[tuple[int, object]] = []
        self.trainers: dict[int, Trainer] = {}
        self.given: list[tuple[int, object]] = []
        self.net = Network(1, Conditions(latency=0.005), listen=self.heard, passes=self.passes)
        self.hosts = [self.net.add(self.configured(60.0)) for _ in range(peers - 1)]
        self.last = self.net.add(self.configured(keep))
        self.hosts.append(self.last)

    @staticmethod
    def configured(keep: float) -> PeerConfig:
        return peer_config(
            settings=b"the settings....",
            transfer=TransferConfig(manifest=20.0, chunk=10.0, silence=40.0, keep=keep),
            every=EVERY,
            warmup_steps=0,
        )

    def heard(self, host, event) -> None:
        self.events.append((host.index, event))
        trainer = self.trainers.get(host.index)
        if trainer is not None:
            trainer.hear(event)

    def passes(self, sender, target, message) -> bool:
        if getattr(message, "transfer", None) == ASKED:
            self.given.append((sender.index, message))
        return True

    def start(self, index: int, *, trains: bool) -> None:
        self.net.start(self.hosts[index], seeds=self.hosts[:1], found=index == 0)
        if trains:
            self.train(index)

    def train(self, index: int) -> None:
        config = TrainerConfig(step_time=STEP)
        self.trainers[index] = Trainer(self.net, self.hosts[index], SCHEMA, config, index, lambda *what: None)

    def slow(self, seconds: float) -> None:
        """The last host's link takes so long for a state."""
        self.last.downlink = 2 * SIZE / seconds

    def until(self, kind: type, count: int = 1, within: float = 60.0) -> list:
        """Until the last host has said so."""
        end = self.net.now + within
        while len(self.of(kind)) < count:
            assert self.net.now < end, kind
            self.net.run(self.net.now + 0.05)
        return self.of(kind)

    def of(self, kind: type) -> list:
        return [event for index, event in self.events if index == self.last.index and isinstance(event, kind)]

    def ask(self, message) -> list:
        """What the last host answers to another that it takes for the first."""
        self.given.clear()
        first = self.hosts[0].id
        self.net.command(self.last, "asked", lambda peer: peer.receive(wire.encode(message), first, self.net.now))
        self.net.run(self.net.now + 0.1)
        return [message for index, message in self.given if index == self.last.index]

    @property
    def behind(self) -> int:
        """Steps by which the state that the last host gives is older than the network's clock, as it says."""
        [manifest] = self.ask(StateRequest(ASKED))
        assert isinstance(manifest, StateManifest)
        return self.last.running.view.clock - manifest.clock


def test_state_after_a_long_transfer_is_given_with_its_age_which_exchanges_halve():
    hosts = Hosts(2, keep=1.0)
    hosts.start(0, trains=True)
    hosts.net.run(10.0)
    hosts.slow(6.0)
    hosts.start(1, trains=False)
    hosts.until(StateReady)
    hosts.last.downlink = None
    assert 6.0 / STEP - 2 * EVERY < hosts.behind < 7.0 / STEP + 2 * EVERY
    hosts.train(1)  # the model is older than two rounds, but another transfer could not bring a newer one
    hosts.until(ExchangeEnded, 8)
    assert hosts.of(ResyncBegan) == []
    assert all(event.chunks for event in hosts.of(ExchangeEnded))
    assert hosts.behind <= 2 * EVERY


def test_followed_state_is_given_with_its_age_and_the_snapshot_before_is_dropped():
    hosts = Hosts(5, keep=200.0)
    for index in range(5):
        hosts.start(index, trains=True)
    hosts.net.run(15.0)
    [manifest] = hosts.ask(StateRequest(ASKED))
    hosts.net.links.cut(hosts.hosts[:-1], [hosts.last])
    hosts.net.run(hosts.net.now + 6 * EVERY * STEP)
    hosts.net.links.heal()
    hosts.slow(6.0)
    hosts.until(ResyncBegan)
    [ended] = hosts.until(ResyncEnded)
    assert ended.reason == "lag" and ended.complete
    # At once: before a newer state is frozen, and before the first exchange, which halves the age.
    assert hosts.ask(StateAsk(ASKED, manifest.snapshot, (0,))) == [StateRefuse(ASKED, "gone")]
    behind = hosts.behind
    assert 6.0 / STEP - 4 * EVERY < behind < 8.0 / STEP + 4 * EVERY


def test_exchange_that_is_cut_off_in_its_middle_is_not_taken_for_a_slow_one():
    hosts = Hosts(2, keep=200.0)
    for index in range(2):
        hosts.start(index, trains=True)
    hosts.net.run(15.0)
    averaging, pacing = hosts.last.running._replica.averaging, hosts.last.running._replica.pacing
    before, pace = pacing.own(0).transfer, averaging._timing.pace
    while averaging._active is None or averaging._active.tally.chunks != 1:
        hosts.net.run(hosts.net.now + 0.001)
    hosts.net.links.cut([hosts.hosts[0]], [hosts.last])
    ended = len(hosts.of(ExchangeEnded))
    cut_off = hosts.until(ExchangeEnded, ended + 1)[-1]
    assert cut_off.chunks < SIZE // 8192 and cut_off.duration * 4 / STEP > 5 * before
    # What a transfer is expected to take, in steps, says how far behind a peer must be to follow the others.
    assert before / 2 < pacing.own(0).transfer < 2 * before
    assert averaging._timing.pace < 2 * pace, "nor are its chunks"
