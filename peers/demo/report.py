"""What `demo` says at the end: figures, the marks they are held against, text, picture.

Every figure comes from the peers' own answers and files of this run. No process may be started here.
"""

from __future__ import annotations

import json
import math
import operator
import platform
import textwrap
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from peers.demo.process import Process

__all__ = ["MARKS", "judge", "summarize", "write"]

COLUMNS = 80


class Mark(NamedTuple):
    says: str
    mark: float
    holds: Callable[[float, float], bool]
    form: str


MARKS = {
    "gain_over_alone": Mark("nats/byte better than alone, at least", 0.05, operator.ge, ".3f"),
    "spread_of_replicas": Mark("nats/byte between best and worst replica, at most", 0.02, operator.le, ".3f"),
    "escalated_median": Mark("of the blocks escalated in the median exchange, at most", 0.10, operator.le, ".1%"),
    "bytes_off_formula": Mark("between the bytes measured and the formula's, at most", 0.05, operator.le, ".1%"),
    "identical_epochs": Mark("of the closed epochs with the same bits everywhere, at least", 1.0, operator.ge, ".0%"),
}
"""What a demo of the default length is expected to reach on any machine; a very short one misses some."""
JUDGED = {
    "pairwise": ("gain_over_alone", "spread_of_replicas", "escalated_median", "bytes_off_formula"),
    "epidemic": ("gain_over_alone", "identical_epochs", "bytes_off_formula"),
}
"""Nothing is escalated with epidemic, and its replicas are to be the same, not nearly so. What each saves at the end
has its own last steps in it, which nobody else has: so they are compared as of the ends of epochs."""
LOST = """\
Time lost is what a training process spends in gossipdp's hook after its steps;
what daemons take by working on the same cores is not in it."""


# -- figures ---------------------------------------------------------------------------------------------------


def summarize(processes: Sequence[Process], options: Namespace, seconds: float) -> dict[str, Any]:
    """The figures of one run. Evaluates every replica, their average and the lone one on the same windows.

    `stall_share` is the mean over the peers of the share of its training time that a training process spent in
    gossipdp's hook after each optimizer step: handing over snapshots, adding corrections, looking for either. Not in
    it: waiting for the first model before the first step, and handing over the last steps after it; nor what the
    daemons take from training by working on the same cores. A figure that the run did not give is None.
    """
    import torch
    from safetensors.torch import load_file

    from peers.jobs import byte_gpt

    print("evaluating every replica, their average and the lone one on held-out files ...", flush=True)
    held_out = byte_gpt.validation_windows(256, 128)
    model = byte_gpt.build_model(options.size)

    def loss(weights: dict[str, torch.Tensor]) -> float | None:
        model.load_state_dict(weights)
        return _rounded(byte_gpt.evaluate(model, held_out), 4)

    peers = [process for process in processes if process.home is not None]
    replicas = [load_file(process.weights) for process in peers]
    average = {name: torch.stack([replica[name] for replica in replicas]).mean(0) for name in replicas[0]}
    alone = next(process for process in processes if process.home is None)
    statuses = [process.status for process in peers]

    def total(key: str) -> float:
        return sum(status.get(key) or 0 for status in statuses)

    medians = sorted(status["escalated_median"] for status in statuses if status.get("escalated_median") is not None)
    exchanges: Counter[str] = Counter()
    for status in statuses:
        exchanges.update(status.get("exchanges", {}))
    stalls = [share for process in peers if (share := _stall_share(process)) is not None]
    summary = {
        "peers": len(peers),
        "size": options.size,
        "steps": options.steps,
        "every": options.every,
        "algorithm": options.algorithm,
        "batch": options.batch,
        "seconds": round(seconds, 1),
        "rounds": max((status.get("round", 0) for status in statuses), default=0),
        "exchanges": dict(exchanges),
        "validation_loss": {
            "replicas": [loss(replica) for replica in replicas],
            "average": loss(average),
            "alone": loss(load_file(alone.weights)),
        },
        "bytes_per_parameter_per_exchange": {
            "measured": _ratio(total("exchanged_bytes") * _times(statuses), total("exchanged_parameters"), 4),
            "formula": _ratio(total("formula_bytes"), total("exchanged_parameters"), 4),
        },
        "escalated_blocks": {
            "share": _ratio(total("escalated_blocks"), total("blocks"), 4),
            "median_exchange": round(medians[len(medians) // 2], 4) if medians else None,
        },
        "closed_epochs": _epochs([process.fingerprints for process in peers]),
        "received_bytes": [status.get("received_bytes", 0) for status in statuses],
        "stall_share": _ratio(sum(stalls), len(stalls), 6),
        "machine": {"python": platform.python_version(), "torch": torch.__version__, "processor": platform.machine()},
    }
    return summary | {"marks": judge(summary)}


def judge(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each mark of the algorithm: the value, the mark, and whether it is reached; a value that is missing (None)
    reaches none."""
    losses, sent = summary["validation_loss"], summary["bytes_per_parameter_per_exchange"]
    names = JUDGED["epidemic" if _spreads(summary) else "pairwise"]
    values: dict[str, float | None] = dict.fromkeys(MARKS)
    if None not in (*losses["replicas"], losses["alone"]):
        mean = sum(losses["replicas"]) / len(losses["replicas"])
        values["gain_over_alone"] = round(losses["alone"] - mean, 4)
        values["spread_of_replicas"] = round(max(losses["replicas"]) - min(losses["replicas"]), 4)
    values["escalated_median"] = summary["escalated_blocks"]["median_exchange"]
    if sent["measured"] is not None and sent["formula"]:
        values["bytes_off_formula"] = round(abs(sent["measured"] / sent["formula"] - 1), 4)
    if _spreads(summary):
        epochs = summary["closed_epochs"]
        values["identical_epochs"] = _ratio(epochs["identical"], epochs["compared"], 4)
    return {
        name: {
            "value": values[name],
            "mark": MARKS[name].mark,
            "reached": _holds(name, values[name]),
        }
        for name in names
    }


def _spreads(summary: Mapping[str, Any]) -> bool:
    return summary.get("algorithm") == "epidemic"


def _times(statuses: Sequence[Mapping[str, Any]]) -> float:
    """How often, in the mean, what was received of increments came: 1 but for what the tree repeats."""
    kinds: Counter[str] = Counter()
    for status in statuses:
        kinds.update(status.get("rumour_bytes", {}))
    return kinds.total() / kinds["payload"] if kinds["payload"] else 1.0


def _epochs(replicas: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Closed epochs of which two peers or more have told the fingerprint, and those of which all told the same."""
    told: defaultdict[str, list[str]] = defaultdict(list)
    for fingerprints in replicas:
        for epoch, value in fingerprints.items():
            told[epoch].append(value)
    compared = [values for values in told.values() if len(values) > 1]
    return {"compared": len(compared), "identical": sum(len(set(values)) == 1 for values in compared)}


def _holds(name: str, value: float | None) -> bool:
    return value is not None and MARKS[name].holds(value, MARKS[name].mark)


def _rounded(value: float, digits: int) -> float | None:
    """JSON has no NaN: the loss of a model that diverged is None."""
    return round(value, digits) if math.isfinite(value) else None


def _ratio(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole else None


def _stall_share(process: Process) -> float | None:
    """Out of the JSON line that a training process prints last."""
    for line in reversed(process.log.read_text(errors="replace").splitlines()):
        if line.startswith("{") and '"stall_share"' in line:
            return float(json.loads(line)["stall_share"])
    return None


# -- text ------------------------------------------------------------------------------------------------------


def write(summary: dict[str, Any], out: Path) -> None:
    """Print the report, and write report.txt, summary.json and, where matplotlib is, loss.png into `out`."""
    (out / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    files = ["summary.json", "report.txt", *(["loss.png"] if _picture(out, summary) else []), "logs"]
    text = f"{_text(summary)}\n{out}/: {', '.join(files)}\n"
    (out / "report.txt").write_text(text)
    print("\n" + text, end="")


def _text(summary: dict[str, Any]) -> str:
    losses, sent = summary["validation_loss"], summary["bytes_per_parameter_per_exchange"]
    escalated, marks = summary["escalated_blocks"], summary["marks"]
    known = [loss for loss in losses["replicas"] if loss is not None]
    spread = _shown(max(known) - min(known) if len(known) == len(losses["replicas"]) else None, ".3f")
    gain = _shown(marks["gain_over_alone"]["value"], ".3f")
    exchanges = ", ".join(f"{count} {result}" for result, count in sorted(summary["exchanges"].items()))
    if _spreads(summary):
        epochs = summary["closed_epochs"]
        agreement = (
            "replicas identical, bit for bit",
            f"at the end of {epochs['identical']} of {epochs['compared']} epochs",
        )
    else:
        median = _shown(escalated["median_exchange"], ".1%")
        agreement = ("blocks escalated", f"{_shown(escalated['share'], '.1%')}, median exchange {median}")
    rows = [
        (
            "validation loss of each replica",
            "  ".join(_shown(value, ".3f") for value in losses["replicas"]) + "  nats/byte",
        ),
        ("of their average", _shown(losses["average"], ".3f")),
        ("of one replica trained alone", _shown(losses["alone"], ".3f")),
        ("gossip is better by", f"{gain}; replicas differ by {spread}"),
        ("rounds; exchanges (both ends)", f"{summary['rounds']}; {exchanges or 'none'}"),
        (
            f"bytes/parameter/{'increment' if _spreads(summary) else 'exchange'} received",
            f"{_shown(sent['measured'], '.3f')} measured, {_shown(sent['formula'], '.3f')} by the formula",
        ),
        agreement,
        ("training time lost to gossip", _shown(summary["stall_share"], ".2%")),
        ("seconds", f"{summary['seconds']:.0f}"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = []
    for name, value in rows:
        first, *more = textwrap.wrap(value, COLUMNS - width - 2)
        lines += [f"{name:<{width}}  {first}", *(" " * (width + 2) + line for line in more)]
    return "\n".join([*lines, "", LOST, "", *_verdict(marks), ""])


def _verdict(marks: dict[str, dict[str, Any]]) -> list[str]:
    missed = [name for name, judged in marks.items() if not judged["reached"]]
    if not missed:
        return [f"all {len(marks)} marks are reached (they are in summary.json)"]
    lines = [f"{len(missed)} of {len(marks)} marks missed:"]
    for name in missed:
        mark = MARKS[name]
        lines.append(f"  {_shown(marks[name]['value'], mark.form)} {mark.says} {mark.mark:{mark.form}}")
    return lines


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


# -- picture ---------------------------------------------------------------------------------------------------


def _picture(out: Path, summary: dict[str, Any]) -> bool:
    """Draw loss.png from the logs of this run's processes; False if nothing here can draw."""
    try:
        import matplotlib.figure
    except ModuleNotFoundError:
        print("no picture: `pip install 'gossipdp[demo]'` brings matplotlib")
        return False

    figure = matplotlib.figure.Figure(figsize=(8, 4.5), dpi=120, layout="tight")
    axes = figure.subplots()
    for name in [*(f"peer{number}" for number in range(1, summary["peers"] + 1)), "alone"]:
        records = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
        points = [(record["step"], record["loss"]) for record in records if "loss" in record]
        steps, losses = [step for step, _ in points], _smooth([loss for _, loss in points])
        lone = name == "alone"
        axes.plot(steps, losses, label=name, color="black" if lone else None, linewidth=1.6 if lone else 1.0)
    shown = summary["validation_loss"]
    gossip = None if None in shown["replicas"] else sum(shown["replicas"]) / len(shown["replicas"])
    with_gossip, alone = _shown(gossip, ".3f"), _shown(shown["alone"], ".3f")
    axes.set_title(f"byte_gpt {summary['size']}: validation {with_gossip} with gossip, {alone} alone")
    axes.set_xlabel("steps of one replica")
    axes.set_ylabel("training loss, nats per byte (smoothed)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "loss.png")
    return True


def _smooth(values: Sequence[float], window: int = 9) -> list[float]:
    """A centred moving mean, shorter at the ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]
