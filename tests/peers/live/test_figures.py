"""The figures of a peer in one line."""

from __future__ import annotations

from typing import Any

import pytest

from peers.live.figures import WINDOW, Traffic, figures, fitting
from peers.live.process import text

STATUS: dict[str, Any] = {
    "verdict": {"state": "healthy", "text": "healthy: 3 of 3 peers"}, "members": {"alive": 3}, "round": 412,
    "samples_per_second": 800.0, "steps": 1000, "samples": 32_000, "loss": 2.43104, "consensus_ratio": 1.62,
    "recent_exchanges": [{"ago": 4.2}, {"ago": 31.0}], "received_bytes": 1000, "sent_bytes": 500,
}  # fmt: skip
WHOLE = "healthy · 3 alive · round 412 · 25 steps/s · loss 2.431 · agreement 1.6 · exchange 4 s ago · 1.2MB/s"


def test_all_figures__and_only_those_that_are_known() -> None:
    assert text(STATUS, 1.2e6, 120, colours=False) == WHOLE
    new = {"verdict": {"state": "joining"}, "members": {"alive": 1}, "round": 0, "samples": 0, "steps": 0}
    assert text(new, None, 120, colours=False) == "joining · 1 alive · round 0"
    assert text({}, None, 120, colours=False) == "no answer from the daemon"
    assert figures({**STATUS, "samples_per_second": None}, None) == [
        "3 alive", "round 412", "loss 2.431", "agreement 1.6", "exchange 4 s ago",
    ]  # fmt: skip


@pytest.mark.parametrize("width", range(1, 110))
def test_line_is_never_wider_than_the_terminal_and_has_whole_figures(width: int) -> None:
    told = text(STATUS, 1.2e6, width, colours=False)
    assert len(told) <= width and WHOLE.startswith(told)
    assert width < len("healthy") or WHOLE[len(told) :].startswith(" · ") or told == WHOLE
    assert width != 79 or told.endswith("agreement 1.6")


def test_colours_are_of_the_verdict_alone() -> None:
    assert text(STATUS, 1.2e6, 120, colours=True) == WHOLE.replace("healthy", "\x1b[32m\x1b[1mhealthy\x1b[0m")


def test_parts_that_fit() -> None:
    assert (
        fitting([], ", ", 9) == "" and fitting(["abc"], ", ", 2) == "ab" and fitting(["a", "bc", "d"], ", ", 4) == "a"
    )


def test_traffic_of_the_last_minute__and_from_anew_after_a_restart_of_the_daemon() -> None:
    def status(total: int) -> dict[str, int]:
        return {"received_bytes": total, "sent_bytes": total}

    traffic = Traffic()
    assert traffic.look(status(1000), 10.0) is None
    assert traffic.look(status(2000), 12.0) == 1000.0
    for second in range(1, 301):
        rate = traffic.look(status(2000 + 50 * second), 12.0 + second)
    assert rate == pytest.approx(100.0)
    assert traffic.look(status(2000 + 50 * 300), 12.0 + 300 + WINDOW) == 0.0
    assert traffic.look(status(10), 500.0) is None
    assert traffic.look({}, 501.0) is None
