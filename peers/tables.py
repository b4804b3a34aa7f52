"""Prints the daemon's answers as tables, or as JSON.

A missing key is shown as "-". A terminal gets no column of "-" alone. A narrow one loses the columns of the highest
rank, and then the middle of long names. Other outputs get all columns as aligned text. Nothing here may ask a daemon.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "DECISION_COLUMNS",
    "INVITE_COLUMNS",
    "MEMBER_COLUMNS",
    "TERMINAL_WIDTH",
    "Column",
    "address_told",
    "duration",
    "invite_told",
    "member_told",
    "notice_told",
    "print_json",
    "print_pairs",
    "print_table",
    "print_text",
    "print_verdict",
    "quantity",
    "rich_table",
    "told_of",
]

NONE = "-"
TERMINAL_WIDTH = 80
"""columns of text that is not fitted to the terminal"""
SHORTEST = 8
"""least characters of a name that is too long for the terminal"""
STYLES = {
    "alive": "green",
    "ready": "green",
    "idle": "yellow",
    "suspect": "yellow",
    "joining": "yellow",
    "failed": "red",
    "banned": "red",
    "damaged": "red",
}


class Column(NamedTuple):
    """A column of a table. A narrow terminal loses the columns of the highest `rank` first, and none of rank 0."""

    title: str
    key: str
    show: Callable[[Any], str] = str
    rank: int = 0
    right: bool = False
    meaning: str = ""


def quantity(value: float, unit: str = "") -> str:
    """Three digits and a decimal prefix: 1230000 -> 1.23M."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            text = f"{value:.3g}" if abs(value) < 99.95 else f"{value:.0f}"
            return f"{text}{prefix}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """The two largest units: 3720 -> 1h 2m."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    for unit, size, smaller, step in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // step}{smaller}"
    return f"{whole}s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g}ms"


def listed(value: Any) -> str:
    return ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, Mapping) else str(value)


def voices(value: Mapping[str, Any]) -> str:
    """Whose words count where those of several members decide."""
    return "all, because no member has been known for long" if value["all"] else f"{value['proven']} known for long"


def waited(members: Mapping[str, float]) -> str:
    """Members that wait for those that train, and for how long: h1 (1m 20s)."""
    return ", ".join(f"{name} ({duration(seconds)})" for name, seconds in members.items()) or NONE


def loss(value: float) -> str:
    return f"{value:.4g}"


def short_id(value: Any) -> str:
    """The begin of a peer's id, as in the log."""
    return str(value)[:8]


MEMBER_COLUMNS = (
    Column("name", "name", meaning="[network] peer of that host; this host's peer is first"),
    Column("id", "id", short_id, 2, meaning="start of its key's id, as in the log"),
    Column("state", "state", meaning="alive; idle (alive, does not train); suspect (silent); failed; left; banned"),
    Column("address", "address", str, 6, meaning="where other peers dial it"),
    Column("path", "path", str, 0, meaning="direct, via the member that carries to it, or outbound-only"),
    Column("rtt", "rtt", milliseconds, 4, True, "round-trip time of pings from here"),
    Column("known", "known", duration, 6, True, "time since its first message; its word counts after proven_after"),
    Column("round", "round", str, 0, True, "rounds that it has made, over all its starts"),
    Column("samples/s", "samples_per_second", quantity, 1, True, "samples a second that it trains"),
    Column("loss", "loss", loss, 0, True, "its training loss, last reported"),
    Column("eval", "eval_loss", loss, 3, True, "its evaluation loss, last reported"),
    Column("lag", "lag", str, 4, True, "steps of the network's clock since its last report"),
    Column("in", "received", quantity, 5, True, "bytes that this host received from it"),
    Column("out", "sent", quantity, 5, True, "bytes that this host sent to it"),
    Column("last", "last_exchange", duration, 0, True, "time since this host's last exchange with it"),
    Column("strikes", "strikes", str, 5, True, "proven faults; after three it is set aside for a time"),
    Column("version", "version", str, 7, meaning="its version of gossipdp"),
    Column("protocol", "protocol", str, 8, True, "newest protocol version that it speaks"),
)

DECISION_COLUMNS = (
    Column("id", "id", short_id),
    Column("name", "name"),
    Column("verdict", "verdict"),
    Column("when", "time", lambda value: time.strftime("%Y-%m-%d %H:%M", time.localtime(value))),
    Column("reason", "reason", str, 2),
)

INVITE_COLUMNS = (
    Column("for", "name"),
    Column("until", "expires", lambda value: time.strftime("%Y-%m-%d %H:%M", time.localtime(value))),
    Column("uses", "used"),
    Column("state", "state"),
    Column("let in", "let_in", str, 1),
)

STATUS_ROWS = (
    Column("peer", "name"),
    Column("id", "id", short_id),
    Column("network", "network"),
    Column("run", "run"),
    Column("state", "state"),
    Column("training", "training"),
    Column("address", "address_told"),
    Column("metrics", "metrics"),
    Column("page", "page"),
    Column("log", "log"),
    Column("members", "members", listed),
    Column("voices", "voices", voices),
    Column("waiting members", "waiting_members", waited),
    Column("versions", "versions_told"),
    Column("secret", "secret_told"),
    Column("round", "round"),
    Column("clock", "clock", lambda value: f"{value} steps"),
    Column("steps", "steps"),
    Column("samples", "samples"),
    Column("samples/s", "samples_per_second", quantity),
    Column("samples/s, network", "network_samples_per_second", quantity),
    Column("every", "every", lambda value: f"{value} steps"),
    Column("loss", "loss", lambda value: f"{value:.4g}"),
    Column("evaluation", "eval_loss", lambda value: f"{value:.4g}"),
    Column("partner", "partner", short_id),
    Column("exchanges", "exchanges", listed),
    Column("consensus distance", "consensus_distance", lambda value: f"{value:.3g}"),
    Column("sent", "sent_bytes", lambda value: quantity(value, "B")),
    Column("received", "received_bytes", lambda value: quantity(value, "B")),
    Column("uptime", "uptime", duration),
)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_verdict(text: str, colour: str) -> None:
    """Print the verdict on a peer, its first word in colour on a terminal (https://no-color.org)."""
    width = shutil.get_terminal_size((TERMINAL_WIDTH, 24)).columns
    state, colon, rest = "\n".join(textwrap.wrap(_printable(text), width, subsequent_indent="  ")).partition(":")
    coloured = None if not os.environ.get("NO_COLOR") else False
    click.echo(click.style(state, fg=colour, bold=True) + colon + rest, color=coloured)


def print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    if not sys.stdout.isatty():
        cells = [[cell(column, row) for column in columns] for row in rows]
        widths = [max([len(column.title), *(len(line[at]) for line in cells)]) for at, column in enumerate(columns)]
        for line in [[column.title for column in columns], *cells]:
            padded = (
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(line, widths, columns, strict=True)
            )
            print("  ".join(padded).rstrip())
        return
    from rich.console import Console

    console = Console()
    table, left_out = rich_table(columns, rows, console.width)
    console.print(table)
    if left_out:
        console.print(f"({left_out} more columns on a wider terminal, or with --json)", style="dim")


def rich_table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], room: int, marked: int = -1
) -> tuple[Table, int]:
    """The rows as a table that fits into `room` characters, and the number of columns left out.

    Args:
        marked: index of a row that is shown reversed.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[cell(column, row) for column in columns] for row in rows]
    widths = [max([len(column.title), *(len(line[at]) for line in cells)]) for at, column in enumerate(columns)]
    told = [at for at in range(len(columns)) if not rows or any(line[at] != NONE for line in cells)]
    kept = [told[at] for at in fitting([columns[at] for at in told], [widths[at] for at in told], room)]
    short = elided([line[kept[0]] for line in cells], sum(widths[at] + 2 for at in kept) - 2 - room)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at in kept:
        table.add_column(columns[at].title, justify="right" if columns[at].right else "left", no_wrap=True)
    for number, (line, first) in enumerate(zip(cells, short, strict=True)):
        # Text, not str: rich would read a member's name as markup.
        texts = [Text(first), *(Text(line[at], style=STYLES.get(line[at], "")) for at in kept[1:])]
        table.add_row(*texts, style="reverse" if number == marked else "")
    return table, len(told) - len(kept)


def fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Indices of the columns that fit into `room` characters. The highest ranks are left out first."""
    kept = list(range(len(columns)))
    while len(kept) > 1 and sum(widths[at] + 2 for at in kept) - 2 > room:
        worst = max(kept, key=lambda at: (columns[at].rank, at))
        if columns[worst].rank == 0:
            break
        kept.remove(worst)
    return kept


def elided(texts: Sequence[str], excess: int) -> list[str]:
    """`texts`, the longest shorter by `excess` characters and none longer than it. They lose their middle."""
    most = max([SHORTEST, max(map(len, texts), default=0) - max(0, excess)])
    tail = most // 2
    return [text if len(text) <= most else f"{text[: most - tail - 1]}…{text[-tail:]}" for text in texts]


def told_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """What the rows of `status` show in words."""
    return {
        "address_told": address_told(answer),
        "versions_told": _versions_told(answer),
        "secret_told": _secret_told(answer),
    }


def notice_told(answer: Mapping[str, Any], notice: str) -> str:
    """A notice of this answer to `status`, and how long ago it was given."""
    ago = (answer.get("notices_ago") or {}).get(notice)
    return notice if ago is None else f"{notice} ({duration(ago)} ago)"


def invite_told(made: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An invite for a single host as a row. names: of members, by id."""
    if made["verdict"] == "revoked":
        return {"name": made["name"], "expires": None, "used": None, "state": "revoked", "let_in": None}
    let_in, uses = made["let_in"], made["uses"]
    ended = "expired" if made["expires"] <= time.time() else "used up" if len(let_in) >= uses else "open"
    who = ", ".join(names.get(peer) or peer[:8] for peer in let_in)
    told = {"name": made["name"], "expires": made["expires"], "used": f"{len(let_in)} of {uses}", "state": ended}
    return {**told, "let_in": who or None}


def address_told(answer: Mapping[str, Any]) -> str:
    """Where others are told to dial the peer of this answer to `status`, and why there or why nowhere."""
    relays = " and ".join(answer.get("relays") or ())
    nowhere = f"none, others reach this peer through {relays}" if relays else "none, this peer only dials out"
    told = ", ".join(answer.get("addresses") or ()) or nowhere
    why = answer.get("address_why")
    return f"{told} ({why})" if why else told


def member_told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the answer to `members`: idle is alive and does not train, banned is excluded and no longer alive."""
    if row.get("excluded") and row.get("state") in ("failed", "left"):
        return {**row, "state": "banned"}
    return {**row, "state": "idle"} if row.get("state") == "alive" and row.get("trains") is False else dict(row)


def _versions_told(answer: Mapping[str, Any]) -> str:
    """The versions of the live members of this answer to `status`, and who has an older one than this peer."""
    versions = answer.get("versions") or []
    if len(versions) < 2:
        return f"{versions[0]['version']} on all live members" if versions else ""
    return "; ".join(
        f"{each['version']} (protocol {each['protocol']}) on {each['count']}: {', '.join(each['names'])}"
        for each in versions
    )


def _secret_told(answer: Mapping[str, Any]) -> str:
    """Who lacks the network's present secret; "" if that is nobody."""
    state = answer.get("secret") or {}
    if not state.get("lacks"):
        return "all live members have the newest" if state.get("generation") else ""
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["until"]))
    return f"not yet at {', '.join(state['lacks'])}; the previous one lets hosts in until {until}"


def print_pairs(columns: Sequence[Column], values: Mapping[str, Any]) -> None:
    width = max(len(column.title) for column in columns)
    for column in columns:
        print_text(f"{column.title:<{width}}  {cell(column, values)}", width + 2)


def print_text(text: str, indent: int = 2) -> None:
    """Print a line. A terminal that is too narrow gets more lines, each but the first indented."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size((TERMINAL_WIDTH, 24)).columns
        lines = textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
        text = "\n" * text.startswith("\n") + "\n".join(lines)
    print(text)


def cell(column: Column, row: Mapping[str, Any]) -> str:
    """The text of one cell. Control characters, as in a hostile peer's name, are replaced."""
    value = row.get(column.key)
    if value is None:
        return NONE
    try:
        text = column.show(value)
    except (TypeError, ValueError):
        text = str(value)
    return _printable(text) or NONE


def _printable(text: str) -> str:
    from gossipdp.protocol.wire.messages import printable  # slow to import, and not needed for `--help`

    return printable(text)
