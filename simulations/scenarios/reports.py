"""Scenarios that are no plan, as reports like those that are: `detection`, `scale` and `cold_start`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median

from simulations.scenarios import cold_start, detection, scale
from simulations.scenarios.base import Check, Findings, Panel, Report

__all__ = ["cold_start_report", "detection_report", "scale_report"]

CONTROL = 5000.0
"""bytes a second of control traffic a peer may send (T21)"""


def detection_report(seed: int, peers: int) -> Report:
    outcomes = {name: detection.run(seed, peers, name == "Lifeguard") for name in ("Lifeguard", "plain SWIM")}
    ours, plain = outcomes["Lifeguard"], outcomes["plain SWIM"]
    rows = [
        (
            name,
            str(one.false_failures),
            str(one.wronged),
            str(one.starved_failures),
            f"{median(one.times):.1f} s",
            f"{detection.percentile(one.times, 0.99):.1f} s",
            f"{median(one.first):.1f} s",
        )
        for name, one in outcomes.items()
    ]
    middle, late = median(ours.times), detection.percentile(ours.times, 0.99)
    share = "none" if not ours.false_failures else f"{ours.false_failures} of {plain.false_failures}"
    checks = [
        Check(
            "false failures, of those of plain SWIM (T6)",
            "<= 1/50",
            share,
            50 * ours.false_failures <= plain.false_failures,
        ),
        Check("a death is known to a member, median", "<= 15 s", f"{middle:.1f} s", middle <= 15.0),
        Check("a death is known to a member, 99 %", "<= 60 s", f"{late:.1f} s", late <= 60.0),
    ]
    lines = {name: _shares(one.times) for name, one in outcomes.items()}
    first = {name: _shares(one.first) for name, one in outcomes.items()}
    return Report(
        "detection",
        "Are the dead found, and only they?",
        seed,
        peers,
        Findings(
            ("", "false failures", "wronged", "starved", "known, median", "99 %", "first"),
            rows,
            checks,
            [
                Panel(
                    "share of members who know of a death",
                    lines,
                    mark=0.99,
                    steps=True,
                    across="seconds since the death",
                ),
                Panel("share of deaths that somebody knows of", first, steps=True, across="seconds since the death"),
            ],
        ),
        "",
        None,
        None,
        ours.events + plain.events,
        2 * (detection.FORMING + 180.0 + detection.WATCHED),
        ours.wall + plain.wall,
    )


def _shares(times: Sequence[float]) -> tuple[list[float], list[float]]:
    """The distribution of `times`; those that never came make it end below 1."""
    known = sorted(time for time in times if time < math.inf)
    return [0.0, *known], [place / len(times) for place in range(len(known) + 1)]


def scale_report(seed: int, peers: int) -> Report:
    one = scale.run(seed, peers)
    when = "never" if one.converged is None else f"{one.converged:.1f} s"
    rows = [
        ("join storm", when, f"{one.storm / 1e3:.2f}", f"{one.storm_busiest / 1e3:.2f}", str(one.doubts)),
        ("a quiet minute", "", f"{one.quiet / 1e3:.2f}", f"{one.quiet_busiest / 1e3:.2f}", ""),
    ]
    in_time = one.converged is not None and one.converged <= scale.STORM
    checks = [
        Check("all know all after the last start (T21)", f"<= {scale.STORM:.0f} s", when, in_time),
        Check(
            "control traffic of a peer until then",
            f"<= {CONTROL / 1e3:.0f} kB/s",
            f"{one.storm / 1e3:.2f} kB/s",
            one.storm <= CONTROL,
        ),
        Check(
            "control traffic of a peer in a quiet minute",
            f"<= {CONTROL / 1e3:.0f} kB/s",
            f"{one.quiet / 1e3:.2f} kB/s",
            one.quiet <= CONTROL,
        ),
        Check("members doubted; nobody had died", "none", str(one.doubts), one.doubts == 0),
    ]
    bars = {"mean of the peers": (one.storm, one.quiet), "the busiest": (one.storm_busiest, one.quiet_busiest)}
    return Report(
        "scale",
        "Does membership carry so many members?",
        seed,
        peers,
        Findings(
            ("", "all know all", "kB/s a peer", "the busiest", "doubts"),
            rows,
            checks,
            [
                Panel(
                    "control traffic, kB/s",
                    {name: ((0.0, 1.0), tuple(value / 1e3 for value in values)) for name, values in bars.items()},
                    mark=CONTROL / 1e3,
                    bars=("join storm", "quiet minute"),
                    across="",
                )
            ],
        ),
        "",
        None,
        None,
        one.events,
        5.0 + scale.STORM + 120.0 + 60.0,
        one.cpu,
    )


def cold_start_report(seed: int, peers: int) -> Report:
    """All together, and then with the latest checkpoint coming back after the others. 0 peers: as the seed says."""
    began = time.perf_counter()
    rows, checks, panels = [], [], []
    violation, count = "", peers
    for late in (False, True):
        name = "the latest comes late" if late else "all come together"
        try:
            one = cold_start.run(seed, peers or None, late=late)
        except AssertionError as error:
            violation = violation or f"{name}: {error}"
            continue
        count = one.peers
        restored, kept = (", ".join(f"p{host}" for host in hosts) or "none" for hosts in (one.restored, one.kept))
        rows.append((name, f"{one.loss:.0%}", f"p{one.latest}", restored, kept, f"{one.seconds:.1f} s"))
        if late:
            checks.append(Check("the latest follows the others, and is kept", "put aside", kept, bool(one.kept)))
        else:
            right = one.restored == [one.latest]
            checks.append(Check("all go on from the latest checkpoint", f"p{one.latest} alone", restored, right))
        hosts = sorted(one.saved)
        panels.append(
            Panel(
                f"{name}: steps of the network's clock",
                {
                    "in the checkpoint": (hosts, [float(one.saved[host]) for host in hosts]),
                    "gone on from": (hosts, [float(one.clocks.get(host, 0)) for host in hosts]),
                },
                bars=tuple(f"p{host}" for host in hosts),
                across="",
            )
        )
    return Report(
        "cold-start",
        "Does a network go on after a power cut of all its hosts?",
        seed,
        count,
        Findings(("", "loss", "latest", "restored", "put aside", "all ready after"), rows, checks, panels),
        violation,
        None,
        None,
        0,
        0.0,
        time.perf_counter() - began,
    )
