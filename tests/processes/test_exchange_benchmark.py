"""The benchmark of an exchange over emulated links: the frames of its wire, a run, and the page."""

import os
from pathlib import Path

import pytest

from simulations.processes.benchmarks import exchange


def test_few_chunks_stand_for_all__the_wire_sends_frames_of_the_same_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "DIFFERENT", 3)
    # twelve chunks of 8,192 and the rest
    (all_of, whole), (few, sent) = (exchange.case_of(100_000, all_chunks) for all_chunks in (True, False))
    assert (len(all_of.own), len(few.own), len(sent)) == (100_000, 2 * 8192 + 100_000 % 8192, 13)
    lengths = [[[memoryview(frame).nbytes for frame in frames] for frames in each] for each in (whole, sent)]
    assert lengths[0] == lengths[1]


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.needs("namespaces")
def test_exchange_over_a_cable__is_timed_against_its_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BURST", "16kb")
    page = tmp_path / "exchange.md"
    words = ["--parameters", "100000", "--runs", "1", "--link", "1mbit", "--page", str(page)]
    assert exchange.main(words) == 0
    (row,) = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| 1mbit")]
    # 51 kB each way at 125 kB/s, less what two buckets pass at once: neither is faster than its link
    assert row[1] == "1" and float(row[3]) > 0.15 < float(row[4])
    assert "Mark:" not in page.read_text()


@pytest.mark.parametrize(("ratio", "said"), [(1.2, "reached"), (1.4, "missed")])
def test_page_says_whether_the_mark_was_reached(ratio: float, said: str) -> None:
    row = {
        "parameters": 1_000_000,
        "link": exchange.MARKED,
        "workers": os.cpu_count(),
        "window": 8,
        "runs": 3,
        "exchange_ms": 1000.0 * ratio,
        "wire_ms": 1000.0,
        "ratio": ratio,
        "cpu_ms": {"vectors": 300.0, "wire": 200.0, "python": 100.0},
        "share_of_a_core": 0.4,
        "machine": "x86_64",
        "cores": 2,
        "mark": exchange.MARK,
        "reached": ratio <= exchange.MARK,
    }
    text = exchange.page([row], "the command", "abc")
    figures = f"{ratio:.2f} | 1.00 | {ratio:.2f} | 0.30 | 0.20 | 0.10 | 0.60 | 0.40 |"
    assert f"| {exchange.MARKED} | {os.cpu_count()} | 8 | {figures}\n" in text
    assert f"it was {said}." in text and "    the command\n" in text and "commit abc" in text
