"""What every attack costs with and without clipping, on a small convex problem, with the library's own code.

The problem is softmax regression on ten Gaussian classes. Every peer has an anchor and meets others, by the jobs of
`Pairwise`, on the product's terms. Some peers are bad.

The figure is the share of held-out examples that honest peers get right. The bad peers have the first rows.
`python -m simulations.lab.robustness.convex` prints the table. This module defines no attack.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import block_max
from gossipdp.algorithms.pairwise import RANGE_DECAY, RANGE_SHARE, Pairwise
from gossipdp.config import AUTO_CLIP, EARLY_SHARE, Exchange
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from gossipdp.protocol.pairwise.timetable import exchanges_per_round
from gossipdp.protocol.rounds.usual_step import usual_step
from simulations.lab.methods.shared_buffers import SharedBuffers
from simulations.lab.robustness.attacks import ATTACKS, Attack, Meeting

__all__ = ["Data", "Peer", "Trial", "exchange", "gaussian_classes", "main", "pairwise"]

Matrix: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]

EXCHANGE: Final = Exchange()
WIDTH: Final = 256
"""parameters of a chunk"""
DIVERGED: Final = 1e6
"""magnitude of a parameter at which a run counts as diverged"""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Examples of equally likely classes. Features have about unit size; the last one is 1."""

    features: Matrix
    labels: Labels
    held_out: Matrix
    answers: Labels
    classes: int = 10

    def right(self, model: Matrix) -> float:
        """Share of the held-out examples that `model`, shape (d * classes,), gets right."""
        logits = self.held_out @ model.reshape(-1, self.classes)
        return float(np.mean(logits.argmax(axis=1) == self.answers))


def gaussian_classes(seed: int, examples: int = 1800, features: int = 64, apart: float = 0.35) -> Data:
    """Ten classes around random centres, with as many features as a digit of 8 x 8 pixels."""
    random = np.random.default_rng((seed, 0x64617461))
    centres = apart * random.standard_normal((10, features))
    labels = random.integers(0, 10, examples + 600)
    points = np.column_stack([centres[labels] + random.standard_normal((len(labels), features)), np.ones(len(labels))])
    points = points.astype(np.float32)
    cut = examples
    return Data(features=points[:cut], labels=labels[:cut], held_out=points[cut:], answers=labels[cut:])


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Conditions of one run."""

    data: Data
    peers: int = 16
    bad: int = 3
    rounds: int = 30
    steps: int = 5
    """H"""
    batch: int = 16
    lr: float = 0.1
    seed: int = 0

    def trained(self, starts: Matrix, attack: Attack, round: int, random: np.random.Generator) -> Matrix:
        """Every peer's model after H steps of SGD from its own start, shape (peers, d * classes)."""
        data = self.data
        models = starts.reshape(self.peers, -1, data.classes).copy()
        for _ in range(self.steps):
            chosen = random.integers(0, len(data.labels), (self.peers, self.batch))
            features, labels = data.features[chosen], data.labels[chosen]
            labels[: self.bad] = attack.labels(labels[: self.bad], data.classes, round)
            logits = features @ models
            logits -= logits.max(axis=2, keepdims=True)
            odds = np.exp(logits)
            odds /= odds.sum(axis=2, keepdims=True)
            np.put_along_axis(odds, labels[:, :, None], np.take_along_axis(odds, labels[:, :, None], 2) - 1.0, 2)
            models -= np.float32(self.lr / self.batch) * (features.transpose(0, 2, 1) @ odds)
        return models.reshape(self.peers, -1)

    @property
    def size(self) -> int:
        return int(self.data.features.shape[1] * self.data.classes)


class Peer:
    """Vectors of one peer, with a training process that takes no time."""

    def __init__(self, number: int, size: int, clip: float) -> None:
        self.id = number.to_bytes(32, "big")
        self.algorithm = Pairwise(clip=clip)
        self.algorithm.allocate(size, size, WIDTH)
        self.ledger = self.algorithm.ledger
        self.x = np.zeros(size, np.float32)
        self.buffers = SharedBuffers(self.ledger, self.x)
        self.began = self.ledger.a.copy()
        """the anchor before the last outer step"""

    def step(self, x: Matrix, outer: Outer) -> None:
        """The product's outer step, after training has reached `x`."""
        self.x[:], self.began[:] = x, self.ledger.a
        self.buffers.submit()
        for chunk in range(self.ledger.chunks):
            self.algorithm.run(jobs.OuterStep(chunk, outer.lr, outer.momentum, self.buffers.applied))
        self.settle()

    def settle(self) -> None:
        """Add all corrections to x."""
        self.buffers.drain()


def exchange(first: Peer, second: Peer, number: int, codec: str, lr: float) -> None:
    """Exchange all chunks, after outer steps of alpha `lr`. A chunk that either side refuses changes neither."""
    mixing = jobs.Mixing(weight=EXCHANGE.weight, pull=EXCHANGE.kappa / lr)
    for chunk in range(first.ledger.chunks):
        key = jobs.ChunkKey(first.id, number, chunk)
        one, two = (jobs.Coding(codec=codec, lower=lower) for lower in (first.id < second.id, second.id < first.id))
        turn = _turn(first, jobs.Begin(key=key, coding=one))
        turn = _turn(second, jobs.Answer(key=key, coding=two, ranges=turn.buffers[0]))
        begins = True
        while not turn.refused and not turn.mixed:
            turn = _turn(first, jobs.Decode(key=key, buffers=turn.buffers, first=begins))
            if not turn.refused:
                turn = _turn(second, jobs.DecodeAndMix(key=key, buffers=turn.buffers, bound=turn.bound, mixing=mixing))
            begins = False
        if not turn.refused:
            _turn(first, jobs.Mix(key=key, buffers=turn.buffers, share=turn.share, mixing=mixing))
        for peer in (first, second):
            peer.algorithm.run(jobs.Drop((key,)))


def _turn(peer: Peer, job: jobs.Job[object]) -> jobs.Turn:
    turn = peer.algorithm.run(job)
    assert isinstance(turn, jobs.Turn)
    return turn


def _lie(liar: Peer, told: Matrix, partner: Peer, number: int, codec: str, lr: float) -> None:
    """An exchange in which `liar` presents the anchor `told`, and afterwards continues as if it had not."""
    ledger, met = liar.ledger, partner.ledger.a.copy()
    own, v, ranges = ledger.a.copy(), ledger.v.copy(), liar.algorithm.range.copy()
    ledger.a[:] = told
    exchange(liar, partner, number, codec, lr)
    moved = np.float32(EXCHANGE.weight) * (met - own)
    ledger.a[:], ledger.v[:] = own + moved, v - np.float32(EXCHANGE.kappa / lr) * moved
    liar.algorithm.range[:] = np.maximum(RANGE_SHARE * block_max(met - own), RANGE_DECAY * ranges)
    liar.settle()
    liar.x[:] = ledger.a


def pairwise(trial: Trial, attack: Attack, clip: float = AUTO_CLIP) -> list[float]:
    """Accuracy of each honest peer's anchor after all rounds.

    Everything has the product's defaults: outer momentum, kappa, the codec, several exchanges in early rounds. Partners
    are random. In private a bad peer follows the protocol, so it knows what an honest peer would hold. It clips nothing
    and asks for the full share.
    """
    random = np.random.default_rng((trial.seed, 1))
    chance = np.random.default_rng((trial.seed, 2))
    meetings = np.random.default_rng((trial.seed, 3))
    numbers = itertools.count(1)
    peers = [Peer(n, trial.size, np.inf if n < trial.bad else clip) for n in range(trial.peers)]
    honest = peers[trial.bad :]
    for round in range(trial.rounds):
        early = round < EARLY_SHARE * trial.rounds
        outer = usual_step(early=early, fill=0.0, spread=0.0, peers=trial.peers)
        for peer, x in zip(
            peers, trial.trained(np.stack([peer.x for peer in peers]), attack, round, random), strict=True
        ):
            peer.step(x, outer)
        codec = f"modulo{EXCHANGE.bits}" if round else "modulo8"
        most = EXCHANGE.early_exchanges if early else EXCHANGE.late_exchanges
        for _ in range(exchanges_per_round(trial.peers, most)):
            order = meetings.permutation(trial.peers).tolist()
            for one, other in zip(order[::2], order[1::2], strict=False):
                liar, partner = peers[min(one, other)], peers[max(one, other)]
                if min(one, other) >= trial.bad:
                    exchange(peers[one], peers[other], next(numbers), codec, outer.lr)
                elif max(one, other) >= trial.bad:
                    meeting = Meeting(
                        own=liar.ledger.a.copy(),
                        start=liar.began,
                        partner=partner.ledger.a.copy(),
                        honest=np.stack([peer.ledger.a for peer in honest]),
                        bad=trial.bad,
                    )
                    told = attack.anchor(meeting, round, chance).astype(np.float32)
                    _lie(liar, told, partner, next(numbers), codec, outer.lr)
        for peer in peers:
            peer.settle()
        if not max(np.abs(peer.ledger.a).max() for peer in honest) < DIVERGED:
            break
    return [trial.data.right(peer.ledger.a) for peer in honest]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every attack with and without clipping, on a convex problem.")
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--bad", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    trials = [
        Trial(data=gaussian_classes(seed), peers=options.peers, bad=options.bad, rounds=options.rounds, seed=seed)
        for seed in range(options.seeds)
    ]
    print(f"held-out accuracy in %, mean of {options.seeds} seeds, {options.rounds} rounds")
    print(f"{options.bad} bad of {options.peers} peers\n")
    print(f"{'attack':16}" + "".join(f"{name:>13}" for name in ("no clipping", "clipping")))
    for name, attack in ATTACKS.items():
        shares = [fmean(fmean(pairwise(trial, attack, clip)) for trial in trials) for clip in (np.inf, AUTO_CLIP)]
        print(f"{name:16}" + "".join(f"{100 * share:13.1f}" for share in shares), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
