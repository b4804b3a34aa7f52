"""Routes messages and results of model transfers between the source, the bootstrap and the reunion of one peer.

A peer without a model fetches it by its bootstrap. A peer with one fetches another by its reunion.
"""

from __future__ import annotations

from gossipdp.protocol import jobs
from gossipdp.protocol.model import Model
from gossipdp.protocol.partition.reunion import Reunion
from gossipdp.protocol.transfer.bootstrap import Bootstrap
from gossipdp.protocol.transfer.source import Asking, Giving, Source
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import StateRequest

__all__ = ["TransferJob", "Transfers"]

TransferJob = (
    jobs.Freeze
    | jobs.HashPiece
    | jobs.Sample
    | jobs.CheckPiece
    | jobs.Adopt
    | jobs.Compare
    | jobs.Resync
    | jobs.Keep
    | jobs.Restore
)
"""jobs of both sides of a transfer"""


class Transfers:
    """Routes messages and results. The replica owns the three machines."""

    def __init__(self, source: Source, bootstrap: Bootstrap, reunion: Reunion) -> None:
        self._source, self._bootstrap, self._reunion = source, bootstrap, reunion

    def asked(self, message: Asking, source: bytes, model: Model | None, now: float, *, trusted: bool) -> None:
        """A peer asks for this peer's model, or for a sample of it.

        Args:
            model: None while this peer has none.
            trusted: the asking peer is not set aside.
        """
        self._source.receive(message, source, model if self._reunion.gives(message, source) else None, now)
        if isinstance(message, StateRequest):
            self._reunion.asked(source, now, trusted=trusted)

    def given(self, message: Giving, buffers: list[Buffer], source: bytes, now: float, *, ready: bool) -> None:
        """A peer sends a part of its model. ready: a model is here already."""
        if ready:
            self._reunion.follower.receive(message, buffers, source, now)
        else:
            self._bootstrap.receive(message, buffers, source, now)

    def job_done(self, job: TransferJob, result: object, model: Model | None, now: float) -> None:
        """The driver has carried out a job of a transfer. model: None while this peer has none."""
        follower = self._reunion.follower
        match job:
            case jobs.Freeze() if model is not None:
                self._source.frozen(job, job.typed(result), model)
            case jobs.HashPiece() if model is not None:
                self._source.hashed(job, job.typed(result), model)
            case jobs.Sample() if model is not None:
                self._source.sampled(job.typed(result), model)
            case jobs.CheckPiece() if model is not None:
                follower.checked(job, job.typed(result), now)
            case jobs.CheckPiece() | jobs.Adopt():
                self._bootstrap.adopted(job, job.typed(result), now)
            case jobs.Compare() if model is not None:
                follower.compared(job.typed(result), now)
            case jobs.Compare():
                self._bootstrap.compared(job.typed(result), now)
            case jobs.Resync():
                follower.resynced(job, job.typed(result), now)
            case jobs.Keep():
                follower.kept()
            case jobs.Restore():
                self._bootstrap.restored(job.typed(result), now)
