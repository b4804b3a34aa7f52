"""The log's lines on how the peer is doing."""

import logging
from dataclasses import replace

from gossipdp.runtime.observability.health import Signs, judge
from gossipdp.runtime.observability.status_lines import Line, StatusLines, Totals
from tests.runtime.observability.test_health import HEALTHY


class Told:
    """Looks twice a second, and keeps what is told with its time."""

    def __init__(self) -> None:
        self.lines, self.now, self.totals = StatusLines(0.0), 0.0, Totals(0, 0, 0.5, 0, 0)

    def during(self, seconds: float, signs: Signs) -> list[tuple[float, Line]]:
        said = []
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            if (line := self.lines.look(signs, judge(signs), self.totals, self.now)) is not None:
                said.append((self.now, line))
        return said


def test_training_has_a_line_a_minute_with_the_bytes_since_the_last() -> None:
    told = Told()
    told.during(6.0, HEALTHY)
    told.totals = Totals(31, 930, 2.5, 3_000_000, 1_500_000)
    [(first, line)] = told.during(62.0, HEALTHY)
    assert first == 65.5 and line == Line(
        logging.INFO,
        "round 31, step 930, loss 2.5000, last exchange 12 s ago with b, agreement normal, training waits 0.3 %,"
        " 3.0 MB in, 1.5 MB out",
    )
    [(second, line)] = told.during(60.0, HEALTHY)
    assert second == first + 60.0 and line.text.endswith("0.0 MB in, 0.0 MB out")


def test_a_wait_is_told_after_five_seconds_and_then_each_minute() -> None:
    told, joining = Told(), Signs(joining=True)
    said = told.during(130.0, joining)
    assert [now for now, _ in said] == [5.5, 65.5, 125.5]
    assert {line for _, line in said} == {Line(logging.INFO, "joining: no member has answered yet")}


def test_each_change_of_the_verdict_is_told__unless_it_does_not_last() -> None:
    told, degraded = Told(), replace(HEALTHY, quiet=240.0)
    told.during(6.0, HEALTHY)
    assert told.during(3.0, degraded) == [] and told.during(6.0, HEALTHY) == []
    [(_, line)] = told.during(6.0, degraded)
    assert line == Line(logging.WARNING, "degraded: no exchange for 4 min")
    [(_, line)] = told.during(60.0, degraded)
    assert line.text.startswith("round 0, ") and line.text.endswith("; degraded: no exchange for 4 min")
    [(_, line)] = told.during(6.0, HEALTHY)
    assert line.level == logging.INFO and "degraded" not in line.text
