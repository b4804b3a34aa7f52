"""Report of the demo: figures, marks and text.

Every figure comes from the peers' answers and files of this run. Those of `gossipdp report` are computed there. No
process may be started here.
"""

from __future__ import annotations

import json
import math
import operator
import platform
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossipdp.runtime.observability import history
from peers import home as homes
from peers.demo.options import Options
from peers.report import write as run_report
from peers.report.gather import Totals, bytes_per_parameter, totals_of
from peers.report.page import colours
from peers.tables import TERMINAL_WIDTH

if TYPE_CHECKING:
    from peers.demo.process import Process

__all__ = ["MARKS", "draw", "judge", "summarize", "write"]


def draw(out: Path, summary: Mapping[str, Any]) -> bool:
    """Draw `out`/loss.png from the validations that the training processes logged, and the final losses.

    Args:
        out: the folder of the demo.
        summary: figures of the run, as `report.summarize` returns them.

    Returns:
        False if matplotlib is missing.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError:
        print("no picture: `pip install 'gossipdp[demo]'` installs matplotlib")
        return False

    figure = matplotlib.figure.Figure(figsize=(8, 4), dpi=120, layout="tight")
    axes = figure.subplots()
    paints = colours()
    for number, name in enumerate([*(f"peer{number}" for number in range(1, summary["peers"] + 1)), "alone"]):
        lone = name == "alone"
        steps, losses = _validations(out / f"{name}.jsonl")
        label = "trained alone" if lone else name
        paint = "black" if lone else paints[number % len(paints)]
        axes.plot(steps, losses, "o-", label=label, color=paint, markersize=3, linewidth=1.3)
    final = [loss for loss in summary["validation_loss"]["replicas"] if loss is not None]
    if final:
        label = f"final model of all peers: {sum(final) / len(final):.3f}"
        axes.plot([summary["steps"]] * len(final), final, "*", color="tab:red", markersize=11, label=label)
    axes.set_title(f"byte_gpt {summary['size']}: {summary['peers']} peers, and one replica that trains alone")
    axes.set_xlabel("steps of one replica")
    axes.set_ylabel("validation loss, nats per byte")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "loss.png")
    return True


def _validations(log: Path) -> tuple[list[int], list[float]]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    points = [(record["step"], record["val"]) for record in records if "val" in record]
    return [step for step, _ in points], [loss for _, loss in points]


class Mark(NamedTuple):
    """The mark of one figure."""

    text: str
    """follows the value in the report"""
    mark: float
    holds: Callable[[float, float], bool]
    """called with the value and the mark"""
    form: str
    """format of both"""


MARKS = {
    "gain_over_alone": Mark("nats/byte better than alone, at least", 0.05, operator.ge, ".3f"),
    "off_average": Mark("nats/byte between a final model and their average, at most", 0.001, operator.le, ".4f"),
    "escalated_median": Mark("of the blocks escalated in the median exchange, at most", 0.10, operator.le, ".1%"),
    "bytes_off_formula": Mark("between the bytes measured and the formula's, at most", 0.05, operator.le, ".1%"),
}
"""Marks that a demo of the default length reaches on any machine. A very short demo misses some."""
LOST = """\
Time lost is the time of training processes in gossipdp's hook after a step.
The work of daemons on the same cores is not counted."""


# -- figures ---------------------------------------------------------------------------------------------------


def summarize(processes: Sequence[Process], options: Options, seconds: float) -> dict[str, Any]:
    """The figures of one run; None for a figure that the run did not give.

    `stall_share` is the mean, over the peers, of the share of training time that is spent in gossipdp's hook after each
    optimizer step. The hook hands over snapshots and adds corrections. Not counted are the wait for the first model,
    the hand-over of the last steps, and the work of daemons on the same cores.

    Args:
        processes: the peers, and the replica that trained alone.
        options: of the demo.
        seconds: duration of the run.
    """
    print("evaluating every replica, their average and the lone one on held-out files ...", flush=True)
    peers = [process for process in processes if process.home is not None]
    statuses = [process.status for process in peers]
    totals = [totals_of(history.read(process.home / history.FILE)) for process in peers if process.home is not None]
    stalls = [share for process in peers if (share := _stall_share(process)) is not None]
    summary = {
        "peers": len(peers),
        "size": options.size,
        "steps": options.steps,
        "every": options.every,
        "batch": options.batch,
        "seconds": round(seconds, 1),
        "rounds": max((each.rounds for each in totals), default=0),
        "exchanges": {
            "mixed": sum(each.exchanges for each in totals),
            "mixed nothing": sum(each.failed for each in totals),
        },
        "validation_loss": _validation_loss(processes, options.size),
        "closing": _closing([process.final() for process in peers]),
        **_traffic(statuses, totals),
        "received_bytes": [each.received for each in totals],
        "stall_share": _ratio(sum(stalls), len(stalls), 6),
        "machine": _machine(),
    }
    return summary | {"marks": judge(summary)}


def _machine() -> dict[str, str]:
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "processor": platform.machine()}


def _validation_loss(processes: Sequence[Process], size: str) -> dict[str, Any]:
    """Loss of every replica, of their average and of the lone replica, all on the same windows."""
    import torch
    from safetensors.torch import load_file

    from peers.jobs import byte_gpt

    held_out = byte_gpt.validation_windows(256, 128)
    model = byte_gpt.build_model(size)

    def loss(weights: dict[str, torch.Tensor]) -> float | None:
        model.load_state_dict(weights)
        return _rounded(byte_gpt.evaluate(model, held_out), 4)

    replicas = [load_file(process.weights) for process in processes if process.home is not None]
    alone = next(process for process in processes if process.home is None)
    average = {name: torch.stack([replica[name] for replica in replicas]).mean(0) for name in replicas[0]}
    return {
        "replicas": [loss(replica) for replica in replicas],
        "average": loss(average),
        "alone": loss(load_file(alone.weights)),
    }


def _closing(finals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How close the peers came at the end: exchanges, and the largest distance as a share of the usual one."""
    measured = [final.get("this_host", {}) for final in finals]
    shares = [each["relative_distance"] for each in measured if each.get("relative_distance") is not None]
    return {
        "peers": min((len(final.get("peers", ())) for final in finals), default=0),
        "exchanges": max((each.get("exchanges", 0) for each in measured), default=0),
        "relative_distance": max(shares, default=None),
    }


def _traffic(statuses: Sequence[Mapping[str, Any]], totals: Sequence[Totals]) -> dict[str, Any]:
    """Bytes per parameter, measured and by the codec's formula, and shares of escalated blocks."""

    def total(key: str) -> float:
        return sum(status.get(key) or 0 for status in statuses)

    medians = sorted(status["escalated_median"] for status in statuses if status.get("escalated_median") is not None)
    measured, formula = bytes_per_parameter(totals)
    return {
        "bytes_per_parameter_per_exchange": {
            "measured": measured,
            "formula": formula,
        },
        "escalated_blocks": {
            "share": _ratio(total("escalated_blocks"), total("blocks"), 4),
            "median_exchange": round(medians[len(medians) // 2], 4) if medians else None,
        },
    }


def judge(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each mark: its value, the mark, and whether it is reached. A missing value (None) is not."""
    losses, sent = summary["validation_loss"], summary["bytes_per_parameter_per_exchange"]
    values: dict[str, float | None] = dict.fromkeys(MARKS)
    if None not in (*losses["replicas"], losses["alone"]):
        mean = sum(losses["replicas"]) / len(losses["replicas"])
        values["gain_over_alone"] = round(losses["alone"] - mean, 4)
    if None not in (*losses["replicas"], losses["average"]):
        values["off_average"] = round(max(abs(loss - losses["average"]) for loss in losses["replicas"]), 4)
    values["escalated_median"] = summary["escalated_blocks"]["median_exchange"]
    if sent["measured"] is not None and sent["formula"]:
        values["bytes_off_formula"] = round(abs(sent["measured"] / sent["formula"] - 1), 4)
    return {
        name: {
            "value": values[name],
            "mark": MARKS[name].mark,
            "reached": _holds(name, values[name]),
        }
        for name in MARKS
    }


def _holds(name: str, value: float | None) -> bool:
    return value is not None and MARKS[name].holds(value, MARKS[name].mark)


def _rounded(value: float, digits: int) -> float | None:
    """JSON has no NaN: the loss of a model that diverged is None."""
    return round(value, digits) if math.isfinite(value) else None


def _ratio(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole else None


def _stall_share(process: Process) -> float | None:
    """The figure in the JSON line that a training process prints last."""
    for line in reversed(process.log.read_text(errors="replace").splitlines()):
        if line.startswith("{") and '"stall_share"' in line:
            return float(json.loads(line)["stall_share"])
    return None


# -- text ------------------------------------------------------------------------------------------------------


def write(summary: dict[str, Any], out: Path) -> None:
    """Print the report. Write report.txt, summary.json and, if matplotlib is installed, loss.png to `out`.

    With homes of peers there, also write run.html, which `gossipdp report` makes.
    """
    (out / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    files = ["summary.json", "report.txt", *(["loss.png"] if draw(out, summary) else []), "logs"]
    found = sorted((out / "homes").glob("*"), key=lambda place: (len(place.name), place.name))  # peer2 before peer10
    if places := [place for place in found if homes.network_of(place)]:
        run_report.write(places, out / "run.html", time.time())
        files.insert(0, "run.html")
    text = f"{_text(summary)}\n{out}/: {', '.join(files)}\n"
    (out / "report.txt").write_text(text)
    print("\n" + text, end="")


def _text(summary: dict[str, Any]) -> str:
    losses, sent = summary["validation_loss"], summary["bytes_per_parameter_per_exchange"]
    escalated, marks = summary["escalated_blocks"], summary["marks"]
    gain, off = _shown(marks["gain_over_alone"]["value"], ".3f"), _shown(marks["off_average"]["value"], ".4f")
    closing = summary["closing"]
    left = _shown(closing["relative_distance"], ".0e")
    closed = f"{closing['peers']} peers in {closing['exchanges']} exchanges; {left} of their usual distance left"
    exchanges = ", ".join(f"{count} {result}" for result, count in summary["exchanges"].items() if count)
    median = _shown(escalated["median_exchange"], ".1%")
    rows = [
        (
            "validation loss of each final model",
            "  ".join(_shown(value, ".3f") for value in losses["replicas"]) + "  nats/byte",
        ),
        ("of their average", f"{_shown(losses['average'], '.3f')}; they differ from it by at most {off}"),
        ("of one replica trained alone", _shown(losses["alone"], ".3f")),
        ("gossip is better by", gain),
        ("final exchanges", closed),
        ("rounds; exchanges (both ends)", f"{summary['rounds']}; {exchanges or 'none'}"),
        (
            "bytes/parameter/exchange received",
            f"{_shown(sent['measured'], '.3f')} measured, {_shown(sent['formula'], '.3f')} by the formula",
        ),
        ("blocks escalated", f"{_shown(escalated['share'], '.1%')}, median exchange {median}"),
        ("training time lost to gossip", _shown(summary["stall_share"], ".2%")),
        ("seconds", f"{summary['seconds']:.0f}"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = []
    for name, value in rows:
        first, *more = textwrap.wrap(value, TERMINAL_WIDTH - width - 2)
        lines += [f"{name:<{width}}  {first}", *(" " * (width + 2) + line for line in more)]
    return "\n".join([*lines, "", LOST, "", *_verdict(marks), ""])


def _verdict(marks: dict[str, dict[str, Any]]) -> list[str]:
    missed = [name for name, judged in marks.items() if not judged["reached"]]
    if not missed:
        return [f"all {len(marks)} marks are reached (see summary.json)"]
    lines = [f"{len(missed)} of {len(marks)} marks missed:"]
    for name in missed:
        mark = MARKS[name]
        lines.append(f"  {_shown(marks[name]['value'], mark.form)} {mark.text} {mark.mark:{mark.form}}")
    return lines


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
