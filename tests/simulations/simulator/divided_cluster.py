"""A network whose sides train towards different optima while they are cut off. A helper of tests."""

from dataclasses import replace

import numpy as np

from gossipdp.protocol.events import ResyncEnded, StateReady
from gossipdp.protocol.membership.config import LOCAL
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions

EVERY, STEP = 4, 0.2
ROUND = EVERY * STEP
"""seconds of a round"""
FAR = 10.0
"""distance of the smaller side's optimum to the larger side's: their average is near neither"""


class Divided(Cluster):
    """A calm network. While its sides are cut off, they train towards different optima."""

    def __init__(
        self,
        peers: int,
        *,
        seed: int = 1,
        every: int = EVERY,
        conditions: Conditions | None = None,
        forget_after: float = LOCAL.forget_after,
        chunks: int = 2,
    ) -> None:
        self.forget_after = forget_after
        weather, size = conditions or Conditions(), 8192 * (chunks - 1) + 300
        super().__init__(seed, Plan(peers=peers, size=size, conditions=weather, every=every, window=2))
        self.heard = []
        self.listeners.append(lambda host, event: self.heard.append((self.network.now, host.index, event)))
        for host in self.network.hosts:
            self.network.at(0.1 * host.index, "start", None, lambda host=host: self.restart(host))
        self.network.run(12.0)
        assert all(host.running.view.ready for host in self.network.hosts)
        self.network.set_conditions(weather)

    def _config(self):
        config = super()._config()
        return replace(config, membership=replace(config.membership, forget_after=self.forget_after))

    def side(self, numbers):
        return [self.network.hosts[number] for number in numbers]

    def cut(self, *sides):
        """Cut the sides off from each other. Side k trains towards an optimum of its own."""
        for place, one in enumerate(sides):
            for other in sides[:place]:
                self.network.links.cut(self.side(one), self.side(other))
            for number in one:
                self.aim(number, place)

    def move(self, host, address):
        """Move a host to another address. No host answers at the old one."""
        known = self.network._by_address
        known[address] = known.pop(host.address)
        host.address = address

    def aim(self, number, place):
        trainer = self.trainers[number]
        trainer.optimum = trainer.optimum + np.float32(FAR * place)

    def go_on(self, seconds):
        self.network.run(self.network.now + seconds)

    def mean(self, numbers):
        return np.mean([host.algorithm.ledger.a for host in self.side(numbers) if host.peer is not None], axis=0)

    def heal(self, *, still=True):
        """Heal all cuts. With `still` no process trains on, so only the protocol changes the models."""
        self.network.links.heal()
        for trainer in self.trainers.values():
            if still:
                trainer.stand_still()

    def meet_again(self, larger, smaller, *, seconds=25.0):
        """Heal all cuts. Check that exactly the smaller side follows, to the model of the larger one."""
        theirs = self.mean(larger)
        self.heal()
        self.go_on(seconds)
        assert self.resynced == sorted(smaller)
        self.ends_at(theirs)

    def of(self, kind):
        return [(host, event) for _, host, event in self.heard if isinstance(event, kind)]

    @property
    def resynced(self):
        return self.followed("apart")

    def followed(self, reason):
        return sorted(host for host, event in self.of(ResyncEnded) if event.complete and event.reason == reason)

    def distances(self, model):
        return [float(np.abs(host.algorithm.ledger.a - model).max()) for host in self.network.hosts]

    def ends_at(self, model, *, within=FAR / 10):
        """Check that all hosts are alive, at rest and near `model`, that no ledger lost anything, and that one host
        founded."""
        self.check_rest()
        assert max(self.distances(model)) < within, self.distances(model)
        assert [event.origin for _, event in self.of(StateReady)].count("founded") == 1
