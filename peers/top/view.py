"""Draws the daemon's answers for the live view. Nothing here may ask a daemon, or read a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.observability.health import GONE, STATES, spoken
from peers.live.figures import figures
from peers.tables import MEMBER_COLUMNS, Column, cell, member_told, notice_told, quantity, rich_table
from peers.top.choice import SORTS, Choice, Row, shown

__all__ = ["View", "line"]

COLUMNS: Final = tuple(column for column in MEMBER_COLUMNS if column.key not in ("strikes", "version", "address"))
FEWEST: Final = 3
"""rows of members, at least, on a low terminal"""
WRAPPED: Final = 4
"""more lines: the verdict's second one, the table's header, the line below it, and the one above the keys"""
PANES: Final = 6
"""lines of each pane below the members, at most"""

NAME: Final = 12
"""characters of a partner's name, at least, in a line about an exchange"""
FIGURES: Final = 72
"""characters of such a line without the name"""


class View:
    """One look at the network.

    Args:
        status: the daemon's answer to `status`; empty before the first one.
        members: its answer to `members`.
        silent: why the daemon does not answer, or "".
        traffic: bytes a second of this host, in and out.
    """

    def __init__(
        self, status: Mapping[str, Any], members: Sequence[Row], silent: str = "", traffic: float | None = None
    ) -> None:
        self._status, self._silent, self._traffic = status, silent, traffic
        self._members = [member_told(row) for row in members if (row.get("gone") or 0.0) < GONE]
        self._names = {str(row.get("id")): printable(str(row.get("name"))) for row in members}

    def without_answer(self, why: str) -> View:
        """The same look, under the word that the daemon does not answer now."""
        return View(self._status, self._members, why, self._traffic)

    def rows(self, choice: Choice) -> list[Row]:
        return shown(choice, self._members)

    def drawn(self, choice: Choice, width: int, height: int) -> RenderableType:
        """The screen: verdict, this host's figures, members or one member, exchanges, notices, keys."""
        rows = self.rows(choice)
        at = min(choice.at, len(rows) - 1)
        head = [
            self._verdict(width),
            Text(line(self._status, self._traffic), style="dim", no_wrap=True, overflow="ellipsis"),
            Text(),
        ]
        below = [*self._pane("notices", self._notices(width)), _keys(choice, width)]
        if choice.opened and rows:
            exchanges = self._exchanges(width, str(rows[at].get("id")))
            return Group(*head, *_pairs(rows[at]), *self._pane("exchanges with it", exchanges), *below)
        below = [*self._pane("exchanges", self._exchanges(width)), *below]
        room = max(FEWEST, height - len(head) - len(below) - WRAPPED)
        first = max(0, min(at - room // 2, len(rows) - room))
        table, _ = rich_table(COLUMNS, rows[first : first + room], width, at - first)
        hidden = len(rows) - len(rows[first : first + room])
        more = Text(f"({hidden} more members)" if hidden else "", style="dim")
        return Group(*head, table, more, *below)

    def _verdict(self, width: int) -> Text:
        if self._silent:
            return Text(printable(self._silent), style="bold red", no_wrap=True, overflow="ellipsis")
        verdict = self._status.get("verdict") or {}
        colour = next((kind.colour for kind in STATES if kind.name == verdict.get("state")), "")
        told = Text(printable(f"{self._status.get('network', '')}  {verdict.get('text', '')}"), style=f"bold {colour}")
        told.truncate(2 * width, overflow="ellipsis")
        return told

    def _exchanges(self, width: int, partner: str = "") -> list[Text]:
        room = min(max(NAME, width - FIGURES), max(map(len, self._names.values()), default=NAME))
        return [
            Text(
                self._exchange(each, room),
                style="" if each.get("chunks") else "yellow",
                no_wrap=True,
                overflow="ellipsis",
            )
            for each in self._status.get("recent_exchanges") or ()
            if partner in ("", each.get("partner"))
        ]

    def _exchange(self, told: Mapping[str, Any], room: int) -> str:
        partner = str(told.get("partner"))
        name = self._names.get(partner, partner[:8])
        if len(name) > room:  # the end of a default name tells hosts apart
            name = f"…{name[1 - room :]}"
        chunks = f"{told.get('chunks')} of {told.get('of')} chunks" if told.get("chunks") else "mixed nothing"
        sizes = f"{quantity(told.get('received_bytes') or 0, 'B')} in, {quantity(told.get('sent_bytes') or 0, 'B')} out"
        when = f"{spoken(told.get('ago') or 0.0)} ago"
        return (
            f"{when:>9}  {name:<{room}} {told.get('result', ''):<5} {chunks}, {sizes}, {told.get('seconds', 0):.1f} s"
        )

    def _notices(self, width: int) -> list[Text]:
        told = reversed(self._status.get("notices") or [])
        return [
            Text(printable(notice_told(self._status, each))[: 2 * width], style="yellow") for each in list(told)[:3]
        ]

    @staticmethod
    def _pane(title: str, lines: Sequence[Text]) -> list[Text]:
        return [Text(), Text(title, style="bold"), *lines[:PANES]] if lines else []


def line(status: Mapping[str, Any], traffic: float | None = None) -> str:
    """The figures of this host in one line, the most telling first.

    Args:
        traffic: bytes a second, in and out.
    """
    if not status:
        return ""
    parts = [
        *figures(status, traffic),
        "" if status.get("stall") is None else f"stall {status['stall']:.1%}",
        f"in {quantity(status.get('received_bytes') or 0, 'B')}",
        f"out {quantity(status.get('sent_bytes') or 0, 'B')}",
        f"up {spoken(status.get('uptime') or 0.0)}",
    ]
    return " · ".join(filter(None, parts))


def _pairs(row: Row) -> list[Text]:
    """One member, a line for each column."""
    columns = [*MEMBER_COLUMNS, Column("others", "others", ", ".join)]
    lines = []
    for column in columns:
        told = Text(f"{column.title:<10} {cell(column, row):<21}", no_wrap=True, overflow="ellipsis")
        if column.meaning:
            told.append(f"  {column.meaning}", style="dim")
        lines.append(told)
    return lines


def _keys(choice: Choice, width: int) -> Text:
    if choice.typing:
        return Text(f"\nfilter: {choice.wanted}_  (Enter keeps it, Esc drops it)", style="reverse")
    wanted = f" ({choice.wanted})" if choice.wanted else ""
    by = SORTS[choice.sort][0].replace("_", " ")
    told = f"\ns sort: {by}   / filter{wanted}   j k move   Enter {'back' if choice.opened else 'open'}   q quit"
    return Text(told[: width + 1], style="dim")
