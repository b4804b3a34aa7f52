"""Lines about work that lasts: how much is done, the rate, and the time left."""

from gossipdp.runtime.progress import Progress


def test_lines_come_after_five_seconds_and_every_half_minute__with_rate_and_time_left() -> None:
    now, lines = 100.0, list[str]()
    progress = Progress("reading checkpoint-00000003", 8_000_000_000, lines.append, lambda: now)
    for _ in range(80):  # 100 MB a second
        now += 1.0
        progress.advance(100_000_000)
    assert lines == [
        "reading checkpoint-00000003: 0.5 of 8.0 GB, 100 MB/s, 75 s left",
        "reading checkpoint-00000003: 3.5 of 8.0 GB, 100 MB/s, 45 s left",
        "reading checkpoint-00000003: 6.5 of 8.0 GB, 100 MB/s, 15 s left",
    ]


def test_short_work_and_finished_work_say_nothing() -> None:
    now, lines = 0.0, list[str]()
    progress = Progress("writing a checkpoint", 10, lines.append, lambda: now)
    now = 4.9
    progress.advance(5)
    now = 60.0
    progress.advance(5)
    assert lines == []
