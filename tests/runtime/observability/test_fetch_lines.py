"""What a daemon says of a fetch that lasts."""

from gossipdp.protocol import events
from gossipdp.protocol.transfer.arrived import Origin
from gossipdp.runtime.observability.fetch_lines import FetchLines

SOURCE = b"s" * 32
PARAMETERS = 10**9


def said(*steps: tuple[float, events.Event]) -> list[str]:
    """The lines after these events, each with its time."""
    lines: list[str] = []
    clock = [0.0]
    fetches = FetchLines(lines.append, lambda: clock[0])
    for clock[0], event in steps:
        fetches.observe(event, PARAMETERS)
    return lines


def model(chunks: int) -> events.Event:
    return events.TransferProgress(SOURCE, chunks, 1000)


def test_model_that_comes_within_five_seconds_has_no_line() -> None:
    assert said((0.0, model(1)), (4.9, model(999)), (5.1, model(1000))) == []


def test_lines_tell_amount_rate_and_time_left() -> None:
    steps = [(float(second), model(1 + 20 * second)) for second in range(40)]
    assert said(*steps) == [
        "fetching the model: 0.2 of 2.0 GB, 40 MB/s, 45 s left",
        "fetching the model: 1.4 of 2.0 GB, 40 MB/s, 15 s left",
    ]


def test_moments_and_a_later_fetch_are_told_by_themselves() -> None:
    lines = said(
        (0.0, model(1)),
        (5.0, model(501)),
        (6.0, events.StateReady(Origin.RECEIVED, 7)),
        (7.0, events.MomentsProgress(SOURCE, 1, 10)),
        (12.0, events.MomentsProgress(SOURCE, 6, 10)),
        (20.0, model(1)),
        (25.0, model(101)),
    )
    assert [line.split(":")[0] for line in lines] == [
        "fetching the model",
        "fetching the optimizer's moments",
        "fetching the model",
    ]
