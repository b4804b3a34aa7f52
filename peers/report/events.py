"""What went wrong in a run, as the logs of a home tell it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from gossipdp.error_codes import CODES
from gossipdp.protocol.wire.messages import printable
from peers.log_file import FILES, log_file

__all__ = ["Event", "events"]

LINE: Final = re.compile(r"(\S+) (?:WARNING|ERROR  ) [^:]*: (?:.*?)(GD-[0-9]{3})\b[ :]*(.*)")
SHOWN: Final = 240
"""characters of the last text"""
LARGEST: Final = 12 << 20
"""bytes read of one log file: its end"""


@dataclass(frozen=True, slots=True)
class Event:
    """All warnings and errors with one code.

    first, last: seconds since 1970.
    text: what the last one said.
    """

    code: str
    count: int
    first: float
    last: float
    text: str

    @property
    def title(self) -> str:
        return CODES[self.code].title if self.code in CODES else ""

    @property
    def do(self) -> str:
        return CODES[self.code].do if self.code in CODES else ""


def events(home: Path) -> list[Event]:
    """The warnings and errors of daemon and supervisor by code, the newest first."""
    found: dict[str, Event] = {}
    for process in ("peer", "supervisor"):
        for at, code, text in _told(_lines(log_file(home, process))):
            known = found.get(code)
            if known is None:
                found[code] = Event(code, 1, at, at, text)
            else:
                newer = text if at >= known.last else known.text
                found[code] = replace(
                    known, count=known.count + 1, first=min(known.first, at), last=max(known.last, at), text=newer
                )
    return sorted(found.values(), key=lambda event: -event.last)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log and of its rotated files. A file that cannot be read has none."""
    for each in (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FILES))):
        try:
            with open(each, "rb") as file:
                file.seek(max(0, each.stat().st_size - LARGEST))
                yield from file.read(LARGEST).decode("utf-8", "replace").splitlines()
        except OSError:
            continue


def _told(lines: Iterable[str]) -> Iterator[tuple[float, str, str]]:
    """Time, code and text of each warning and error with a code, from a log of text or of JSON lines."""
    for line in lines:
        try:
            if line.startswith("{"):
                said = json.loads(line)
                if said.get("code") and said.get("level") in ("warning", "error"):
                    text = str(said.get("message")).removeprefix(str(said["code"])).strip()
                    yield float(said["time"]), str(said["code"])[:6], _short(text)
            elif (match := LINE.match(line)) is not None:
                yield datetime.fromisoformat(match[1]).timestamp(), match[2], _short(match[3])
        except (ValueError, TypeError, AttributeError):
            continue


def _short(text: str) -> str:
    """The text without its advice, which has a column of its own."""
    return printable(text.partition("; do: ")[0])[:SHOWN]
