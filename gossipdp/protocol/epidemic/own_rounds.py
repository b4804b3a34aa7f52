"""The rounds of this peer: each becomes one increment, or a plain step while the peer is alone.

Implements `rounds.Steps`. The strategy publishes a finished increment. No vector is touched here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic.broadcast import Broadcast
from gossipdp.protocol.epidemic.config import EpidemicConfig
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.shares import Shares
from gossipdp.protocol.epidemic.standing import Standing
from gossipdp.protocol.epidemic.terms import Terms
from gossipdp.protocol.model import Outer
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["OwnIncrement", "OwnRounds"]


@dataclass
class OwnIncrement:
    """The increment of a round, while its chunks are made."""

    weight: float
    clock: int
    samples: int
    payloads: list[Buffer] = field(default_factory=list)
    """one for each chunk"""
    lengths: list[float] = field(default_factory=list)
    """movements of the chunks that move"""
    share: float = 1.0
    """least share of the residual that the compressor was offered"""
    fingerprint: int = 0
    """of the movement of the anchor"""
    complete: bool = False

    def add(self, result: jobs.Published) -> None:
        """Add the payload of the next chunk."""
        self.payloads.append(result.payload)
        if memoryview(result.payload).nbytes:
            self.lengths.append(result.movement)
        self.share = min(self.share, result.share)
        self.fingerprint += result.fingerprint

    def finish(self) -> None:
        """All chunks are made."""
        self.complete = True


class OwnRounds:
    """The rounds of one peer.

    Args:
        exclusive: queue of operations on the whole state.
        terms: the terms of an increment that is cut at this clock.
        publishers: number of peers that publish, this one included.
        refound: called when this peer is alone again, before it steps.
    """

    def __init__(
        self,
        config: EpidemicConfig,
        standing: Standing,
        broadcast: Broadcast,
        exclusive: Exclusive,
        shares: Shares,
        random: Random,
        *,
        terms: Callable[[int], Terms],
        publishers: Callable[[], int],
        refound: Callable[[], None],
    ) -> None:
        self._config, self._standing, self._broadcast, self._exclusive = config, standing, broadcast, exclusive
        self._shares, self._random = shares, random
        self._terms, self._publishers, self._refound = terms, publishers, refound
        self.increment: OwnIncrement | None = None
        """the increment under way"""
        self._lone = False
        """the round under way is a plain step"""
        self._stopped = False
        self._samples = self._steps = 0
        """samples and own steps since the last round that counted"""
        self.last_at = 0
        """the network's clock at the last round that counted"""
        self.since = self.before_since = 0
        """the network's clock at the round before that, and at the one before it"""

    def submitted(self, samples: int, steps: int) -> None:
        """A good snapshot has come, with the samples and steps since the one before."""
        self._samples += samples
        self._steps += steps

    def restart(self) -> None:
        """The state is a new one: steps count from now on."""
        self.last_at = self._standing.clock

    def stop(self) -> None:
        """Publish no more."""
        self._stopped = True

    # -- the outer step: see `rounds.Steps` --------------------------------------------------------------------

    def begin(self, run: Callable[[Outer | None], None]) -> None:
        """Begin a round when no other operation is under way."""
        self._exclusive.ask(partial(self._begin, run))

    def _begin(self, run: Callable[[Outer | None], None]) -> bool:
        standing = self._standing
        if not standing.held and standing.alone:
            if standing.shared:
                self._refound()
            self._lone = True
            run(Outer(1.0, 0.0))
        elif standing.held or self._stopped or not self._broadcast.takes(standing.clock):
            run(None)
            return False
        else:
            steps = max(standing.clock - self.last_at, self._steps)
            weight = self._shares.of(self._samples, steps, self._publishers())
            self.increment = OwnIncrement(weight, standing.clock, self._samples)
            run(Outer(self._terms(standing.clock).lr, 0.0))
        self.before_since, self.since = self.since, self.last_at
        self._samples, self._steps, self.last_at = 0, 0, standing.clock
        return True

    def job(self, chunk: int, applied: int) -> jobs.OuterStep | jobs.Publish:
        """The job on `chunk`. `applied` is the last slot inside the snapshot."""
        if self._lone:
            return jobs.OuterStep(chunk, 1.0, 0.0, applied)
        assert self.increment is not None
        beta, seed = self._config.beta, self._random.getrandbits(63)
        compressor, lr = self._terms(self.increment.clock)
        lead = bool(self._config.rule)
        return jobs.Publish(chunk, compressor, lr, beta, self.increment.weight, applied, seed, lead=lead)

    def published(self, chunk: int, result: jobs.Published) -> None:
        """The increment of `chunk` is made."""
        assert self.increment is not None and chunk == len(self.increment.payloads)
        self.increment.add(result)

    def end(self) -> None:
        """All chunks are stepped. The strategy publishes an increment at the end of this input."""
        if self.increment is not None:
            self.increment.finish()
            return
        self._lone = False
        self._exclusive.over()

    def take(self) -> OwnIncrement | None:
        """Remove and return the increment, once it is complete. The caller ends the operation."""
        if self.increment is None or not self.increment.complete:
            return None
        made, self.increment = self.increment, None
        return made
