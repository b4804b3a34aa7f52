"""The report as one HTML file: no file beside it, no address outside it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from importlib.resources.abc import Traversable
from string import Template
from typing import Any, Final, NamedTuple

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.observability.health import spoken
from gossipdp.runtime.observability.history import Record
from peers.report.gather import PeerRun, bytes_per_parameter, grown
from peers.tables import quantity

__all__ = ["MOST", "colours", "figures", "page"]


POINTS: Final = 400
"""points of one curve, at most"""
CURVES: Final = 64
"""curves of one figure, at most"""
Point = tuple[float, float]


class Curve(NamedTuple):
    """One curve. A peer has the same colour in all figures."""

    name: str
    points: list[Point]
    colour: int
    """number of a colour, see `colours`"""
    dotted: bool = False


def colours() -> list[str]:
    """The colours of curves on light paper, in their order. The demo draws its picture in them too."""
    light = _read(SHARED / "plots.css").partition("@media")[0]
    return re.findall(r"--line-[0-9]: (#[0-9a-f]{6});", light)


def figures(peers: Sequence[PeerRun]) -> list[dict[str, Any]]:
    """Figures as the script of the report takes them: title, axis, unit, and curves with their points."""
    stalls = _grown(peers, lambda record: record.stall, by_life=False)
    drawn = [
        _figure("Loss against time", "time", "", _losses(peers, by_samples=False)),
        _figure("Loss against samples of that peer", "samples", "", _losses(peers, by_samples=True)),
        _figure("Agreement (consensus ratio)", "time", "", _each(peers, lambda record: record.ratio)),
        _figure("Bytes received", "time", "B", _grown(peers, lambda record: record.received)),
        _figure("Seconds of training spent in gossipdp", "time", "", stalls),
        _figure("Live members, as each peer saw them", "time", "", _each(peers, lambda record: record.alive)),
    ]
    return [figure for figure in drawn if figure["curves"]]


def _figure(title: str, x: str, unit: str, curves: Iterable[Curve]) -> dict[str, Any]:
    kept = [curve._replace(points=_thinned(curve.points)) for curve in curves if len(curve.points) > 1][:CURVES]
    return {"title": title, "x": x, "unit": unit, "curves": [curve._asdict() for curve in kept]}


def _losses(peers: Sequence[PeerRun], *, by_samples: bool) -> list[Curve]:
    curves = []
    for colour, peer in enumerate(peers):
        samples = grown(peer.records, lambda record: record.samples)
        along = list(zip(samples if by_samples else [each.time for each in peer.records], peer.records, strict=True))
        trained = [(x, each.loss) for x, each in along if each.loss is not None]
        tested = [(x, each.eval_loss) for x, each in along if each.eval_loss is not None]
        curves.append(Curve(peer.name, trained, colour))
        curves.append(Curve(f"{peer.name}, evaluation", tested, colour, dotted=True))
    return curves + _told_by_others(peers, by_samples=by_samples)


def _told_by_others(peers: Sequence[PeerRun], *, by_samples: bool) -> list[Curve]:
    """Losses of members whose homes are not given, as the first peer heard of them."""
    own = {peer.id for peer in peers}
    curves: dict[str, Curve] = {}
    for record in peers[0].records:
        for member in record.members:
            x = member.samples if by_samples else record.time
            if member.id in own or member.loss is None or x is None:
                continue
            points = curves.setdefault(member.id, Curve(member.name, [], len(peers) + len(curves))).points
            if not points or x > points[-1][0]:  # between two reports its samples stand
                points.append((x, member.loss))
    return list(curves.values())


def _each(peers: Sequence[PeerRun], value: Callable[[Record], float | None]) -> list[Curve]:
    return [
        Curve(peer.name, [(each.time, told) for each in peer.records if (told := value(each)) is not None], colour)
        for colour, peer in enumerate(peers)
    ]


def _grown(peers: Sequence[PeerRun], value: Callable[[Record], float], *, by_life: bool = True) -> list[Curve]:
    curves = []
    for colour, peer in enumerate(peers):
        totals = grown(peer.records, value, by_life=by_life)
        points = [(each.time, total) for each, total in zip(peer.records, totals, strict=True)]
        curves.append(Curve(peer.name, points, colour))
    return curves


def _thinned(points: list[Point]) -> list[Point]:
    """At most `POINTS` of them, the first and the last included."""
    if len(points) <= POINTS:
        return points
    step = (len(points) - 1) / (POINTS - 1)
    return [points[round(number * step)] for number in range(POINTS)]


MOST: Final = 2 << 20
"""bytes of a report"""
SHARED: Final = resources.files("gossipdp.runtime.observability.page") / "files"
"""the folder of the daemon's page, whose plots and colours the report uses"""
LONG: Final = 24
"""characters of a cell from which its text may take several lines"""
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
    lines = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cell(value: object) -> str:
    kind = ' class="long"' if len(str(value)) > LONG else ""
    return f"<td{kind}>{_text(value)}</td>"


def _summary(peers: Sequence[PeerRun], made: float, version: str) -> str:
    first = peers[0]
    records = [record for peer in peers for record in peer.records]
    when = "no records"
    if records:
        begin, end = min(record.time for record in records), max(record.time for record in records)
        when = f"{_when(begin)} to {_when(end)}, {spoken(end - begin)}"
    final = first.final
    how = f"finished at clock {final.get('clock')}" if final else "not finished, or its final model is elsewhere"
    lines = [
        f"Network {first.network}, run {first.run[:8] or 'without an id'}: {when}; {how}.",
        f"Homes of {len(peers)} of its peers are in this report, made {_when(made)} by gossipdp {version}.",
    ]
    measured, formula = bytes_per_parameter([peer.totals for peer in peers])
    if measured is not None:
        lines.append(f"Bytes/parameter/exchange received: {measured:.3f} measured, {formula:.3f} by the formula.")
    return "".join(f"<p>{_text(line)}</p>" for line in lines)


PEER_HEAD: Final = (
    "peer", "id", "rounds", "steps", "samples", "loss", "exchanges", "mixed nothing", "received", "sent",
    "in gossipdp", "starts", "away", "checkpoints",
)  # fmt: skip


def _peer_row(peer: PeerRun) -> Sequence[object]:
    totals = peer.totals
    return (
        peer.name,
        peer.id,
        totals.rounds,
        totals.steps,
        totals.samples,
        "-" if peer.loss is None else f"{peer.loss:.4g}",
        totals.exchanges,
        totals.failed,
        quantity(totals.received, "B"),
        quantity(totals.sent, "B"),
        spoken(totals.stall),
        totals.lives,
        spoken(totals.away) if totals.away else "-",
        len(peer.checkpoints),
    )


def _members(peers: Sequence[PeerRun]) -> str:
    """Who trained how much: the peers of these homes, and other members as the last record of a home tells."""
    own = {peer.id: (peer.name, peer.totals.steps, peer.totals.rounds, peer.loss) for peer in peers if peer.records}
    told: dict[str, tuple[str, int, int, float | None]] = {}
    for peer in peers:
        for member in peer.records[-1].members if peer.records else ():
            if member.id not in told or told[member.id][1] < member.steps:
                told[member.id] = (member.name, member.steps, member.rounds, member.loss)
    told |= own
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
