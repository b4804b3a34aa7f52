"""The base class of the algorithms: it runs the jobs that need nothing but the ledger.

A subclass (`Pairwise`, `Epidemic`) answers its own jobs first and passes the rest on. Jobs on one chunk run in order.
Several threads may run jobs on different chunks at once. A job that names no chunk, or shares state with other chunks,
runs alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from gossipdp.algorithms.ledger import Keep, Ledger, in_memory, state_hash
from gossipdp.codecs import moments
from gossipdp.protocol import jobs

__all__ = ["Algorithm"]

Result = TypeVar("Result")


class Algorithm(ABC):
    """Runs jobs on the vectors of one peer.

    Args:
        keep: called with what stays for longer than a job: copies for joiners, moments, what undoes a re-sync.
    """

    ledger: Ledger

    def __init__(self, keep: Keep = in_memory) -> None:
        self._keep = keep

    def run(self, job: jobs.Job[Result]) -> Result:
        """Run one job.

        Returns:
            What the job's class names. A fault of the partner is part of the result.

        Raises:
            TypeError: no algorithm runs this job.
        """
        return job.typed(self._execute(job))

    def _execute(self, job: jobs.Job[object]) -> object:
        match job:
            case jobs.Check(chunk):
                return jobs.Checked(self.ledger.check(chunk))
            case jobs.OuterStep(chunk, lr, momentum, applied):
                return self._outer_step(chunk, lr, momentum, applied)
            case jobs.Seal():
                return self.ledger.seal()
            case jobs.Release(slot):
                self.ledger.release(slot)
                return None
            case jobs.Found(chunk):
                return jobs.Checked(self.ledger.found(chunk))
            case jobs.Attach(chunk):
                self.ledger.attach(chunk)
                return None
            case jobs.Freeze(chunk):
                return self.ledger.freeze(chunk)
            case jobs.HashPiece(_, payload):
                return jobs.Frozen(payload, state_hash(payload))
            case jobs.CheckPiece(_, payload, digest):
                return jobs.Checked(state_hash(payload) == digest)
            case jobs.Adopt(chunk, payload, digest):
                return self._adopted(chunk, self.ledger.adopt(chunk, payload, digest))
            case jobs.Resync(chunk, payload, digest):
                return self._adopted(chunk, self.ledger.resync(chunk, payload, digest))
            case jobs.Conclude(chunk, back):
                self.ledger.conclude(chunk, back=back)
                return None
            case jobs.Sample(starts):
                return self._sample(starts)
            case jobs.Compare(runs, size, payload):
                return self.ledger.compare(runs, size, payload)
            case jobs.CheckMoments(_, size, payload, digest):
                sound = moments.digest(payload) == digest and moments.check(payload, size)
                return jobs.Frozen(self._keep(payload), digest) if sound else None
            case jobs.Allocate(size, trainable, chunk_parameters):
                self.allocate(size, trainable, chunk_parameters)
                return None
        raise TypeError(f"no such job: {job!r}")

    @abstractmethod
    def allocate(self, size: int, trainable: int, chunk_parameters: int) -> None:
        """Make room for a model and drop the one before. Arguments as of `Ledger`."""

    @abstractmethod
    def _outer_step(self, chunk: int, lr: float, momentum: float, applied: int) -> jobs.Stepped:
        """Take the ledger's outer step, and learn from its length."""

    @abstractmethod
    def _adopted(self, chunk: int, taken: bool) -> jobs.Checked:
        """If `taken`, `chunk` now holds the state of another peer: forget what was learnt about the old one."""

    @abstractmethod
    def _sample(self, starts: tuple[int, ...]) -> jobs.Sampled:
        """Values of the anchor, its usual distance to other anchors, and its usual movement in a round."""
