"""A town whose run ends: a driver as the daemon's, and the marks that the final anchors must reach."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np

from gossipdp.protocol.events import FinishBegan, Finished
from tests.protocol.peer_rig import Town, configured

MARK = 1e-3
"""largest distance of the final anchors to their mean, as a share of what it was"""


class Ending(Town):
    """All peers train. As in a daemon, training ends with the run of its peer, and a finished peer leaves."""

    def heard(self, host, event):
        super().heard(host, event)
        if isinstance(event, FinishBegan) and host.index in self.trainers:
            self.trainers[host.index].die()
        if isinstance(event, Finished):
            leave = partial(self.net.command, host, "leave", lambda peer: peer.leave(self.net.now))
            self.net.at(self.net.now, "leave", host, leave)

    @classmethod
    def trained(cls, peers, seconds=5.0, **changes):
        town = cls(peers, **changes)
        town.start(0, found=True)
        town.train(0)
        town.run(0.5)
        for index in range(1, peers):
            town.start(index)
            town.train(index)
        town.run(seconds)
        return town

    @classmethod
    def briefly_trained(cls, peers, speeds=(1,), outbound=0, seconds=1.0, seed=1):
        """A run of a second: rounds shorter than an exchange, noise larger than the model, no distance known.

        Args:
            speeds: seconds of a step as multiples, in turn.
            outbound: the last peers, which no other can dial.
            seed: of the network's randomness.
        """
        town = cls(0, seed=seed)
        options = {"every": 10, "warmup_steps": 20}
        town.hosts = [town.net.add(configured(**options), outbound=index >= peers - outbound) for index in range(peers)]
        town.net.set_conditions(dataclasses.replace(town.net.conditions, latency=0.02))
        for index in range(peers):
            town.start(index, found=index == 0)
            town.train(index, step_time=0.001 * speeds[index % len(speeds)], noise=0.2)
            town.run(0.0 if index else 0.2)
        town.run(seconds)
        return town

    def finish(self, *indices, calls=False, wait=None):
        for index in indices:
            self.net.command(
                self.hosts[index], "finish", lambda peer: peer.finish(self.net.now, calls=calls, wait=wait)
            )

    def finished(self, *indices):
        """The reports of these peers, once all have finished; at most after 90 seconds."""
        until = self.net.now + 90.0
        while self.net.now < until and not all(self.of(index, Finished) for index in indices):
            self.run(0.05)
        return [self.of(index, Finished)[0] for index in indices]

    def anchors(self, *indices):
        return np.stack([self.hosts[index].algorithm.ledger.a.astype(np.float64) for index in indices])

    def points(self, *indices):
        """The anchors without the lookahead of their last outer steps."""
        return np.stack([without_lookahead(self.hosts[index].algorithm.ledger) for index in indices])


def without_lookahead(ledger):
    point = ledger.a.copy()
    for chunk in range(ledger.chunks):
        span = ledger.span(chunk)
        point[span] += ledger.lookahead[chunk] * ledger.v[span]
    return point.astype(np.float64)


def distance(anchors):
    """RMS distance to the mean."""
    return float(np.sqrt(np.mean((anchors - anchors.mean(0)) ** 2)))
