"""Scripts that end by the network's clock: killed and started again, they go on to the same end."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gossipdp.runtime import link as links
from gossipdp.training.optimizer_state.state_file import Counts
from simulations.processes.progress import until
from tests.training.ledger_pair import ROOT, Peer

RECIPES = ROOT / "peers" / "jobs" / "recipes"
STEPS = 2000


@contextmanager
def running(peer: Peer, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = (RECIPES / "train.py").read_text()
    assert script.count("STEPS, BATCH = 100_000,") == 1
    (folder / "train.py").write_text(script.replace("STEPS, BATCH = 100_000,", f"STEPS, BATCH = {STEPS},"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GOSSIPDP_")}
    kept |= {"GOSSIPDP_HOME": str(peer.directory), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(peer.logs[0], "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "train.py"], cwd=folder, env=kept | {"CUDA_VISIBLE_DEVICES": ""}, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def counts(folder: Path) -> Counts:
    import msgspec
    from safetensors import safe_open

    with safe_open(folder / "state.safetensors", "pt") as file:
        return msgspec.json.decode(file.metadata()["gossipdp"], type=Counts)


@pytest.mark.processes
def test_the_whole_script_survives_a_kill_and_ends_at_the_networks_step(tmp_path: Path) -> None:
    peer, saved = Peer(tmp_path / "home", 1, 50), tmp_path / "state.safetensors"
    peer.daemon.has_model = True

    def pumped_until(what: str, condition: Callable[[], bool]) -> None:
        until(what, condition, [peer], moves=lambda: peer.steps, meanwhile=lambda: peer.daemon.pump(0.01))

    with running(peer, tmp_path) as process:
        pumped_until("it saves or ends", lambda: saved.exists() or process.poll() is not None)
        assert process.poll() is None, peer.said
    peer.daemon.pump()
    before, began = counts(tmp_path), peer.daemon.clock
    assert 100 <= before.steps <= before.clock < STEPS and began >= 50
    with running(peer, tmp_path) as process:
        pumped_until("it ends", lambda: process.poll() is not None)
        assert process.wait() == 0, peer.said
    peer.daemon.pump()
    after = counts(tmp_path)
    assert after.steps > before.steps and after.steps % 100 == 0 and after.samples == 64 * after.steps
    assert peer.daemon.clock == STEPS and peer.seen(links.Detached)[-1] == links.Detached("it has detached", left=True)
    reported = [event for event in peer.seen(links.Submitted) if isinstance(event, links.Submitted)][-1]
    assert reported.loss < 3.5 and reported.eval_loss < 3.5, "an untrained model has 5.5"
    with running(peer, tmp_path) as process:
        pumped_until("it ends", lambda: process.poll() is not None)
        assert process.wait() == 0, "one that is started after the end has nothing to do"
    peer.close()
