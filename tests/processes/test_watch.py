"""The watch of a chaos run notices each broken invariant, with a host that only pretends."""

import math
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from simulations.processes.namespaces import chaos
from simulations.processes.namespaces.processes import Starvation
from simulations.processes.namespaces.watch import PAUSE, Watch

STATUS: dict[str, Any] = {
    "incarnation": 1, "round": 5, "clock": 100, "steps": 90, "samples": 90, "chunks_in_doubt": 0,
    "exchanged_bytes": 1000, "sent_bytes": 2000, "received_bytes": 2000, "exchanges": {"done": 4, "lost": 1},
    "metrics": "http://127.0.0.1:9/metrics",
}  # fmt: skip


class Process:
    def __init__(self, pid: int) -> None:
        self.pid, self.memory, self.descriptors = pid, 100 << 20, 30
        self.code: int | None = None


class Pretender:
    """The part of a `processes.Host` that a watch uses."""

    name = "h0"

    def __init__(self) -> None:
        self.daemon, self.training = Process(1), Process(2)
        self.said = dict(STATUS)
        self.rows = [{"id": "ab", "name": "h1", "incarnation": 3, "steps": 50}]
        self.diary = [{"pid": 2, "at": at / 10, "delayed": 0.0, "mean": 1.0, "steps": at} for at in range(100)]

    def status(self) -> dict[str, Any]:
        return dict(self.said)

    def members(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def notes(self, event: str = "", since: float = 0.0, before: float = math.inf) -> list[dict[str, Any]]:
        return [note for note in self.diary if since <= note["at"] <= before]


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def host() -> Pretender:
    return Pretender()


@pytest.fixture
def watch(host: Pretender, seen: list[str]) -> Watch:
    watch = Watch(host, seen.append)  # type: ignore[arg-type]
    watch.look()
    assert not seen
    return watch


@pytest.mark.parametrize("key", ["round", "clock", "steps", "samples", "chunks_in_doubt", "sent_bytes"])
def test_number_that_may_only_grow__blamed_when_it_falls(
    key: str, watch: Watch, host: Pretender, seen: list[str]
) -> None:
    host.said[key] += 1
    watch.look()
    assert not seen
    host.said[key] -= 1
    watch.look()
    assert len(seen) == 1 and seen[0].startswith(f"h0: {key} fell")


def test_exchanges_and_members__blamed_when_they_fall(watch: Watch, host: Pretender, seen: list[str]) -> None:
    host.said["exchanges"] = {"done": 3, "lost": 1}
    watch.look()
    host.rows[0]["steps"] = 49
    watch.look()
    host.rows[0] |= {"steps": 60, "incarnation": 2}
    watch.look()
    assert ["done fell" in seen[0], "said of h1" in seen[1], "said of h1" in seen[2]] == [True] * 3


def test_next_life__begins_anew_but_with_a_larger_incarnation(watch: Watch, host: Pretender, seen: list[str]) -> None:
    host.daemon = Process(7)
    host.said |= {"incarnation": 2, "steps": 0, "exchanges": {}}
    watch.look()
    assert not seen and len(watch.lives) == 2
    assert watch.exchanges() == {"done": 4, "lost": 1}, "of both lives"
    host.daemon = Process(8)
    watch.look()
    assert seen == ["h0: incarnation 2 after 2"]


def test_pause__of_each_process_while_it_lived_and_was_not_stopped(watch: Watch, host: Pretender) -> None:
    assert watch.longest_pause(9.9) == pytest.approx(0.1)
    # Alive and silent until now; killed long ago; stopped meanwhile.
    assert watch.longest_pause(9.9 + PAUSE) == pytest.approx(PAUSE)
    watch.asleep.append((2, 10.0, 12.0))
    assert watch.longest_pause(9.9 + PAUSE) == pytest.approx(PAUSE - 2.0)
    watch.asleep.clear()
    host.diary.append({"pid": 2, "at": 11.9, "delayed": 1.5, "mean": 1.0, "steps": 100})
    assert watch.longest_pause(11.9) == pytest.approx(0.5), "a machine without a free CPU pauses it, too"
    del host.diary[-1]
    watch.deaths.append((2, 10.0))
    host.training.code = -9
    assert watch.longest_pause(99.0) == pytest.approx(0.1)


def test_growth__of_the_present_life_after_its_warm_up(watch: Watch, host: Pretender) -> None:
    assert math.isnan(watch.growth(0.0)[0])
    life = watch.lives[-1]
    life.memory = [(life.began + n, (100 if n < 10 else 150 + n // 30) << 20, 30 + n // 30) for n in range(100)]
    growth, descriptors = watch.growth(10.0)
    assert growth == pytest.approx(152 / 150) and descriptors == 2, "the middles of the first and the last quarter"


@pytest.mark.parametrize(
    ("looks", "measured", "grown", "blamed"),
    [(100, 60.0, 1.02, ""), (100, 60.0, 1.2, "factor 1.2"), (7, 5.0, 1.0, ""), (7, 60.0, 1.0, "factor nan")],
)
def test_grew__blamed_for_growth_and_for_a_long_life_that_was_not_looked_at(
    looks: int, measured: float, grown: float, blamed: str, watch: Watch
) -> None:
    life = watch.lives[-1]
    life.memory = [
        (life.began + 3.0 + measured * n / (looks - 1), int((100 if n < looks / 2 else 100 * grown) * 1000), 30)
        for n in range(looks)
    ]
    told = watch.grew(3.0, 1.1)
    assert (blamed in told and told) if blamed else told == ""


def test_pace__steps_a_second_of_one_process(watch: Watch, host: Pretender) -> None:
    assert watch.pace(2.0, 5.0) == pytest.approx(10.0)
    host.diary += [{"pid": 3, "at": 10.0, "mean": 1.0, "steps": 0}]
    assert math.isnan(watch.pace(5.0, 11.0)), "another process"
    assert math.isnan(watch.pace(20.0, 30.0)), "no notes"


def test_starvation__stops_and_lets_go_until_it_is_ended() -> None:
    said: list[int] = []
    enough = threading.Event()

    class Told(Process):
        def signal(self, number: int) -> None:
            said.append(number)
            if len(said) >= 4:
                enough.set()

    starvation = Starvation([Told(1)])  # type: ignore[list-item]
    enough.wait()
    starvation.end()
    assert said[:4] == [signal.SIGSTOP, signal.SIGCONT] * 2 and said[-1] == signal.SIGCONT


class Metrics(BaseHTTPRequestHandler):
    text = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        """Suppress output to standard error."""


@pytest.fixture
def metrics(host: Pretender) -> Iterator[type[Metrics]]:
    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        host.said["metrics"] = f"http://127.0.0.1:{server.server_port}/metrics"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Metrics
        finally:
            server.shutdown()
            thread.join()


def test_metrics__every_total_only_grows(
    metrics: type[Metrics], watch: Watch, host: Pretender, seen: list[str]
) -> None:
    metrics.text = 'gossipdp_steps_total 5.0\ngossipdp_drops_total{reason="x"} 2.0\ngossipdp_links 3.0\n'
    watch.look(metrics=True)
    metrics.text = 'gossipdp_steps_total 6.0\ngossipdp_drops_total{reason="x"} 1.0\ngossipdp_links 1.0\n'
    watch.look(metrics=True)
    assert seen == ['h0: gossipdp_drops_total{reason="x"} fell from 2 to 1']
    metrics.text = ""
    watch.look(metrics=True)
    assert "tells no totals" in seen[-1]


def test_metrics__that_do_not_answer_are_blamed_while_the_daemon_lives(
    watch: Watch, host: Pretender, seen: list[str]
) -> None:
    watch.look(metrics=True)
    assert len(seen) == 1 and "does not answer" in seen[0]
    host.daemon.code = -9
    watch.look(metrics=True)
    assert len(seen) == 1


@pytest.mark.parametrize("words", [["--kinds", "flood"], ["--delay", "fast"]])
def test_command_line__what_it_does_not_know_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chaos.main(words)
    assert ended.value.code == 2 and words[1] in capsys.readouterr().err
