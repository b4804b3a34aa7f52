"""Decoupled DiLoCo: learners that never wait, and a syncer that holds the model and the outer optimizer.

Decoupled DiLoCo Team, Google 2026, arXiv 2604.21428. Only the abstract was at hand when this was written. The rest is
from readings of the paper by others, such as GradientMail, tsugi-mend and az9713/decoupled-diloco-tutorial.

From the paper:

* The model is P fragments, each merged once in H steps, one after another (P = H = 24 there).
* A learner trains by itself and reports every step. A merge waits for K reports, then for more in a grace window of at
  most gamma (tau step - (quorum + sync)) seconds, tau = 2. It pulls the fragment from those that reported, steps, and
  broadcasts. K = 1 with a grace window was best there with hosts of two speeds.
* A learner that receives a fragment overwrites its own. Its steps since the pull are lost there.
* Merges are radial-directional (see `merged`), and direct means for embeddings. A learner's weight is c (c / s), with c
  its tokens and s its steps since it received the fragment. Here batches are equal, so it is proportional to s.
* The outer optimizer is SGD with Nesterov momentum. No readings give its numbers; 0.7 and 0.9 are those of DiLoCo.
* The syncer has no accelerator and is split over as many CPU workers as there are learners.

Chosen here:

* H counts steps of a learner of speed 1, as of every method here. gamma is 0.9. The longest step counts in the window.
* Two merges at most are under way, one for each step of tau. So a slow link lengthens H, and no queue grows.
* Fragments are equal parts of the vector, and a tensor's part in a fragment is merged by itself. The paper packs whole
  tensors into fragments of about equal size; the models here have too few.
* The paper's number format is not known. With 4 bits the learner sends Q(last fragment received - its own), and the
  syncer sends and makes Q(its step), as in Streaming DiLoCo (2501.18512).
* `keep` is the share of a learner's own fragment that stays on arrival: 0 in the paper, a half in Streaming DiLoCo.
* A first plain merge and a warm start, as the other forms of DiLoCo here may have.
* A fragment that fails to reach the syncer is left out of its merge. One that fails to reach a learner is sent again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from peers.plan.clock import compute_seconds, own_pace
from peers.plan.timeline import Counts
from simulations.lab.baselines.synchronous import WARMUP_EVERY, e3m0
from simulations.lab.core import Lab

__all__ = ["SYNCER", "Arrival", "DecoupledDiLoCo", "Merge", "merged"]

SYNCER: Final = -1
"""the syncer among learners, whose numbers begin at 0"""
UNDER_WAY: Final = 2
"""merges that have begun and whose broadcast has not ended, at most"""
LITTLE: Final = 1e-12
"""norm of a mean direction that counts as none"""


def merged(drifts: Tensor, weights: Tensor, *, direct: bool) -> Tensor:
    """The merge of the learners' differences of one tensor, shape (n,).

        direct: sum_m w_m d_m        otherwise: sum_m w_m |d_m| times the direction of sum_m w_m d_m / |d_m|

    The second keeps the length of differences that are nearly orthogonal, whatever their number.

    Args:
        drifts: d_m, shape (M, n).
        weights: w_m, shape (M,), of sum 1.
        direct: whether to take the mean.
    """
    mean = weights @ drifts
    if direct:
        return mean
    lengths = drifts.norm(dim=1)
    direction = (weights / lengths.clamp_min(torch.finfo(torch.float32).tiny)) @ drifts
    length = direction.norm()
    return mean if length < LITTLE else (weights @ lengths) / length * direction


class Piece(NamedTuple):
    """A tensor's part in a fragment."""

    span: slice
    """within the fragment"""
    direct: bool
    """whether its differences are averaged directly"""


class Arrival(NamedTuple):
    """A fragment on its way to a learner."""

    at: float
    """seconds"""
    fragment: int
    values: Tensor


@dataclass
class Merge:
    """One merge of one fragment, from its opening to the end of its broadcast."""

    fragment: int
    opened: float
    """seconds"""
    at: float = math.inf
    """when its present stage ends, in seconds"""
    reports: dict[int, float] = field(default_factory=dict)
    """when the syncer heard of each learner"""
    closed: float | None = None
    """when it stopped waiting for reports; None before"""
    pulled: Tensor | None = None
    """the fragments that arrived, shape (M, n); None before they do, and after the step"""
    weights: Tensor | None = None
    members: Sequence[int] = ()
    """learners whose fragments are merged"""
    sent: bool = False
    """whether the broadcast has begun"""


@dataclass
class DecoupledDiLoCo:
    """Decoupled DiLoCo, on hosts that are always there. The module says what is from the paper.

        d_m = Theta_p - theta_m,p        Delta = merged(d_m)
        v_p <- mu v_p + Delta        Theta_p <- Theta_p - alpha (Delta + mu v_p)        theta_m,p <- Theta_p on arrival

    Bytes: a learner receives the model once in H steps, and sends as much. The syncer receives and sends N times that.
    Its hosts are of their own, and each has a link like a learner's. Seconds: no learner waits.

    The model is Theta, with all merges that the syncer has made.
    """

    alpha: float = 0.7
    mu: float = 0.9
    fragments: int = 24
    """P"""
    quorum: int = 1
    """K"""
    tau: float = 2.0
    """steps that a merge may last without loss"""
    gamma: float = 0.9
    radial: bool = True
    """whether merges are radial-directional"""
    keep: float = 0.0
    bits: int = 32
    """32 or 4"""
    syncers: int = 1
    """hosts over which the syncer is split"""
    plain_first: bool = False
    warmup_steps: int = 0
    name: str = "diloco-decoupled"
    theta: Tensor = field(init=False, repr=False)
    """Theta, shape (P,)"""
    v: Tensor = field(init=False, repr=False)

    # -- the run --------------------------------------------------------------------------------------------------

    def begin(self, lab: Lab) -> None:
        count, parameters = lab.peers, lab.problem.parameters
        fragments = min(self.fragments, parameters)
        ends = np.linspace(0, parameters, fragments + 1).round().astype(int).tolist()
        self._spans = [slice(*pair) for pair in pairwise(ends)]
        self._pieces = [_pieces(span, lab) for span in self._spans]
        self.theta = lab.mean
        self.v = torch.zeros_like(self.theta)
        self._received = self.theta.expand(count, -1).clone()
        """each learner's fragments as it last received them, shape (N, P)"""
        self._since = np.zeros((count, fragments), np.int64)
        """steps of each learner since it received each fragment"""
        self._ended = np.full(count, lab.seconds)
        """when each learner's last step ended"""
        self._arrivals: list[list[Arrival]] = [[] for _ in range(count)]
        self._merges: list[Merge] = []
        self._next = 0
        """the fragment that is merged next"""
        self._slot, self._freed = lab.seconds, lab.seconds
        """when the next merge is due, and when it may begin for the sake of those under way"""
        self._inward = self._outward = lab.seconds
        """when the syncer's link is free again, each way"""
        self._lasted = 0.0
        """seconds from the close of the last merge to the end of its broadcast"""
        self.moved: float = 0.0
        """bytes that the syncer has received; it has sent about as many"""
        self._start(lab)

    def _start(self, lab: Lab) -> None:
        """Make the steps of the warm start, and set what holds afterwards."""
        everything = set(range(len(self._spans)))
        self._whole: set[int] = set()
        """fragments whose next merge is plain and travels in fp32"""
        self._plain: set[int] = set()
        """fragments whose next outer step is plain"""
        self._warming, self._every = True, WARMUP_EVERY
        if self.warmup_steps:
            self._slot += self._gap(lab)
            self.play(lab, self.warmup_steps)
        self._warming, self._every = False, lab.setting.every
        self._slot = lab.seconds + self._gap(lab)
        self._plain = everything if self.plain_first else set()

    def round(self, lab: Lab) -> None:
        self.play(lab, lab.setting.every)

    def play(self, lab: Lab, every: int) -> None:
        """Play as long as a learner of speed 1 makes `every` steps."""
        for end, due in self.steps(lab, every):
            self._advance(lab, end)
            self._land(lab, due)
            self.train(lab, due)
            self._since[due] += 1
            self._ended[due] = end
            self._open(lab, end)
            for learner in due:
                self._report(lab, learner, end + lab.setting.link.latency)
        self._advance(lab, math.nextafter(lab.seconds, math.inf))
        self._land(lab, range(lab.peers))

    def steps(self, lab: Lab, every: int) -> Iterator[tuple[float, list[int]]]:
        """The moments at which steps end, and whose they are. Afterwards the clock is at the end of the last."""
        began, lasts, counts = lab.seconds, compute_seconds(lab, every), own_pace(lab, every)
        for tick, (_, due) in enumerate(lab.ticks(counts)):
            yield began + (tick + 1) / int(counts.max()) * lasts, _numbers(lab, due)
        lab.set_clock(began + lasts)

    def train(self, lab: Lab, learners: Sequence[int]) -> None:
        """One step of each of these."""
        due = None if len(learners) == lab.peers else np.array(learners, np.int64)
        lab.update(lab.gradients(due), due)

    def model(self, lab: Lab) -> Tensor:
        return self.theta

    # -- the hosts, which `failures` replaces ---------------------------------------------------------------------

    def move(self, lab: Lab, host: int, begin: float, size: float) -> float:
        """When this host's link has carried `size` bytes; infinite if it dies before. The syncer's bytes are split."""
        return begin + lab.setting.link.seconds(size / (self.syncers if host == SYNCER else 1), 0)

    def awake(self, lab: Lab, at: float) -> float:
        """The first moment from `at` on at which the syncer works."""
        return at

    def connected(self, lab: Lab, at: float) -> Collection[int]:
        """Learners that the syncer can reach."""
        return range(lab.peers)

    # -- what the syncer does -------------------------------------------------------------------------------------

    def _gap(self, lab: Lab) -> float:
        """Seconds between the openings of two merges."""
        return compute_seconds(lab, self._every) / len(self._spans)

    def _opening(self, lab: Lab) -> float:
        """When the next merge opens, as far as that is known."""
        if len(self._merges) >= min(UNDER_WAY, len(self._spans)):
            return math.inf
        return self.awake(lab, max(self._slot, self._freed))

    def _advance(self, lab: Lab, until: float) -> None:
        """Let the syncer do all that it does before `until`."""
        while True:
            stage = min(self._merges, key=lambda merge: merge.at, default=None)
            when = math.inf if stage is None else stage.at
            if min(self._opening(lab), when) >= until:
                return
            if stage is None or self._opening(lab) <= when:
                self._open(lab, self._opening(lab))
            elif stage.closed is None:
                self._pull(lab, stage)
            elif not stage.sent:
                self._step(lab, stage)
            else:
                self._merges.remove(stage)
                self._freed, self._lasted = stage.at, stage.at - stage.closed

    def _open(self, lab: Lab, by: float) -> None:
        """Open the next merge if it is due by then."""
        at = self._opening(lab)
        if at <= by:
            self._merges.append(Merge(self._next, at))
            self._next = (self._next + 1) % len(self._spans)
            self._slot = at + self._gap(lab)

    def _report(self, lab: Lab, learner: int, at: float) -> None:
        """The syncer hears at `at` that the learner ended a step."""
        for merge in self._merges:
            if merge.closed is not None or learner in merge.reports or not self._since[learner, merge.fragment]:
                continue
            merge.reports[learner] = at
            if len(merge.reports) == self.quorum:
                merge.at = self.awake(lab, at + self._grace(lab, at - merge.opened))
            if len(merge.reports) >= self.quorum and merge.reports.keys() >= set(self.connected(lab, at)):
                merge.at = min(merge.at, self.awake(lab, at))

    def _grace(self, lab: Lab, quorum: float) -> float:
        """Seconds that a merge waits for more reports after a quorum that took `quorum` seconds."""
        return self.gamma * max(0.0, self.tau * compute_seconds(lab) - (quorum + self._lasted))

    def _pull(self, lab: Lab, merge: Merge) -> None:
        """Close the merge, and ask those that reported for their fragments."""
        merge.closed = merge.at
        there = [learner for learner in merge.reports if learner in self.connected(lab, merge.at)]
        self._land(lab, there)
        size, begin = self._size(merge.fragment), max(merge.at + lab.setting.link.latency, self._inward)
        self._inward = self.move(lab, SYNCER, begin, size * len(there))
        arrived = {learner: self.move(lab, learner, begin, size) for learner in there}
        # A learner whose link takes longer than the syncer's is waited for as long as a merge may last.
        latest = self._inward + self.tau * compute_seconds(lab)
        lost = lab.random.random(lab.peers) < lab.setting.failing
        merge.members = [learner for learner in there if arrived[learner] <= latest and not lost[learner]]
        self.moved += size * len(there)
        if math.isinf(self._inward) or not merge.members:
            self._drop(merge)
            return
        merge.at = max(self._inward, *(arrived[learner] for learner in merge.members)) + lab.setting.link.latency
        span = self._spans[merge.fragment]
        rows = lab.x[merge.members, span]
        if self.bits == 4 and merge.fragment not in self._whole:
            base = self._received[merge.members, span]
            rows = base - e3m0(base - rows)
        merge.pulled = rows.clone()
        steps = torch.from_numpy(self._since[merge.members, merge.fragment]).float()
        merge.weights = steps / steps.sum().clamp_min(1.0)

    def _drop(self, merge: Merge) -> None:
        """Give the merge up. Its fragment is due again after all others."""
        self._merges.remove(merge)
        self._freed = merge.at
        self._inward = merge.at if math.isinf(self._inward) else self._inward

    def _step(self, lab: Lab, merge: Merge) -> None:
        """Merge what was pulled, make the outer step, and send the fragment to all."""
        assert merge.pulled is not None and merge.weights is not None
        span, number = self._spans[merge.fragment], merge.fragment
        drifts, merge.pulled = self.theta[span] - merge.pulled, None
        plain = self._warming or number in self._plain or number in self._whole
        radial = self.radial and not plain
        weights, pieces = merge.weights, self._pieces[number]
        delta = torch.cat([merged(drifts[:, at], weights, direct=direct or not radial) for at, direct in pieces])
        step = delta
        if not plain:
            self.v[span] = self.mu * self.v[span] + delta
            step = self.alpha * (delta + self.mu * self.v[span])
        if self.bits == 4 and number not in self._whole:
            step = e3m0(step[None])[0]
        self.theta[span] -= step
        self._plain.discard(number)
        self._send(lab, merge)
        self._whole.discard(number)

    def _send(self, lab: Lab, merge: Merge) -> None:
        """Broadcast the fragment. The copies for all learners share the syncer's link."""
        size, latency = self._size(merge.fragment), lab.setting.link.latency
        learners = list(self.connected(lab, merge.at))
        begin = max(merge.at, self._outward)
        tries = lab.random.geometric(1.0 - min(lab.setting.failing, 0.99), lab.peers)
        self._outward = self.move(lab, SYNCER, begin, size * float(tries[learners].sum()))
        values = self.theta[self._spans[merge.fragment]].clone()
        for learner in learners:
            at = max(self._outward, self.move(lab, learner, begin, size * float(tries[learner]))) + latency
            self._arrivals[learner].append(Arrival(at, merge.fragment, values))
            lab.received[learner] += size * float(tries[learner])
        merge.sent, merge.at = True, self._outward + latency

    def _size(self, fragment: int) -> float:
        """Bytes of a fragment as it travels."""
        count: int = self._spans[fragment].stop - self._spans[fragment].start
        return 4.0 * count if self.bits == 32 or fragment in self._whole else 0.5 * count + 2.0 * -(-count // BLOCK)

    def _land(self, lab: Lab, learners: Collection[int]) -> None:
        """Fragments that arrived by the end of these learners' last steps replace their own."""
        for learner in learners:
            coming = self._arrivals[learner]
            for arrival in [one for one in coming if one.at <= self._ended[learner]]:
                coming.remove(arrival)
                span = self._spans[arrival.fragment]
                lab.x[learner, span] = self.keep * lab.x[learner, span] + (1.0 - self.keep) * arrival.values
                self._received[learner, span] = arrival.values
                self._since[learner, arrival.fragment] = 0


def _numbers(lab: Lab, due: Counts | None) -> list[int]:
    return list(range(lab.peers)) if due is None else [int(number) for number in due]


def _pieces(span: slice, lab: Lab) -> list[Piece]:
    """The parts of tensors in this part of the vector."""
    ends = [0, *accumulate(math.prod(shape) for shape in lab.problem.shapes)]
    found = []
    for number, (begin, end) in enumerate(pairwise(ends)):
        first, last = max(begin, span.start), min(end, span.stop)
        if first < last:
            found.append(Piece(slice(first - span.start, last - span.start), number in lab.problem.embeddings))
    return found
