"""The network that a plan is for, and the texts in which a user gives its figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from gossipdp.config_rules import RATES, SECONDS, Measure
from gossipdp.errors import ConfigError
from gossipdp.protocol.schema import MAX_SIZE

__all__ = ["FIGURES", "Figure", "Network", "network_of", "percent", "read"]

MULTIPLES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
MOST_HOSTS: Final = 1024
LISTED: Final = 8
"""hosts whose speeds are shown one by one, at most"""
FASTEST: Final = 16.0
"""the fastest host as a multiple of the slowest, at most: a daemon makes no less than a sixteenth of the usual steps"""
_NUMBER: Final = r"\d+(?:\.\d*)?(?:e\+?\d+)?"


@dataclass(frozen=True, kw_only=True)
class Network:
    """Hosts that train one model, and the link of each."""

    parameters: int
    step_time: float
    """seconds of an optimizer step on the slowest host"""
    speeds: tuple[float, ...]
    """one a host, as multiples of the slowest"""
    bandwidth: float
    """bytes a second that each host sends, and as many that it receives"""
    latency: float
    """seconds, one way"""

    @property
    def hosts(self) -> int:
        return len(self.speeds)

    @property
    def typical(self) -> float:
        """The speed of the median host, for which `[exchange] every` counts."""
        return float(median(self.speeds))

    @property
    def equal(self) -> bool:
        return max(self.speeds) == 1.0


@dataclass(frozen=True)
class Figure:
    """One figure of a network."""

    flag: str
    read: Callable[[str], Any]
    """the value of a text; it raises ValueError if it is not allowed"""
    allowed: str
    show: Callable[[Any], str]
    needed: bool = True


def _parameters(text: str) -> int:
    found = re.fullmatch(rf"({_NUMBER})([kmbgt]?)", text.lower())
    count = round(float(found[1]) * MULTIPLES[found[2]]) if found else 0
    if not 1 <= count <= MAX_SIZE:
        raise ValueError
    return count


def _seconds(text: str) -> float:
    return _STEP.read(f"{text}s" if re.fullmatch(_NUMBER, text) and "e" not in text else text)


def _rate(text: str) -> float:
    return _RATE.read(re.sub("bps$", "bit", text.lower().removesuffix("/s")))


def _hosts(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MOST_HOSTS:
        raise ValueError
    return int(text)


def _speeds(text: str) -> tuple[float, ...]:
    speeds = tuple(float(part) for part in text.split(","))
    if not all(0.0 < speed < float("inf") for speed in speeds) or max(speeds) > FASTEST * min(speeds):
        raise ValueError
    return speeds


def _price(text: str) -> float:
    price = float(text)
    if not 0.0 <= price < 1e6:
        raise ValueError
    return price


_STEP: Final = Measure(SECONDS, 0.001, 86_400.0, "a time")
_RATE: Final = Measure(RATES, 125.0, 125e9, "a rate")
_LATENCY: Final = Measure(SECONDS, 0.0, 10.0, "a time")
FIGURES: Final[Mapping[str, Figure]] = {
    "parameters": Figure(
        "--parameters",
        _parameters,
        f"a number from 1 to {MAX_SIZE / 1e9:.3g}B, such as 1e9, 350M or 1B",
        lambda value: f"{value:,}",
    ),
    "step_time": Figure(
        "--step-time", _seconds, f"seconds, or {_STEP.allowed}, such as 0.5 or 500ms", lambda value: f"{value:.3g} s"
    ),
    "hosts": Figure("--hosts", _hosts, f"a whole number from 2 to {MOST_HOSTS}", str),
    "speeds": Figure(
        "--speeds",
        _speeds,
        f"numbers above 0 with commas, such as 1,1,2,4, none above {FASTEST:.0f} times the lowest",
        lambda value: (
            ", ".join(f"{speed:.3g}" for speed in value)
            if len(value) <= LISTED
            else f"{min(value):.3g} to {max(value):.3g}"
        ),
        needed=False,
    ),
    "bandwidth": Figure(
        "--bandwidth",
        _rate,
        f"{_RATE.allowed}, such as 100Mbit or 1Gbit",
        lambda value: f"{value / 125e6:.3g} Gbit/s" if value >= 125e6 else f"{value / 125e3:.3g} Mbit/s",
    ),
    "latency": Figure(
        "--latency", _LATENCY.read, "a time up to 10s, such as 50ms", lambda value: f"{1000 * value:.3g} ms"
    ),
    "price_per_gb": Figure(
        "--price-per-gb", _price, "a number of 0 or more, such as 0.09", "{:g}".format, needed=False
    ),
}


def read(name: str, text: str) -> Any:
    """The value of a figure's text.

    Raises:
        ConfigError: GD-324, it is not allowed.
    """
    figure = FIGURES[name]
    try:
        return figure.read(text.strip())
    except (ValueError, OverflowError):
        raise ConfigError(
            "GD-324",
            f"{figure.flag} is not allowed",
            seen=repr(text[:60]),
            do=f"give {figure.flag} as {figure.allowed}",
        ) from None


def network_of(figures: Mapping[str, Any], why: Mapping[str, str] = {}) -> Network:
    """The network of these figures. Without speeds all hosts are equal; fewer speeds than hosts are repeated.

    Args:
        figures: values by name. `step_time` is of a host of speed 1.
        why: why a figure by this name is missing, if that is known.

    Raises:
        ConfigError: GD-324, a figure is missing, or there are more speeds than hosts.
    """
    speeds: tuple[float, ...] = figures.get("speeds") or (1.0,)
    given = {**figures, "hosts": figures.get("hosts") or (len(speeds) if len(speeds) > 1 else None)}
    missing = [
        f"{each.flag} ({why[name]})" if name in why else each.flag
        for name, each in FIGURES.items()
        if each.needed and given.get(name) is None
    ]
    if missing:
        raise ConfigError(
            "GD-324",
            "the plan needs more figures",
            seen=f"no {', '.join(missing)}",
            do="give them, or --from-running on a host of a network that trains; `gossipdp plan --help` has an example",
        )
    hosts: int = given["hosts"]
    if len(speeds) > hosts:
        raise ConfigError(
            "GD-324",
            "there are more speeds than hosts",
            seen=f"{len(speeds)} speeds, {hosts} hosts",
            do="give at most one speed per host with --speeds (fewer are repeated), or another --hosts",
        )
    slowest = min(speeds)
    return Network(
        parameters=figures["parameters"],
        step_time=figures["step_time"] / slowest,
        speeds=tuple(sorted(speeds[at % len(speeds)] / slowest for at in range(hosts))),
        bandwidth=figures["bandwidth"],
        latency=figures["latency"],
    )


def percent(share: float) -> str:
    """A share of time; never 0 or 100 % unless it is."""
    if 0.0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1.0 else f"{100.0 * share:.0f} %"
