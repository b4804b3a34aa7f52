"""The demo's picture: validation loss of every replica against its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw"]


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
    for name in [*(f"peer{number}" for number in range(1, summary["peers"] + 1)), "alone"]:
        lone = name == "alone"
        steps, losses = _validations(out / f"{name}.jsonl")
        label = "trained alone" if lone else name
        axes.plot(steps, losses, "o-", label=label, color="black" if lone else None, markersize=3, linewidth=1.3)
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
