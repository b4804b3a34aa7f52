"""So many bytes a second and no more, on average: a token bucket that may be overdrawn by what cannot wait.

Arithmetic alone; what is paid from it, and what waits for it, is decided elsewhere.
"""

from __future__ import annotations

__all__ = ["Budget"]


class Budget:
    """Fills at `rate` bytes a second up to `most`, and starts full. Debts end at -`most`: beyond it nothing counts, or
    what nobody could put off would silence this peer for long."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate, self.most = rate, most
        self._left, self._at = most, now

    def left(self, now: float) -> float:
        """Bytes; negative when overdrawn."""
        if now > self._at:
            self._left = min(self._left + self.rate * (now - self._at), self.most)
            self._at = now
        return self._left

    def spend(self, amount: float, now: float) -> None:
        self._left = max(self.left(now) - amount, -self.most)

    def ready(self, now: float) -> float:
        """When nothing is owed any more; `now` if nothing is."""
        return now + max(0.0, -self.left(now)) / self.rate
