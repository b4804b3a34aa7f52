"""`gossipdp join @invite -- python train.py`, where train.py attaches long after its daemon has joined."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.running import Network, until

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).with_name("training_late.py")
SETTINGS = "[exchange]\nevery = 50\nwarmup_steps = 40\nearly_steps = 120\n"


def told(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in out.read_text().split("\n")[:-1]] if out.exists() else []


@pytest.mark.long
def test_training_that_attaches_late__gets_the_newest_model_and_the_other_peer_feels_nothing(
    network: Callable[..., Network], tmp_path: Path
) -> None:
    hosts = network(2, settings=SETTINGS)
    first, second = hosts.hosts
    steps, late = tmp_path / "steps", tmp_path / "late"
    outs = [tmp_path / "first", tmp_path / "second"]
    first.start_supervised([sys.executable, str(SCRIPT), str(outs[0]), "1", str(tmp_path), str(steps)])
    until("the founder writes an invite", (first.home / "invite").exists, [first])
    second.start_supervised(
        [sys.executable, str(SCRIPT), str(outs[1]), "2", str(late), str(steps)], join=f"@{hosts.invite()}"
    )
    until("the second daemon has the model", lambda: second.status().get("state") == "ready", hosts.hosts)
    steps.touch()
    until("the first has trained on", lambda: len(told(outs[0])) > 600, hosts.hosts)
    before = told(outs[0])
    late.touch()
    until("the second has trained", lambda: len(told(outs[1])) > 150, hosts.hosts)

    begun = told(outs[1])[0]
    then = next(line for line in told(outs[0]) if line["clock"] >= begun["clock"] - 150)
    assert begun["error"] < 1.2 * then["error"] < 0.5 * before[0]["error"], "as near as the first was three rounds ago"
    after = [line["error"] for line in told(outs[0])[len(before) :]]
    assert max(after) < 1.05 * before[-1]["error"] + 0.05
    assert "steps old: fetching the newer one, as usual then" in second.text()
