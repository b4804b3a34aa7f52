"""Scenarios that are no plan, as reports like those that are: `detection`, `scale`, `cold_start` and `data`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import median

from simulations.check import Check
from simulations.scenarios import cold_start, data, detection, scale
from simulations.scenarios.base import Findings, Panel, Report

__all__ = ["cold_start_report", "data_report", "detection_report", "pooled_detection_report", "scale_report"]

DATA_MINUTES = 4.0


def detection_report(seed: int, peers: int) -> Report:
    """Of one seed, whose median has a wider mark than that of many."""
    both = {lifeguard: [detection.run(seed, peers, lifeguard)] for lifeguard in (True, False)}
    return pooled_detection_report(both)


def pooled_detection_report(outcomes: Mapping[bool, Sequence[detection.Detection]]) -> Report:
    """Of any number of seeds taken together, which both protocols have played; True is with Lifeguard."""
    named = {"Lifeguard": outcomes[True], "plain SWIM": outcomes[False]}
    pools = {name: detection.Pool.of(of) for name, of in named.items()}
    ours, plain = pools.values()
    seeds = [one.seed for one in outcomes[True]]
    rows = [
        (
            name,
            str(pool.false_failures),
            str(pool.wronged),
            str(pool.starved_failures),
            f"{pool.median:.1f} s",
            f"{pool.late:.1f} s",
            f"{median(pool.first):.1f} s",
        )
        for name, pool in pools.items()
    ]
    bound = detection.median_mark(len(seeds))
    whose = "" if bound == detection.MEDIAN else f", few seeds (of many: {detection.MEDIAN:.0f} s)"
    checks = [
        Check(
            "false failures, of those of plain SWIM (T6)",
            f"<= 1/{detection.FEWER}",
            f"{ours.false_failures} of {plain.false_failures}",
            detection.FEWER * ours.false_failures <= plain.false_failures,
        ),
        Check(
            f"a death is known to a member, median{whose}", f"<= {bound:.0f} s", f"{ours.median:.1f} s",
            ours.median <= bound,
        ),
        Check(
            "a death is known to a member, 99 %", f"<= {detection.LATE:.0f} s", f"{ours.late:.1f} s",
            ours.late <= detection.LATE,
        ),
    ]  # fmt: skip
    wrongs = {name: ((0.0, 1.0), (float(pool.false_failures), float(pool.wronged))) for name, pool in pools.items()}
    times = "seconds since the death"
    return Report(
        "detection",
        "Are the dead found, and only they?",
        seeds[0],
        outcomes[True][0].peers,
        Findings(
            ("", "false failures", "wronged", "starved", "known, median", "99 %", "first"),
            rows,
            checks,
            [
                Panel(
                    "the living held for dead",
                    wrongs,
                    bars=("times a healthy member was failed by another", "healthy members to whom that happened"),
                    across="",
                ),
                Panel(
                    "share of members who know of a death",
                    {name: _shares(pool.times) for name, pool in pools.items()},
                    mark=0.99,
                    steps=True,
                    across=times,
                ),
                Panel(
                    "share of deaths that somebody knows of",
                    {name: _shares(pool.first) for name, pool in pools.items()},
                    steps=True,
                    across=times,
                ),
            ],
        ),
        "",
        None,
        None,
        ours.events + plain.events,
        len(seeds) * 2 * (detection.FORMING + 180.0 + detection.WATCHED),
        ours.wall + plain.wall,
        seeds=len(seeds),
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
            f"<= {scale.CONTROL / 1e3:.0f} kB/s",
            f"{one.storm / 1e3:.2f} kB/s",
            one.storm <= scale.CONTROL,
        ),
        Check(
            "control traffic of a peer in a quiet minute",
            f"<= {scale.CONTROL / 1e3:.0f} kB/s",
            f"{one.quiet / 1e3:.2f} kB/s",
            one.quiet <= scale.CONTROL,
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
                    mark=scale.CONTROL / 1e3,
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


def data_report(seed: int, peers: int) -> Report:
    one = data.run(seed, peers, minutes=DATA_MINUTES, blocks=64 * peers, epoch=DATA_MINUTES * 60.0 / 3.0)
    rows = [
        ("epochs covered", f"{one.epochs}"),
        ("samples in them", f"{one.samples:,}"),
        ("crashes, departures", f"{one.crashes}, {one.departures}"),
        ("samples that nobody used", f"{one.missed:,}"),
        ("uses of a sample after the first", f"{one.duplicates:,}"),
        ("of these of leases of crashed hosts", f"{one.crashed:,}"),
        ("blocks that peers counted as duplicates", f"{one.counted:,}"),
        ("readers' time with nothing to do", f"{one.idle:.1%}"),
    ]
    checks = [
        Check("epochs covered", ">= 1", str(one.epochs), one.epochs >= 1),
        Check("every sample of them is used (I6)", "none missed", str(one.missed), one.missed == 0),
        Check("used again, leases of the crashed aside (I6)", "<= 1 %", f"{one.share:.2%}", one.share <= 0.01),
    ]
    shares = (one.missed, one.duplicates - one.crashed, one.crashed)
    return Report(
        "data",
        "Is every sample used, and hardly any twice?",
        seed,
        one.peers,
        Findings(
            ("what", "how much"),
            rows,
            checks,
            [
                Panel(
                    "% of the samples of covered epochs",
                    {"share": ((0.0, 1.0, 2.0), tuple(100.0 * part / max(1, one.samples) for part in shares))},
                    mark=1.0,
                    bars=("missed", "used again", "used again, of leases of the crashed"),
                    across="",
                ),
                Panel(
                    "what a peer sends about data, bytes a second",
                    {"coverage": ((0.0, 1.0), (one.traffic, one.busiest))},
                    bars=("mean of the peers", "the busiest"),
                    across="",
                ),
            ],
        ),
        "",
        None,
        None,
        one.events,
        10.0 + 60.0 * DATA_MINUTES,
        one.wall,
        one.log_hash,
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
