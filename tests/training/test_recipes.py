"""Recipes: each of a pair of scripts is the other and two lines, and two peers of each train one model.

They run as people run them, in processes of their own.
"""

from __future__ import annotations

import difflib
import tempfile
from pathlib import Path

import pytest
from ledger_pair import Pair

from gossipdp.runtime import link as links

RECIPES = Path(__file__).parents[2] / "peers" / "jobs" / "recipes"
EVERY, STEPS = 4, 48


@pytest.mark.parametrize("name", sorted(path.stem.removesuffix("_gossip") for path in RECIPES.glob("*_gossip.py")))
def test_a_script_becomes_a_peer_by_two_lines_at_most(name: str) -> None:
    without, with_gossip = ((RECIPES / f"{name}{end}.py").read_text().splitlines() for end in ("", "_gossip"))
    differences = list(difflib.unified_diff(without, with_gossip, n=0, lineterm=""))[2:]
    changed = [line for line in differences if line[0] in "+-"]
    assert 1 <= len(changed) <= 2, changed
    assert not any("gossip" in line for line in without)
    assert any("attach(" in line or "GossipCallback()" in line for line in changed)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("recipe", "needs", "ranks"),
    [
        ("plain", "", 1),
        ("accumulation", "", 1),
        ("ddp", "", 2),
        ("fsdp", "", 2),
        ("hf_trainer", "transformers.trainer transformers.models.gpt2.modeling_gpt2", 1),
        ("lightning_trainer", "lightning.pytorch", 1),
        ("accelerate_loop", "accelerate", 2),
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
        detaches = "attach(model, optimizer, samples" not in (RECIPES / f"{recipe}_gossip.py").read_text()
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
            assert peer.steps == STEPS and peer.samples == 8 * STEPS
            assert peer.saved_what_it_handed_over() and not peer.seen(links.RankLost)
