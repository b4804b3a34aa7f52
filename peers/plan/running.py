"""Figures of a network that runs, from the answers of this host's daemon to `status` and `members`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gossipdp.protocol.rounds.speed import SAME
from peers.control import ask
from peers.plan.network import FASTEST

__all__ = ["Found", "figures_of", "running"]


class Found(NamedTuple):
    """A figure of the running network."""

    value: Any
    how: str
    """where it comes from; why there is none, if the value is None"""


def running(home: Path, given: Mapping[str, Any]) -> dict[str, Found]:
    """The figures of the network that the daemon of `home` is a member of, but for those that are given.

    Another number of hosts is another network, so the members' speeds do not count for it.

    Raises:
        UnreachableError: GD-105, no daemon answers.
    """
    found = figures_of(ask(home, "status"), ask(home, "members").get("members") or [])
    unused = set(given) | ({"speeds"} if given.get("hosts", found["hosts"].value) != found["hosts"].value else set())
    return {name: each for name, each in found.items() if name not in unused}


def figures_of(status: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> dict[str, Found]:
    """What two answers of a daemon say of its network.

    Args:
        status, members: the answers to these verbs.
    """
    living = [row for row in members if row.get("state") == "alive" and row.get("trains") is not False]
    trips = [row["rtt"] for row in living if not row.get("me") and row.get("rtt")]
    parameters, step = status.get("parameters") or 0, _step_time(status)
    return {
        "parameters": Found(parameters or None, "this peer's model" if parameters else "this peer has no model yet"),
        "step_time": Found(
            step, "this host's samples a second" if step else "this host has not trained for two rounds yet"
        ),
        "hosts": Found(len(living) or None, "live members that train"),
        "speeds": _speeds(status, living),
        "bandwidth": _bandwidth(status.get("last_exchange") or {}),
        "latency": Found(
            median(trips) / 2.0 if trips else None,
            f"half of the median round trip to {len(trips)} members" if trips else "no round trip is known yet",
        ),
    }


def _step_time(status: Mapping[str, Any]) -> float | None:
    """Seconds of a step of this host; None while its rate is unknown."""
    rate, steps, samples = (status.get(key) for key in ("samples_per_second", "steps", "samples"))
    return samples / steps / rate if rate and steps and samples else None


def _speeds(status: Mapping[str, Any], living: Sequence[Mapping[str, Any]]) -> Found:
    """Samples a second of the members, as multiples of this host's."""
    own = status.get("samples_per_second")
    rates = [row.get("samples_per_second") for row in living]
    if not own or not rates or not all(rates):
        return Found(None, "the samples a second of some members are unknown: taken as equal")
    speeds = [rate / own for rate in rates if rate]
    if max(speeds) <= (1.0 + SAME) * min(speeds):
        return Found((1.0,) * len(speeds), f"samples a second, equal to {100.0 * SAME:.0f} %")
    least = max(speeds) / FASTEST
    return Found(tuple(max(least, speed) for speed in speeds), "samples a second, this host's is 1")


def _bandwidth(exchange: Mapping[str, Any]) -> Found:
    """Bytes a second that the last exchange reached."""
    seconds, received = exchange.get("seconds") or 0.0, exchange.get("received_bytes") or 0
    if not seconds or not received:
        return Found(None, "no exchange has ended yet")
    return Found(received / seconds, "what the last exchange reached; if the link carries more, give --bandwidth")
