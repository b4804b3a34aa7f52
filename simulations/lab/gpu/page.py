"""The page of the runs on a GPU, from the answers alone. Missing arms are named. This module plays nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulations.lab.gpu.arms import ARMS, PASSES, PEERS, SIZES, Size
from simulations.lab.gpu.lab import Measurement

__all__ = ["page", "state_of", "table"]

SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""of a run, at which its loss is shown"""
NONE: Final = "-"

Answers = Mapping[str, Mapping[str, Any]]
"""by size: what `Player` keeps"""


def state_of(arm: Mapping[str, Any] | None) -> str:
    """How far an arm is."""
    if not arm:
        return "missing"
    return "whole" if arm["done"] else f"under way, round {arm['points'][-1][0]} of {arm['rounds']}"


def table(arms: Mapping[str, Any]) -> list[str]:
    """A row for each arm."""
    columns = ("way to train", "played", "loss", "single hosts", "steps of a host", "bytes a parameter", "minutes")
    rows = [columns, ("---", "---", *["---:"] * (len(columns) - 2))]
    for name, arm in ARMS.items():
        kept = arms.get(name)
        if kept is None:
            rows.append((arm.title, state_of(kept), *[NONE] * (len(columns) - 2)))
            continue
        last = Measurement(*kept["points"][-1])
        figures = (f"{last.loss:.3f}", f"{last.replica_loss:.3f}", f"{last.steps:.0f}", f"{last.bytes:.1f}")
        rows.append((arm.title, state_of(kept), *figures, f"{kept['seconds'] / 60.0:.1f}"))
    return _lines(rows)


def page(answers: Answers) -> str:
    """The page in Markdown."""
    lines = [
        "# A model that is no toy",
        "",
        "The laboratory's methods on one GPU: a GPT of 30 million parameters in bf16 autocast, a byte-pair vocabulary "
        f"of 8,192, 100 MB of real text, N = {PEERS} hosts in one process.",
        "",
        "```console",
        "$ make gpu-lab",
        "```",
        "",
        "The command plays for eight minutes at most, keeps what it has, and writes this page. The next call goes on. "
        "Without a GPU it plays the small size.",
        "",
    ]
    for name, size in SIZES.items():
        lines += [f"## {size.title[0].upper()}{size.title[1:]}", "", *_section(name, size, answers.get(name)), ""]
    return "\n".join([*lines, *NOTES]).rstrip() + "\n"


def _section(name: str, size: Size, kept: Mapping[str, Any] | None) -> list[str]:
    if not kept or not kept["arms"]:
        return [f"Missing: nothing of it has been played. `make gpu-lab` plays it{WHERE[name]}."]
    text, arms, model = kept["text"], kept["arms"], size.model
    each = model["batch"] * model["context"]
    steps = size.warmup + kept["rounds"] * size.every
    found = [
        f"{kept['parameters']:,} parameters: {model['blocks']} blocks of width {model['width']}, "
        f"{model['context']} tokens of context, {'bf16 autocast' if model.get('half') else 'fp32'}. Sources of Python "
        f"packages: {text['files']:,} files, {text['bytes'] / 1e6:.1f} MB of {text['most'] / 1e6:.0f} MB wanted. A "
        f"vocabulary of {text['vocabulary']:,}, {text['bytes_a_token']:.2f} bytes a token. A host makes {steps:,} "
        f"steps of {each:,} tokens, H = {size.every}; a warm start takes {size.warmup} of them. It reads its own "
        f"eighth {kept['passes']:.2f} times. Seed 0.",
        "",
        *table(arms),
        "",
        "Loss after shares of the steps, at the nearest measurement:",
        "",
        *_curves(arms, steps),
    ]
    begun = {one: f" ({state_of(arm)})" for one, arm in arms.items()}
    missing = [arm.title + begun.get(one, "") for one, arm in ARMS.items() if not arms.get(one, {}).get("done")]
    played = sorted({f"{arm['machine']}; commit {arm['commit']}" for arm in arms.values()})
    found += ["", f"Missing: {'; '.join(missing) or 'nothing'}.", "", f"Played by: {'. And: '.join(played)}."]
    if len({arm["commit"] for arm in arms.values()}) > 1:
        found += ["", "**The arms were played by different commits.**"]
    return found


def _curves(arms: Mapping[str, Any], steps: int) -> list[str]:
    """The loss of each arm after shares of its steps, at the nearest measurement."""
    rows = [("way to train", *(f"{share:.0%}" for share in SHARES)), ("---", *["---:"] * len(SHARES))]
    for name, arm in arms.items():
        points = [Measurement(*point) for point in arm["points"]]
        cells = []
        for due in (share * steps * PEERS / ARMS[name].shares for share in SHARES):
            near = min(points, key=lambda point: abs(point.steps - due))
            cells.append(f"{near.loss:.3f}" if arm["done"] or due <= points[-1].steps else NONE)
        rows.append((ARMS[name].title, *cells))
    return _lines(rows)


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in rows]


WHERE: Final = {"large": " where torch finds a CUDA device", "small": " elsewhere"}
NOTES: Final = (
    "## How to read it",
    "",
    "* The loss is held-out, in nats per token, of the mean of the hosts; of DiLoCo, of its anchor. One file in ten is "
    "held out. *Single hosts* is the mean of up to four: a host holds and uses one.",
    f"* All ways make equally many steps on the same data, in {PASSES} passes at most. The lone host with all tokens "
    f"makes {PEERS} times as many.",
    "* Pairwise and DiLoCo have a warm start. The daemon's defaults are H = 50 and 200 steps of warm start; the small "
    "size has less of both.",
    "* An exchange of pairwise lands one step after it begins. Collectives take no time.",
    "* DiLoCo has alpha 1, mu 0.8 and a plain first step, as on [failures](failures.md). No host fails here, so all "
    "hosts are in the quorum.",
    "* One seed, and one learning rate for all, which was not tuned. DDP might gain from a higher one: its batch is "
    f"{PEERS} times as large.",
    "* Bytes are those that a host received. Minutes are those of the machine, for all hosts together.",
)
