"""The figures of this host's peer in a few words, from answers to `status`. `gossipdp top` shows them too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gossipdp.runtime.observability.health import spoken
from peers.tables import quantity

__all__ = ["Traffic", "figures", "fitting"]

WINDOW: Final = 60.0
"""seconds over which traffic is taken: exchanges come in bursts, about one a round"""


class Traffic:
    """Bytes a second that a peer receives and sends, over the last minute of looks at it."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, status: Mapping[str, Any], now: float) -> float | None:
        """Take an answer to `status`, and return the rate; None at the first look at a daemon.

        Args:
            now: monotonic time in seconds.
        """
        total = (status.get("received_bytes") or 0) + (status.get("sent_bytes") or 0)
        if self._looks and total < self._looks[-1][1]:  # a daemon that was started again
            self._looks.clear()
        self._looks.append((now, total))
        while len(self._looks) > 2 and now - self._looks[1][0] >= WINDOW:
            self._looks.popleft()
        began, first = self._looks[0]
        return (total - first) / (now - began) if now > began else None


def figures(status: Mapping[str, Any], traffic: float | None) -> list[str]:
    """Members alive, round, speed, loss, agreement, last exchange and traffic, without those that are not known.

    Args:
        traffic: bytes a second, in and out.
    """
    members, exchanges = status.get("members") or {}, status.get("recent_exchanges") or ()
    parts = [
        f"{members.get('alive', 0)} alive" if isinstance(members, Mapping) else "",
        f"round {status.get('round')}",
        _part(_steps_per_second(status), lambda value: f"{quantity(value)} steps/s"),
        _part(status.get("loss"), lambda value: f"loss {value:.3f}"),
        _part(status.get("consensus_ratio"), lambda value: f"agreement {value:.1f}"),
        f"exchange {spoken(exchanges[0]['ago'])} ago" if exchanges else "",
        _part(traffic, lambda value: quantity(value, "B/s")),
    ]
    return [part for part in parts if part]


def fitting(parts: Sequence[str], between: str, room: int) -> str:
    """As many parts as fit into `room` characters, the first ones, with `between` between them."""
    told = parts[0][:room] if parts else ""
    for part in parts[1:]:
        if len(told) + len(between) + len(part) > room:
            break
        told += between + part
    return told


def _part(value: float | None, told: Callable[[float], str]) -> str:
    return "" if value is None else told(value)


def _steps_per_second(status: Mapping[str, Any]) -> float | None:
    """Own steps a second, from the samples that a step has had so far."""
    rate, steps, samples = (status.get(key) for key in ("samples_per_second", "steps", "samples"))
    return rate * steps / samples if rate is not None and steps and samples else None
