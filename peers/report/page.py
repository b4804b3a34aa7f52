"""The report as one HTML file: no file beside it, no address outside it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from importlib.resources.abc import Traversable
from string import Template
from typing import Any, Final

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.observability.health import spoken
from peers.report.figures import figures
from peers.report.gather import PeerRun
from peers.tables import quantity

__all__ = ["MOST", "page"]

MOST: Final = 2 << 20
"""bytes of a report"""
SHARED: Final = resources.files("gossipdp.runtime.observability.page") / "files"
"""the folder of the daemon's page, whose plots and colours the report uses"""
MODULES: Final = ("text.js", "plots.js")
"""modules of that page, each after those that it imports"""


def page(peers: Sequence[PeerRun], made: float, version: str) -> str:
    """The HTML text.

    Args:
        made: time of the report, in seconds since 1970.
        version: of gossipdp.
    """
    here = resources.files("peers.report")
    return Template(_read(here / "report.html")).substitute(
        title=_text(f"{peers[0].network}: report of a run"),
        summary=_summary(peers, made, version),
        peers=_table(PEER_HEAD, [_peer_row(peer) for peer in peers]),
        members=_members(peers),
        events=_events(peers),
        settings=_table(("setting", "value"), _settings(peers)),
        data=json.dumps(figures(peers)).replace("<", "\\u003c"),
        uplot=_read(SHARED / "uplot.js"),
        script=_one_module(_read(*(SHARED / name for name in MODULES), here / "report.js")),
        style=_read(SHARED / "uplot.css", SHARED / "plots.css", here / "report.css"),
    )


def _read(*files: Traversable) -> str:
    return "\n".join(file.read_text("utf-8") for file in files)


def _one_module(modules: str) -> str:
    """JavaScript modules as one. A file on a disk cannot import another one."""
    return re.sub(r"^import .*\n|^export ", "", modules, flags=re.MULTILINE)


def _text(value: object) -> str:
    """Text of a peer or an operator, harmless in HTML."""
    return html.escape(printable(str(value)))


def _table(head: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    titles = "".join(f"<th>{_text(title)}</th>" for title in head)
    lines = "".join("<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'


def _summary(peers: Sequence[PeerRun], made: float, version: str) -> str:
    first = peers[0]
    records = [record for peer in peers for record in peer.records]
    when = "no record of its course"
    if records:
        begin, end = min(record.time for record in records), max(record.time for record in records)
        when = f"{_when(begin)} to {_when(end)}, {spoken(end - begin)}"
    final = first.final
    how = f"finished at clock {final.get('clock')}" if final else "not finished, or its final model is elsewhere"
    lines = (
        f"Network {first.network}, run {first.run[:8] or 'without an id'}: {when}; {how}.",
        f"Homes of {len(peers)} of its peers are in this report, made {_when(made)} by gossipdp {version}.",
    )
    return "".join(f"<p>{_text(line)}</p>" for line in lines)


PEER_HEAD: Final = (
    "peer", "id", "rounds", "steps", "samples", "loss", "exchanges", "mixed nothing", "received", "sent",
    "in gossipdp", "starts", "away", "checkpoints",
)  # fmt: skip


def _peer_row(peer: PeerRun) -> Sequence[object]:
    totals = peer.totals
    loss = next((record.loss for record in reversed(peer.records) if record.loss is not None), None)
    share = f" ({totals.stall / totals.seconds:.1%})" if totals.seconds else ""
    return (
        peer.name,
        peer.id,
        totals.rounds,
        totals.steps,
        totals.samples,
        "-" if loss is None else f"{loss:.4g}",
        totals.exchanges,
        totals.failed,
        quantity(totals.received, "B"),
        quantity(totals.sent, "B"),
        f"{spoken(totals.stall)}{share}",
        totals.lives,
        spoken(totals.away) if totals.away else "-",
        len(peer.checkpoints),
    )


def _members(peers: Sequence[PeerRun]) -> str:
    """Who trained how much, as the last record of each home tells."""
    told: dict[str, tuple[str, int, int, float | None]] = {}
    for peer in peers:
        for member in peer.records[-1].members if peer.records else ():
            if member.id not in told or told[member.id][1] < member.steps:
                told[member.id] = (member.name, member.steps, member.rounds, member.loss)
    whole = sum(steps for _, steps, _, _ in told.values()) or 1
    rows = [
        (name, key, steps, f"{steps / whole:.1%}", rounds, "-" if loss is None else f"{loss:.4g}")
        for key, (name, steps, rounds, loss) in sorted(told.items(), key=lambda item: -item[1][1])
    ]
    return _table(("member", "id", "steps", "share", "rounds", "loss"), rows) if rows else "<p>No member is known.</p>"


def _events(peers: Sequence[PeerRun]) -> str:
    rows = [
        (peer.name, event.code, event.title, event.count, _when(event.first), _when(event.last), event.text, event.do)
        for peer in peers
        for event in peer.events
    ]
    head = ("peer", "code", "what", "times", "first", "last", "the last one said", "what to do")
    return _table(head, rows) if rows else "<p>The logs have no warning.</p>"


def _settings(peers: Sequence[PeerRun]) -> list[Sequence[Any]]:
    """The settings that all peers share, and where a home differs."""
    first = peers[0].settings
    rows: list[Sequence[Any]] = [(key, value) for key, value in first.items()]
    for peer in peers[1:]:
        rows += [(f"{key} at {peer.name}", value) for key, value in peer.settings.items() if first.get(key) != value]
    return rows


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
