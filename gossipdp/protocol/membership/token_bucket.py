"""A token bucket: a limit on the bytes a second, on average. It may be overdrawn, as some messages cannot wait."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """A budget of bytes that flows in at a constant rate.

    Args:
        rate: bytes a second that flow in.
        most: bytes that it holds; it starts full. It goes down to -`most` at the lowest. A deeper debt, run up by
            messages that cannot wait, would silence this peer for long.
    """

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate, self.most = rate, most
        self._left, self._at = most, now

    def left(self, now: float) -> float:
        """Bytes left; negative when overdrawn."""
        if now > self._at:
            self._left = min(self._left + self.rate * (now - self._at), self.most)
            self._at = now
        return self._left

    def spend(self, amount: float, now: float) -> None:
        """Take `amount` bytes out."""
        self._left = max(self.left(now) - amount, -self.most)

    def ready(self, now: float) -> float:
        """When the bucket is no longer overdrawn; `now` if it is not."""
        return now + max(0.0, -self.left(now)) / self.rate
