"""Reports of the scenarios that have no plan: `scale`, `relayed`, `cold_start` and `data`."""

from __future__ import annotations

import time

from simulations.check import Check
from simulations.scenarios import cold_start, data, relayed, scale
from simulations.scenarios.findings import Findings, Panel, Report

__all__ = ["cold_start_report", "data_report", "relayed_report", "scale_report"]

DATA_MINUTES = 4.0
"""virtual minutes of churn"""


def scale_report(seed: int, peers: int) -> Report:
    one = scale.run(seed, peers)
    when = "never" if one.converged is None else f"{one.converged:.1f} s"
    rows = [
        ("join storm", when, f"{one.storm / 1e3:.2f}", f"{one.storm_busiest / 1e3:.2f}", str(one.doubts)),
        ("a quiet minute", "", f"{one.quiet / 1e3:.2f}", f"{one.quiet_busiest / 1e3:.2f}", ""),
    ]
    in_time = one.converged is not None and one.converged <= scale.STORM
    budget = f"<= {scale.CONTROL / 1e3:.0f} kB/s"
    checks = [
        Check("all know all after the last start (T21)", f"<= {scale.STORM:.0f} s", when, in_time),
        Check(
            "control traffic of a peer until then", budget, f"{one.storm / 1e3:.2f} kB/s", one.storm <= scale.CONTROL
        ),
        Check(
            "control traffic of a peer in a quiet minute",
            budget,
            f"{one.quiet / 1e3:.2f} kB/s",
            one.quiet <= scale.CONTROL,
        ),
        Check("members doubted; none had died", "none", str(one.doubts), one.doubts == 0),
    ]
    bars = {"mean of the peers": (one.storm, one.quiet), "the busiest": (one.storm_busiest, one.quiet_busiest)}
    panel = Panel(
        "control traffic, kB/s",
        {name: ((0.0, 1.0), tuple(value / 1e3 for value in values)) for name, values in bars.items()},
        mark=scale.CONTROL / 1e3,
        bars=("join storm", "quiet minute"),
        across="",
    )
    return Report(
        "scale",
        "Does membership carry a thousand members?",
        seed,
        peers,
        Findings(("", "all know all", "kB/s a peer", "the busiest", "doubts"), rows, checks, [panel]),
        "",
        None,
        None,
        one.events,
        5.0 + scale.STORM + 120.0 + 60.0,
        one.cpu,
    )


def relayed_report(seed: int, peers: int) -> Report:
    one = relayed.play(seed, peers)
    times = (("peers", one.carried_to), ("data", one.load), ("offers", one.offers))
    bars = {"mean of the relays": [1.0] * len(times), "the busiest": [spread.ratio for _, spread in times]}
    panel = Panel(
        "what relays carry, times the mean",
        {name: ((0.0, 1.0, 2.0), values) for name, values in bars.items()},
        mark=relayed.BUSIEST,
        bars=tuple(name for name, _ in times),
        across="",
    )
    return Report(
        "relayed",
        "Do a few relays carry a network of hidden peers?",
        seed,
        peers,
        Findings(("", "mean", "most"), one.rows, one.checks, [panel]),
        "",
        None,
        None,
        one.events,
        one.seconds,
        one.cpu,
        one.log_hash,
    )


def data_report(seed: int, peers: int) -> Report:
    one = data.run(seed, peers, minutes=DATA_MINUTES, blocks=64 * peers, epoch=DATA_MINUTES * 60.0 / 3.0)
    rows = [
        ("epochs covered", f"{one.epochs}"),
        ("samples in them", f"{one.samples:,}"),
        ("crashes, departures", f"{one.crashes}, {one.departures}"),
        ("samples that no peer used", f"{one.missed:,}"),
        ("uses of a sample after the first", f"{one.duplicates:,}"),
        ("of these of leases of crashed hosts", f"{one.crashed:,}"),
        ("blocks that peers counted as duplicates", f"{one.counted:,}"),
        ("readers' time without work", f"{one.idle:.1%}"),
    ]
    checks = [
        Check("epochs covered", ">= 1", str(one.epochs), one.epochs >= 1),
        Check("every sample of them is used (I6)", "none missed", str(one.missed), one.missed == 0),
        Check("used again, leases of the crashed aside (I6)", "<= 1 %", f"{one.share:.2%}", one.share <= 0.01),
    ]
    shares = (one.missed, one.duplicates - one.crashed, one.crashed)
    panels = [
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
    ]
    return Report(
        "data",
        "Is every sample used, and are few used twice?",
        seed,
        one.peers,
        Findings(("what", "how much"), rows, checks, panels),
        "",
        None,
        None,
        one.events,
        10.0 + 60.0 * DATA_MINUTES,
        one.wall,
        one.log_hash,
    )


def cold_start_report(seed: int, peers: int) -> Report:
    """Two runs: all hosts come back together, and the latest checkpoint comes back after the others.

    Args:
        peers: number of hosts; 0 if the seed decides.
    """
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
            checks.append(Check("the latest follows the others, and is kept", "pinned", kept, bool(one.kept)))
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
        Findings(("", "loss", "latest", "restored", "pinned", "all ready after"), rows, checks, panels),
        violation,
        None,
        None,
        0,
        0.0,
        time.perf_counter() - began,
    )
