"""The rows of the answer to `gossipdp members`. Nothing here may send, wait or touch a vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gossipdp.protocol.view import View
from gossipdp.protocol.wire.messages import Lane, Member, short
from gossipdp.runtime.network.events import TransportCounters
from gossipdp.runtime.observability.lags import Lags
from gossipdp.runtime.observability.sample_rates import SampleRates

__all__ = ["Met", "finite", "rows_of", "versions_of"]

LATELY: Final = 60.0
"""seconds for which a member counts as training after an exchange"""
NAMED: Final = 8
"""members named of each version"""


@dataclass
class Met:
    """This peer's exchanges with one member."""

    last: float = math.nan
    """when the last one ended"""
    exchanges: int = 0


def rows_of(
    view: View,
    counters: TransportCounters,
    ways: Mapping[bytes, bytes],
    met: Mapping[bytes, Met],
    rates: SampleRates,
    lags: Lags,
    now: float,
    *,
    training: bool,
) -> list[dict[str, Any]]:
    """One row a member: this peer first, then by name.

    Args:
        counters: bytes by member and lane.
        ways: linked member -> the member that carries the link; b"" of a direct one.
        rates: samples a second of each member.
        lags: steps of the network's clock since each member's last report.
        training: a training process has a session here.
    """
    clock = view.clock
    reports = {report.id: report for report in view.reports}
    trainers = {*view.training, *([view.id] if training else [])}
    rows = []
    for member in view.members.values():
        report, exchanged, me = reports.get(member.id), met.get(member.id, Met()), member.id == view.id
        # A member that begins to train says so with a later ping.
        trains = member.id in trainers or now - exchanged.last < LATELY
        rows.append(
            {
                "name": member.name,
                "id": member.id.hex(),
                "me": me,
                "state": member.state.name.lower(),
                "trains": trains if trains or me or view.heard(member.id) else None,
                "gone": view.dead_for(member.id, now) or None,
                "incarnation": member.incarnation,
                "address": member.address if member.dialable else "",
                "others": list(member.addresses[1:]) if member.dialable else [],
                "path": _path(view, member, ways.get(member.id)),
                "rtt": finite(view.rtt(member.id)),
                "known": view.known_for(member.id) if view.heard(member.id) else None,
                "voice": view.has_voice(member.id),
                "round": None if report is None else report.rounds,
                "steps": None if report is None else report.steps,
                "samples": None if report is None else report.samples,
                "samples_per_second": finite(rates.of(member.id, now)),
                "loss": None if report is None else report.loss,
                "eval_loss": None if report is None else report.eval_loss,
                "lag": lags.of(member.id, clock),
                "sent": sum(counters.sent_bytes[(member.id, lane)] for lane in Lane),
                "received": sum(counters.received_bytes[(member.id, lane)] for lane in Lane),
                "last_exchange": finite(now - exchanged.last),
                "exchanges": exchanged.exchanges,
                "strikes": view.strikes(member.id, now),
                "version": member.software,
                "protocol": member.version,
                "excluded": view.why_not(member.id),
            }
        )
    rows.sort(key=lambda row: (not row["me"], row["name"], row["id"]))
    return rows


def _path(view: View, member: Member, via: bytes | None) -> str:
    """How this peer reaches `member`. via: the member that carries the link; b"": it is direct; None: no link."""
    relay = next(iter(member.relays), b"") if via is None else via
    if relay:
        return f"via {view.members[relay].name if relay in view.members else short(relay)}"
    return "direct" if member.address else "outbound-only"


def versions_of(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The versions that `members` run, the newest first, with the names of some members of each."""
    names: dict[tuple[int, str], list[str]] = {}
    for member in members:
        names.setdefault((member.version, member.software), []).append(member.name)
    return [
        {"version": software, "protocol": protocol, "count": len(who), "names": sorted(who)[:NAMED]}
        for (protocol, software), who in sorted(names.items(), reverse=True)
    ]


def finite(value: float | None) -> float | None:
    """`value`, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
