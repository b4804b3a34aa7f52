"""A lone peer's daemon is killed while its training process lives: no step is lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gossipdp.runtime.storage.store import Store
from peers.export import export_file, trained
from tests.processes.running import Network, until

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).with_name("training_lone.py")
SETTINGS = "[exchange]\nevery = 50\nwarmup_steps = 0\n"


@pytest.mark.long
def test_daemon_of_a_lone_peer_killed_far_from_its_checkpoint__no_step_is_lost(
    network: Callable[..., Network], tmp_path: Path
) -> None:
    out, stop = tmp_path / "weights.safetensors", tmp_path / "stop"
    [host] = network(1, settings=SETTINGS).hosts
    host.start_supervised([sys.executable, str(SCRIPT), str(out), str(stop)])
    until("it has trained on past its checkpoint", lambda: host.status().get("round", 0) >= 3, [host])
    before = host.status()
    os.kill(host.children()["daemon"], signal.SIGKILL)
    until(
        "the next daemon has its training process again",
        lambda: (
            (status := host.status()).get("incarnation", 0) > before["incarnation"]
            and status["training"] == "attached"
            and status["round"] > before["round"]
        ),
        [host],
    )
    stop.touch()
    assert host.supervisor is not None
    assert host.supervisor.ended() == 0, host.last_words()

    told = json.loads(out.with_suffix(".json").read_text())
    assert told == {"step": told["step"], "lost": 0, "clock": told["step"], "alone": False}
    newest, _ = Store(host.home / "checkpoints").latest()
    assert newest is not None and newest.meta.clock == told["step"], "every step is in the model"
    exported = tmp_path / "anchor.safetensors"
    export_file(trained(newest), exported)
    anchor, weights = load_file(exported), load_file(out)
    for name, tensor in weights.items():
        torch.testing.assert_close(anchor[name], tensor, rtol=1e-6, atol=1e-7)
    assert "took the parameters of the live training process over" in host.text()
