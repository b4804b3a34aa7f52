"""The figures of a report: curves of each peer, thinned for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gossipdp.runtime.observability.history import Record
from peers.report.gather import PeerRun, grown

__all__ = ["figures"]

POINTS: Final = 400
"""points of one curve, at most"""
CURVES: Final = 64
"""curves of one figure, at most"""
Point = tuple[float, float]


def figures(peers: Sequence[PeerRun]) -> list[dict[str, Any]]:
    """Figures as the script of the report takes them: title, axis, unit, and curves with their points."""
    stalls = _grown(peers, lambda record: record.stall, by_life=False)
    drawn = [
        _figure("Loss against time", "time", "", _losses(peers, _time)),
        _figure("Loss against samples of that peer", "samples", "", _losses(peers, _samples)),
        _figure("Agreement (consensus ratio)", "time", "", _each(peers, lambda record: record.ratio)),
        _figure("Bytes received", "time", "B", _grown(peers, lambda record: record.received)),
        _figure("Seconds of training spent in gossipdp", "time", "", stalls),
        _figure("Live members, as each peer saw them", "time", "", _each(peers, lambda record: record.alive)),
    ]
    return [figure for figure in drawn if figure["curves"]]


def _figure(title: str, x: str, unit: str, curves: Iterable[tuple[str, list[Point]]]) -> dict[str, Any]:
    kept = [(name, _thinned(points)) for name, points in curves if len(points) > 1][:CURVES]
    return {"title": title, "x": x, "unit": unit, "curves": [{"name": name, "points": points} for name, points in kept]}


def _losses(peers: Sequence[PeerRun], along: Callable[[Record], float]) -> list[tuple[str, list[Point]]]:
    curves = []
    for peer in peers:
        curves.append((peer.name, [(along(each), each.loss) for each in peer.records if each.loss is not None]))
        tested = [(along(each), each.eval_loss) for each in peer.records if each.eval_loss is not None]
        curves.append((f"{peer.name}, evaluation", tested))
    return curves + _told_by_others(peers, by_samples=along is _samples)


def _told_by_others(peers: Sequence[PeerRun], *, by_samples: bool) -> list[tuple[str, list[Point]]]:
    """Losses of members whose homes are not given, as the first peer heard of them."""
    own = {peer.id for peer in peers}
    curves: dict[str, tuple[str, list[Point]]] = {}
    for record in peers[0].records:
        for member in record.members:
            x = member.samples if by_samples else record.time
            if member.id in own or member.loss is None or x is None:
                continue
            points = curves.setdefault(member.id, (member.name, []))[1]
            if not points or x > points[-1][0]:  # between two reports its samples stand
                points.append((x, member.loss))
    return list(curves.values())


def _each(peers: Sequence[PeerRun], value: Callable[[Record], float | None]) -> list[tuple[str, list[Point]]]:
    return [
        (peer.name, [(each.time, told) for each in peer.records if (told := value(each)) is not None]) for peer in peers
    ]


def _grown(
    peers: Sequence[PeerRun], value: Callable[[Record], float], *, by_life: bool = True
) -> list[tuple[str, list[Point]]]:
    curves = []
    for peer in peers:
        totals = grown(peer.records, value, by_life=by_life)
        curves.append((peer.name, [(each.time, total) for each, total in zip(peer.records, totals, strict=True)]))
    return curves


def _thinned(points: list[Point]) -> list[Point]:
    """At most `POINTS` of them, the first and the last included."""
    if len(points) <= POINTS:
        return points
    step = (len(points) - 1) / (POINTS - 1)
    return [points[round(number * step)] for number in range(POINTS)]


def _time(record: Record) -> float:
    return record.time


def _samples(record: Record) -> float:
    return float(record.samples)
