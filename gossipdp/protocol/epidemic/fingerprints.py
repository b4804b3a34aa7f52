"""Whether replicas were equal at the end of an epoch, although they have applied more since.

Additions to an anchor are integers, and a fingerprint is linear in them (see `jobs.Fingerprint`). The fingerprint of
the anchor now, minus those of the increments of later epochs, is that of the anchor with everything up to this epoch.
Peers that settled an epoch with the same set must get the same number.

A peer does not know the fingerprints of increments inside a state that it took over. It skips the epochs whose later
increments may be among them. No vector is touched here.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.standing import Standing
from gossipdp.protocol.events import EpochFingerprinted
from gossipdp.protocol.outputs import Outputs

__all__ = ["Fingerprints"]

MODULUS: Final = 1 << 64


class Fingerprints:
    """The fingerprints of one peer's anchor at the end of epochs.

    Args:
        exclusive: queue of operations on the whole state.
    """

    def __init__(self, standing: Standing, exclusive: Exclusive, outputs: Outputs) -> None:
        self._standing, self._exclusive, self._outputs = standing, exclusive, outputs
        self._chunks = 0
        self._epoch = self._sum = 0
        """the epoch whose fingerprint is being taken, and the sum over its chunks so far"""
        self._added: Counter[int] = Counter()
        """by epoch, the sum of the fingerprints of its increments"""
        self._known_after = -1

    def begin(self, epoch: int) -> None:
        """The state is a new one, with increments up to `epoch` at the latest."""
        self._added.clear()
        self._known_after = epoch

    def added(self, epoch: int, fingerprint: int) -> None:
        """An increment of this epoch was applied or taken back."""
        self._added[epoch] += fingerprint

    def ready(self, chunks: int) -> None:
        """The model is here."""
        self._chunks = chunks

    def take(self, epoch: int) -> None:
        """`epoch` has settled: fingerprint its end when no other operation is under way."""
        self._exclusive.ask(partial(self._begin, epoch))

    def _begin(self, epoch: int) -> bool:
        # A lone peer's anchor is not in integers, and a state that is being replaced says nothing.
        if self._standing.held or self._standing.alone or epoch < self._known_after:
            return False
        self._epoch, self._sum = epoch, 0
        self._outputs.ask(jobs.Fingerprint(0))
        return True

    def job_done(self, chunk: int, result: jobs.Fingerprinted) -> None:
        """The result of a Fingerprint job."""
        self._sum += result.value
        if chunk + 1 < self._chunks:
            return self._outputs.ask(jobs.Fingerprint(chunk + 1))
        self._added = Counter({later: sum_ for later, sum_ in self._added.items() if later > self._epoch})
        at_end = (self._sum - sum(self._added.values())) % MODULUS
        self._outputs.emit(EpochFingerprinted(self._epoch, at_end))
        self._exclusive.over()
