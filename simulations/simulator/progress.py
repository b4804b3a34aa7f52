"""Progress of a cluster: rounds and exchanges of each peer, compared with what training makes due (I7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gossipdp.protocol.events import Event, ExchangeEnded, Pace, RoundDone
from simulations.simulator.host import Host

__all__ = ["Progress"]

LONGEST_ROUND = 6.0
"""seconds without a round at rest"""


class Progress:
    """Times of rounds and exchanges.

    Args:
        step_time: usual seconds per training step.
        most_every: largest H that a daemon may tell its training process.
    """

    def __init__(self, *, step_time: float, most_every: int) -> None:
        self._step_time, self._most_every = step_time, most_every
        self._rounds_at: defaultdict[int, list[float]] = defaultdict(list)
        """host -> times of its rounds"""
        self._paces: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        """host -> (time, H) of each change of H"""
        self._exchanges_at: list[float] = []
        """times at which a side ended an exchange that mixed something"""

    def heard(self, host: Host, event: Event, now: float) -> None:
        match event:
            case RoundDone():
                self._rounds_at[host.index].append(now)
            case Pace(every):
                assert every <= self._most_every, f"{host.name}: H {every}"  # `due` relies on it
                self._paces[host.index].append((now, every))
            case ExchangeEnded(chunks=chunks) if chunks:
                self._exchanges_at.append(now)

    def due(self, host: Host, since: float, now: float) -> float:
        """Rounds that the host's training makes due since then, at the H that its daemon told it."""
        due, end = 0.0, now
        for begin, every in reversed(self._paces[host.index]):
            due += max(0.0, end - max(begin, since)) / (every * self._step_time * host.step_slowness)
            end = min(end, begin)
        return due

    def check_last_round(self, host: Host, now: float) -> None:
        """Check that the host's last round is not long ago."""
        quiet = now - (self._rounds_at[host.index] or [0.0])[-1]
        assert quiet < LONGEST_ROUND, f"I7 {host.name}: no round for {quiet:.1f} s"

    def check_rounds(self, host: Host, since: float, now: float) -> int:
        """Check that the host made at least half of the rounds that were due. Return their number."""
        due = self.due(host, since, now)
        rounds = sum(at > since for at in self._rounds_at[host.index])
        assert rounds >= due / 2 - 1, f"I7 {host.name}: {rounds} rounds in {now - since:.1f} s, of {due:.1f}"
        return rounds

    def check_exchanges(self, made: Mapping[int, int], least: float, since: float, now: float) -> None:
        """Check that at least `least` sides of exchanges ended. `made`: rounds by host."""
        ended = sum(at > since for at in self._exchanges_at)
        rounds = sum(made.values())
        assert ended >= least, f"I7: {ended} exchanges ended in {now - since:.1f} s of {rounds} rounds"
