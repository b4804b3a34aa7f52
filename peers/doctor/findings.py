"""What an examination finds: one line for each thing examined, with a light and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Finding", "Light", "fine", "grey", "red", "worst", "yellow"]


class Light(enum.Enum):
    """How a finding is to be read. The order is that of severity."""

    GREY = "not examined"
    GREEN = "ok"
    YELLOW = "doubtful"
    RED = "wrong"

    @property
    def severity(self) -> int:
        return list(Light).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined.

    about: what it is, such as "disk".
    said: what was found.
    do: what to do about it; "" where nothing is to be done.
    fault: name of the fault for scripts, such as "port-taken"; "" where there is none.
    """

    about: str
    light: Light
    said: str
    do: str = ""
    fault: str = ""

    def told(self) -> dict[str, Any]:
        """The finding for JSON."""
        light = self.light.name.lower()
        return {"about": self.about, "light": light, "fault": self.fault, "said": self.said, "do": self.do}


def fine(about: str, said: str) -> Finding:
    return Finding(about, Light.GREEN, said)


def grey(about: str, said: str, do: str = "") -> Finding:
    return Finding(about, Light.GREY, said, do)


def yellow(about: str, fault: str, said: str, do: str) -> Finding:
    return Finding(about, Light.YELLOW, said, do, fault)


def red(about: str, fault: str, said: str, do: str) -> Finding:
    return Finding(about, Light.RED, said, do, fault)


def worst(findings: Iterable[Finding]) -> Light:
    """The most severe light."""
    return max((finding.light for finding in findings), key=lambda light: light.severity, default=Light.GREEN)
