"""Recipes: each of a pair of scripts is the other and two lines, and two peers of each train one model.

They run as people run them, in processes of their own; some by the launcher of their framework.
"""

import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gossipdp.runtime import link as links
from simulations.processes.progress import until
from tests.training.ledger_pair import ROOT, Pair, Peer

RECIPES = Path(__file__).parents[3] / "peers" / "jobs" / "recipes"
EVERY, STEPS = 4, 48
FURTHER = {"diffusers_unconditional": 5, "timm_images": 3, "nanogpt": 4, "ppo": 3}
"""lines with gossip that differ, of scripts with a schedule or an average that follows the network's clock"""


@pytest.mark.parametrize("name", sorted(path.stem.removesuffix("_gossip") for path in RECIPES.glob("*_gossip.py")))
def test_a_script_becomes_a_peer_by_two_lines(name: str) -> None:
    without, with_gossip = ((RECIPES / f"{name}{end}.py").read_text().splitlines() for end in ("", "_gossip"))
    differences = list(difflib.unified_diff(without, with_gossip, n=0, lineterm=""))[2:]
    changed = [line for line in differences if line[0] in "+-"]
    if name == "resume":
        # A plain script loads and saves part by part, and counts its own steps.
        added = [line for line in changed if line[0] == "+"]
        assert len(added) <= 7 and len(added) < len(changed) - len(added), changed
    elif name in FURTHER:
        assert len([line for line in changed if line[0] == "+"]) == FURTHER[name], changed
    else:
        assert 1 <= len(changed) <= 2, changed
    assert not any("gossip" in line for line in without)
    assert any("attach(" in line or "GossipCallback()" in line for line in changed)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("recipe", "needs", "ranks"),
    [
        ("plain", "", 1),
        ("resume", "", 1),
        pytest.param("muon", "", 1, marks=pytest.mark.long),
        pytest.param("accumulation", "", 1, marks=pytest.mark.long),
        pytest.param("ddp", "", 2, marks=pytest.mark.long),
        pytest.param(
            "hf_trainer", "transformers.trainer transformers.models.gpt2.modeling_gpt2", 1, marks=pytest.mark.long
        ),
        pytest.param("fsdp", "", 2, marks=pytest.mark.long),
        pytest.param("lightning_trainer", "lightning.pytorch", 1, marks=pytest.mark.long),
        pytest.param("accelerate_loop", "accelerate", 2, marks=pytest.mark.long),
        pytest.param("hf_trainer", "transformers.trainer", 2, marks=pytest.mark.long),
        pytest.param("accelerate_loop", "accelerate", 1, marks=pytest.mark.long),
        pytest.param("ray_train", "ray.train.torch", 1, marks=pytest.mark.long),  # it starts its two workers itself
    ],
)
def test_two_peers_of_a_recipe_train_one_model(tmp_path: Path, recipe: str, needs: str, ranks: int) -> None:
    if needs:
        pytest.importorskip(needs.partition(".")[0], reason=f"{needs.partition('.')[0]} is not installed")
    with tempfile.TemporaryDirectory(prefix="ray") as short, Pair(tmp_path, ranks=ranks, every=EVERY) as pair:
        # Ray's sockets lie in its own folder, and a socket's path is short.
        settings = {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"} if recipe == "ray_train" else {}
        pair.train(RECIPES / f"{recipe}_gossip.py", STEPS, needs.split(), settings)
        print(f"{recipe}, {ranks} ranks: {pair.exchanges} exchanges, {pair.apart():.3f} of the way apart")
        assert pair.exchanges >= 5
        assert pair.apart() < 0.35, "alone it is 0.62 to 0.71"
        detaches = "gossipdp.attach(model, " not in (RECIPES / f"{recipe}_gossip.py").read_text()
        per_step = 8 * ranks if recipe in ("hf_trainer", "accelerate_loop") else 8
        for peer in pair.peers:
            assert peer.daemon.drained >= 4
            assert peer.samples == per_step * peer.steps, "all ranks' samples, of every accumulated batch"
            assert STEPS // 2 <= peer.steps <= STEPS, "a script that just ends keeps those after its last snapshot"
            if detaches or recipe == "ray_train":
                assert peer.steps == STEPS and peer.saved_what_it_handed_over()
            assert not peer.seen(links.RankLost)


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "imports"),
    [("accelerate", "accelerate"), ("lightning", "lightning.pytorch"), ("transformers", "transformers.trainer")],
)
def test_two_peers_whose_framework_shards_the_model_train_one(tmp_path: Path, framework: str, imports: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    script, settings = Path(__file__).with_name("sharded_framework.py"), {"FRAMEWORK": framework}
    with Pair(tmp_path, ranks=2, every=EVERY) as pair:
        pair.train(script, STEPS, [imports], settings | {"ACCELERATE_USE_CPU": "1"})
        print(f"{framework}, 2 ranks: {pair.exchanges} exchanges, {pair.apart():.3f} of the way apart")
        assert pair.exchanges >= 5
        assert pair.apart() < 0.35, "alone it is 0.62 to 0.71"
        for peer in pair.peers:
            # After the last snapshot, which a busy host delays, no rank of a sharded group can hand over steps alone.
            assert STEPS // 2 <= peer.steps <= STEPS and peer.samples == 8 * peer.steps
            assert peer.steps < STEPS or peer.saved_what_it_handed_over()
            assert not peer.seen(links.RankLost)


LAUNCHED = {
    # Without mpirun, `accelerate launch --cpu` starts one process, with any settings.
    "accelerate": "-m accelerate.commands.launch --multi_gpu --num_processes=2 --num_machines=1 --mixed_precision=no"
    f" --dynamo_backend=no --main_process_port=0 {RECIPES / 'accelerate_loop_gossip.py'}",
    # Started once, as any script; it starts the other rank itself.
    "lightning": str(Path(__file__).with_name("lightning_ddp.py")),
}
"""what follows `python`"""


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.parametrize("framework", LAUNCHED)
def test_two_ranks_that_their_framework_launches_are_one_peer(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    peer = Peer(tmp_path / "home", 2, EVERY)
    peer.daemon.has_model = True
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GOSSIPDP_", "WORLD_SIZE"))}
    kept |= {"GOSSIPDP_HOME": str(peer.directory), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    kept |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "1"}
    with open(peer.logs[0], "wb") as log:
        command = [sys.executable, *LAUNCHED[framework].split(), str(STEPS), str(peer.out)]
        process = subprocess.Popen(command, env=kept, cwd=tmp_path, stdout=log, stderr=log)
        try:
            until(
                "the ranks end",
                lambda: process.poll() is not None,
                [peer],
                moves=lambda: peer.steps,
                meanwhile=lambda: peer.daemon.pump(0.01),
            )
        finally:
            process.terminate()
            code = process.wait()
    peer.daemon.pump()
    assert code == 0, peer.said
    assert peer.steps == STEPS and peer.samples == 2 * 8 * STEPS, "of both ranks"
    assert peer.saved_what_it_handed_over() and not peer.seen(links.RankLost)
    peer.close()
