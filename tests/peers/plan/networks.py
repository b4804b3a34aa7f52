"""Networks and a clock of plain arithmetic for the tests of plans. Not a test."""

from typing import Any

from peers.plan.clock import Round, Way
from peers.plan.network import Network, network_of, read

FLAGS = {"parameters": "100M", "step_time": "1", "hosts": "8", "bandwidth": "1Gbit", "latency": "1ms"}


def network(**texts: str) -> Network:
    """The network of these flags; others are as in `FLAGS`."""
    return network_of({name: read(name, text) for name, text in (FLAGS | texts).items()})


def slow_links(exchange: float, collective: float, ddp: float) -> Any:
    """A clock: seconds of an exchange, of a round's collective, and of DDP's all-reduce beyond what the step hides."""

    def clock(there: Network, way: Way, every: int, bits: int) -> Round:
        waits = {"pairwise": 0.0, "ddp": ddp, "diloco-4bit-overlapped": max(0.0, collective - every)}
        seconds = every * there.step_time + waits.get(way.method, collective)
        steps = tuple(every * speed if way.own_pace else float(every) for speed in there.speeds)
        return Round(seconds, steps, 1e6, exchange if way.method == "pairwise" else 0.0)

    return clock
