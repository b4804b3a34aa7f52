"""What `demo` shows while it runs, and what it says at the end: live table, figures, picture.

Every figure comes from the peers' own answers and files of this run. No process may be started here.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from peers.demo import Process

__all__ = ["live", "summarize", "write"]

Show = Callable[[Sequence["Process"], float], None]
PLAIN_EVERY = 10.0
"""seconds between two plain lines"""


# -- while it runs ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def live(options: Namespace) -> Iterator[Show]:
    """A function to call with the processes and the seconds so far: a live table on a terminal, else plain lines."""
    if options.no_live or not sys.stdout.isatty():
        last = [-math.inf]

        def plain(processes: Sequence[Process], seconds: float) -> None:
            if seconds - last[0] >= PLAIN_EVERY:
                last[0] = seconds
                print(f"{seconds:5.0f} s  " + "  ".join(_brief(process) for process in processes), flush=True)

        yield plain
        return
    with Live(console=Console(), refresh_per_second=4, transient=True) as display:
        yield lambda processes, seconds: display.update(_table(processes, options, seconds))


def _brief(process: Process) -> str:
    line = process.last_line()
    return f"{process.name} {line.get('step', 0)}:{line.get('loss', math.nan):.3f}"


def _table(processes: Sequence[Process], options: Namespace, seconds: float) -> Table:
    table = Table(title=f"byte_gpt {options.size}, {seconds:.0f} s", title_justify="left", box=None, pad_edge=False)
    for name in ("peer", "state", "round", "steps", "loss", "partner", "received", "sent", "distance"):
        table.add_column(name, justify="left" if name in ("peer", "state", "partner") else "right", no_wrap=True)
    names = {process.status.get("id", ""): process.name for process in processes if process.status}
    for process in processes:
        line, status = process.last_line(), process.status
        partner = status.get("partner") or status.get("last_partner") or ""
        table.add_row(
            process.name,
            _state(process),
            str(status.get("round", "")),
            str(line.get("step", "")),
            f"{line['loss']:.3f}" if "loss" in line else "",
            names.get(partner, partner[:8]),
            _bytes(status.get("received_bytes")),
            _bytes(status.get("sent_bytes")),
            f"{status['consensus_distance']:.1e}" if status.get("consensus_distance") else "",
        )
    return table


def _state(process: Process) -> str:
    if process.child.poll() is not None:
        return "done" if process.child.returncode == 0 else f"exit {process.child.returncode}"
    if process.home is None:
        return "alone"
    if not process.status:
        return "starting"
    return "warm-up" if process.status.get("warming_up") else str(process.status.get("state"))


def _bytes(count: float | None) -> str:
    if count is None:
        return ""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


# -- at the end ------------------------------------------------------------------------------------------------


def summarize(processes: Sequence[Process], options: Namespace, seconds: float) -> dict[str, Any]:
    """The figures of one run. Evaluates every replica, their average and the lone one on the same windows."""
    import torch
    from safetensors.torch import load_file

    from peers.jobs import byte_gpt

    print("evaluating every replica, their average and the lone one on held-out files ...", flush=True)
    held_out = byte_gpt.validation_windows(256, 128)
    model = byte_gpt.build_model(options.size)

    def loss(weights: dict[str, torch.Tensor]) -> float:
        model.load_state_dict(weights)
        return byte_gpt.evaluate(model, held_out)

    peers = [process for process in processes if process.home is not None]
    replicas = [load_file(process.weights) for process in peers]
    average = {name: torch.stack([replica[name] for replica in replicas]).mean(0) for name in replicas[0]}
    alone = next(process for process in processes if process.home is None)
    statuses = [process.status for process in peers]
    parameters = sum(status.get("exchanged_parameters", 0.0) for status in statuses)

    def per_parameter(key: str) -> float:
        return sum(status.get(key, 0.0) for status in statuses) / parameters if parameters else math.nan

    ends = [_summary_line(process) for process in peers]
    blocks = sum(status.get("blocks", 0) for status in statuses)
    medians = [status["escalated_median"] for status in statuses if status.get("escalated_median") is not None]
    exchanges: dict[str, int] = {}
    for status in statuses:
        for result, count in status.get("exchanges", {}).items():
            exchanges[result] = exchanges.get(result, 0) + count
    return {
        "peers": len(peers),
        "size": options.size,
        "steps": options.steps,
        "every": options.every,
        "batch": options.batch,
        "seconds": round(seconds, 1),
        "rounds": max((status.get("round", 0) for status in statuses), default=0),
        "exchanges": exchanges,
        "validation_loss": {
            "replicas": [round(loss(replica), 4) for replica in replicas],
            "average": round(loss(average), 4),
            "alone": round(loss(load_file(alone.weights)), 4),
        },
        "bytes_per_parameter_per_exchange": {
            "measured": round(per_parameter("exchanged_bytes"), 4),
            "formula": round(per_parameter("formula_bytes"), 4),
        },
        "escalated_blocks": {
            "share": round(sum(status.get("escalated_blocks", 0) for status in statuses) / max(1, blocks), 4),
            "median_exchange": round(sorted(medians)[len(medians) // 2], 4) if medians else None,
        },
        "received_bytes": [status.get("received_bytes", 0) for status in statuses],
        "stall_share": round(sum(end["stall_share"] for end in ends) / len(ends), 6),
        "machine": {"python": platform.python_version(), "torch": torch.__version__, "processor": platform.machine()},
    }


def _summary_line(process: Process) -> dict[str, Any]:
    """The JSON line that a training process prints last, found in its log."""
    for line in reversed((process.log.with_suffix(".log")).read_text(errors="replace").splitlines()):
        if line.startswith("{") and '"stall_share"' in line:
            return dict(json.loads(line))
    return {"stall_share": math.nan}


def write(summary: dict[str, Any], out: Path, options: Namespace) -> None:
    """Print the report, and write report.txt, summary.json and loss.png into `out`."""
    text = _text(summary, out)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    (out / "report.txt").write_text(text)
    _picture(out, summary, options)
    print("\n" + text, end="")


def _text(summary: dict[str, Any], out: Path) -> str:
    losses, sent, escalated = (
        summary["validation_loss"],
        summary["bytes_per_parameter_per_exchange"],
        summary["escalated_blocks"],
    )
    spread = max(losses["replicas"]) - min(losses["replicas"])
    gain = losses["alone"] - sum(losses["replicas"]) / len(losses["replicas"])
    exchanges = ", ".join(f"{count} {result}" for result, count in sorted(summary["exchanges"].items()))
    median = escalated["median_exchange"]
    rows = [
        ("validation loss of each replica", "  ".join(f"{value:.3f}" for value in losses["replicas"]) + "  nats/byte"),
        ("of their average", f"{losses['average']:.3f}"),
        ("of one replica trained alone", f"{losses['alone']:.3f}"),
        ("gossip is better by", f"{gain:.3f}; replicas differ by {spread:.3f}"),
        ("rounds, exchanges (both ends)", f"{summary['rounds']}, {exchanges}"),
        (
            "bytes/parameter/exchange received",
            f"{sent['measured']:.3f} measured, {sent['formula']:.3f} by the formula",
        ),
        (
            "blocks escalated",
            f"{escalated['share']:.1%}, median exchange {'-' if median is None else format(median, '.1%')}",
        ),
        ("training time lost to gossip", f"{summary['stall_share']:.2%}"),
        ("seconds", f"{summary['seconds']:.0f}"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([*lines, "", f"{out}/: summary.json, loss.png, report.txt, logs", ""])


def _picture(out: Path, summary: dict[str, Any], options: Namespace) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no picture: `pip install 'gossipdp[demo]'` brings matplotlib")
        return

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for path in sorted(out.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        points = [(record["step"], record["loss"]) for record in records if "loss" in record]
        steps, losses = [step for step, _ in points], _smooth([loss for _, loss in points])
        lone = path.stem == "alone"
        axes.plot(steps, losses, label=path.stem, color="black" if lone else None, linewidth=1.6 if lone else 1.0)
    shown = summary["validation_loss"]
    gossip = sum(shown["replicas"]) / len(shown["replicas"])
    axes.set_title(f"byte_gpt {options.size}: validation {gossip:.3f} with gossip, {shown['alone']:.3f} alone")
    axes.set_xlabel("steps of one replica")
    axes.set_ylabel("training loss, nats per byte (smoothed)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out / "loss.png")
    pyplot.close(figure)


def _smooth(values: Sequence[float], window: int = 9) -> list[float]:
    """A centred moving mean, shorter at the ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]
