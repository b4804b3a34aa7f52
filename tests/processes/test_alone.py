"""A lone peer with a real daemon is the bare optimizer bit for bit, and loses no step when its daemon is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gossipdp.runtime.storage.store import Store
from peers.export import export_file, trained
from tests.processes.running import Network, environment, until

pytestmark = pytest.mark.processes

EVERY, STEPS = 7, 60
SETTINGS = f"[exchange]\nevery = {EVERY}\nwarmup_steps = 0\n"


def byte_gpt(out: Path) -> list[str]:
    command = [sys.executable, "-m", "peers.jobs.byte_gpt", "--size", "0.25M", "--steps", str(STEPS), "--batch", "2"]
    command += ["--context", "32", "--threads", "1", "--data-seed", "3", "--eval-every", "0", "--eval-windows", "2"]
    return [*command, "--save", str(out)]


@pytest.mark.long
def test_lone_peer_with_a_real_daemon_trains_bit_for_bit_as_without(
    network: Callable[..., Network], tmp_path: Path
) -> None:
    with_peer, without = tmp_path / "with.safetensors", tmp_path / "without.safetensors"
    [host] = network(1, settings=SETTINGS).hosts
    bare = subprocess.Popen(byte_gpt(without), env=environment(GOSSIPDP_OFF="1"), stdout=subprocess.PIPE, text=True)
    try:
        supervisor = host.start_supervised(byte_gpt(with_peer))
        assert supervisor.ended() == 0, host.last_words()
        said, _ = bare.communicate()
    finally:
        bare.kill()
        bare.wait()
    assert bare.returncode == 0

    one, other = load_file(with_peer), load_file(without)
    assert list(one) == list(other) and sum(tensor.numel() for tensor in one.values()) > 240_000
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    # Both read the same windows and end with the same loss, to the last digit.
    summaries = [json.loads(line) for line in (*host.text().splitlines(), said) if line.startswith("{")]
    assert len({summary["validation_loss"] for summary in summaries}) == 1 and len(summaries) == 2

    # It was part of a network: it made outer steps, and the anchor is where training ended.
    newest, _ = Store(host.home / "checkpoints").latest()
    assert newest is not None and newest.meta.steps == STEPS and newest.meta.round >= STEPS // EVERY, newest
    exported = tmp_path / "anchor.safetensors"
    export_file(trained(newest), exported)
    anchor = load_file(exported)
    assert set(anchor) == set(one)
    for name, tensor in anchor.items():
        torch.testing.assert_close(tensor, one[name], rtol=1e-6, atol=1e-7)


SCRIPT = Path(__file__).with_name("training_lone.py")


@pytest.mark.long
def test_daemon_of_a_lone_peer_killed_far_from_its_checkpoint__no_step_is_lost(
    network: Callable[..., Network], tmp_path: Path
) -> None:
    out, stop = tmp_path / "weights.safetensors", tmp_path / "stop"
    [host] = network(1, settings="[exchange]\nevery = 50\nwarmup_steps = 0\n").hosts
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
    assert "took over the parameters of the live training process" in host.text()
