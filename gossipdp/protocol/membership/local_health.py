"""Lifeguard's local health: the slower this peer is, the longer its probes wait (Dadgar et al. 2018, section IV.A)."""

from __future__ import annotations

__all__ = ["LocalHealth", "probe_times"]


def probe_times(
    interval: float, timeout: float, multiplier: int, rtt: float | None, awareness_max: int
) -> tuple[float, float]:
    """Times of one probe, in seconds from its start: (indirect probes, verdict).

    Both grow with the local health multiplier. A slow path gets max(timeout, 3 rtt), up to half the longest period. The
    indirect probes get as long as the direct one.
    """
    longest = interval * awareness_max
    direct = max(timeout * multiplier, min(3.0 * (rtt or 0.0), longest / 2))
    return direct, max(interval * multiplier, 2.0 * direct)


class LocalHealth:
    """Lifeguard's local health multiplier (section IV.A): the slower this peer is, the longer it waits for answers.

    `multiplier` is 1 for a healthy peer and at most `maximum`; it scales the probe's interval and timeout.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.multiplier = 1

    def worse(self, by: int = 1) -> None:
        """An ack or nack did not come, this peer refuted a suspicion of itself, or a timer ran late."""
        self.multiplier = min(self.multiplier + by, self._maximum)

    def better(self) -> None:
        """A probe was answered in time."""
        self.multiplier = max(self.multiplier - 1, 1)
