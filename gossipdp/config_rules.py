"""Rules of the configuration's keys: how to read a value from TOML or text, show it, and name its range.

`config` has the keys and their meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gossipdp.protocol.wire.messages import MAX_ADDRESS

__all__ = [
    "BYTES",
    "RATES",
    "SECONDS",
    "Choice",
    "Endpoint",
    "Integer",
    "Many",
    "Measure",
    "Number",
    "OneOrMany",
    "Rule",
    "Switch",
    "Text",
]

SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES: Final = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
RATES: Final = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}
MAX_LABEL: Final = 63
"""characters between two dots of a host name (RFC 1035 section 2.3.4)"""


class Rule:
    """Base of all rules."""

    allowed: str
    """completes the sentence "must be ..." """

    def read(self, value: object) -> Any:
        """The setting for a TOML value. Raises ValueError, with a text if it says more than `allowed`."""
        raise NotImplementedError

    def from_text(self, text: str) -> object:
        """The TOML value for the text of a flag or an environment variable."""
        return text

    def show(self, value: Any) -> str:
        """The setting as a TOML literal that `read` accepts."""
        return json.dumps(value, ensure_ascii=False)


class Integer(Rule):
    """A whole number, or one of `words`, each of which stands for a number."""

    def __init__(self, low: int, high: int, words: Mapping[str, int] = {}) -> None:
        self.low, self.high, self.words = low, high, dict(words)
        self.allowed = " or ".join([f"a whole number from {low} to {high}", *(f'"{word}"' for word in words)])

    def read(self, value: object) -> int:
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text.strip()) else text

    def show(self, value: Any) -> str:
        return next((f'"{word}"' for word, meaning in self.words.items() if value == meaning), json.dumps(value))


class Number(Rule):
    """A number, or one of `words`."""

    def __init__(self, low: float, high: float, *words: str) -> None:
        self.low, self.high, self.words = low, high, words
        self.allowed = " or ".join([f"a number from {low:g} to {high:g}", *(f'"{word}"' for word in words)])

    def read(self, value: object) -> float | str:
        if isinstance(value, str) and value in self.words:
            return value
        if type(value) not in (int, float) or not self.low <= value <= self.high:  # type: ignore[operator]
            raise ValueError
        return float(value)  # type: ignore[arg-type]

    def from_text(self, text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text


class Switch(Rule):
    allowed = "true or false"

    def read(self, value: object) -> bool:
        if type(value) is not bool:
            raise ValueError
        return value

    def from_text(self, text: str) -> object:
        return {"true": True, "false": False}.get(text.strip().lower(), text)


class Choice(Rule):
    def __init__(self, *words: str) -> None:
        self.words = words
        self.allowed = "one of " + ", ".join(f'"{word}"' for word in words)

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value


class Text(Rule):
    def __init__(self, pattern: str, allowed: str) -> None:
        self.pattern, self.allowed = re.compile(pattern), allowed

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise ValueError
        return value


class Endpoint(Text):
    """``host:port`` that fits into a member's record. An IPv6 address has brackets.

    Args:
        allowed: see `Rule`.
        words: values in place of an address.
        prefix: text before the address.
        portless: whether the port may be missing.
        any_port: whether port 0 is allowed.
    """

    def __init__(
        self, allowed: str, *words: str, prefix: str = "", portless: bool = False, any_port: bool = True
    ) -> None:
        self.words, self.any_port = words, any_port
        port = r"(?::(?P<port>\d{1,5}))" + ("?" if portless else "")
        super().__init__(rf"{prefix}(?P<host>\*|[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%a-z]+\]){port}", allowed)

    def read(self, value: object) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        text = super().read(value)
        host, port = self.pattern.fullmatch(text).group("host", "port")  # type: ignore[union-attr]
        if port is not None and not (0 if self.any_port else 1) <= int(port) <= 65535:
            raise ValueError
        labels = [] if host.startswith("[") else host.removesuffix(".").split(".")
        if not all(1 <= len(label) <= MAX_LABEL for label in labels):
            raise ValueError(f"an address whose host has 1 to {MAX_LABEL} characters between dots")
        found_later = port is None or int(port) == 0
        if len(f"{host}:{65535 if found_later else port}") > MAX_ADDRESS:
            raise ValueError(f"an address of at most {MAX_ADDRESS} characters with its port")
        return text


class Many(Rule):
    """A list of at most `most` values of the rule `each`. The text form has commas."""

    def __init__(self, each: Rule, most: int) -> None:
        self.each, self.most = each, most
        self.allowed = f"a list of at most {most}, each {each.allowed}"

    def read(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > self.most:
            raise ValueError
        return tuple(self.each.read(item) for item in value)

    def from_text(self, text: str) -> object:
        return [item.strip() for item in text.split(",") if item.strip()]

    def show(self, value: Any) -> str:
        return "[" + ", ".join(self.each.show(item) for item in value) + "]"


class OneOrMany(Many):
    """One value, or a list of at most `most`. The setting is a tuple. A word of `each` stands alone."""

    def __init__(self, each: Endpoint, most: int) -> None:
        super().__init__(each, most)
        self.words = each.words
        self.allowed = f"{each.allowed}, or a list of at most {most} addresses"

    def read(self, value: object) -> tuple[Any, ...]:
        found = super().read(value if isinstance(value, list) else [value])
        if not found or (len(found) > 1 and any(item in self.words for item in found)):
            raise ValueError
        return found

    def from_text(self, text: str) -> object:
        return super().from_text(text) if "," in text else text

    def show(self, value: Any) -> str:
        return self.each.show(value[0]) if len(value) == 1 else super().show(value)


class Measure(Rule):
    """A number with a unit, such as "10m". The setting is in the base unit, whose worth is 1."""

    def __init__(self, units: Mapping[str, float], low: float, high: float, noun: str, words: Mapping[str, float] = {}):
        self.units, self.words, self.low, self.high = dict(units), dict(words), low, high
        spelled = [f"{noun} from {self._spell(low)} to {self._spell(high)}", *(f'"{word}"' for word in words)]
        self.allowed = " or ".join(spelled)

    def _spell(self, value: float) -> str:
        fitting = [
            unit for unit, worth in self.units.items() if value >= worth and value / worth == round(value / worth)
        ]
        unit = max(fitting or self.units, key=lambda unit: self.units[unit] if fitting else -self.units[unit])
        return f"{value / self.units[unit]:.12g}{unit}"

    def read(self, value: object) -> float:
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", value) if isinstance(value, str) else None
        worth = self.units.get(found[2]) if found else None
        if found is None or worth is None or not self.low <= float(found[1]) * worth <= self.high:
            raise ValueError
        return float(found[1]) * worth

    def show(self, value: Any) -> str:
        for word, meaning in self.words.items():
            if value == meaning:
                return f'"{word}"'
        return f'"{self._spell(value)}"'
