"""Recipes as peers of a real network: two daemons on loopback, a script of `peers/jobs/recipes` on each.

What the daemons keep is exported, loaded as people load it, and must be one trained model.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from peers.jobs import byte_gpt
from tests.processes.running import Host, Network, gossipdp, until

RECIPES = Path(__file__).parents[2] / "peers" / "jobs" / "recipes"
SETTINGS = "[exchange]\nevery = 10\nwarmup_steps = 40\nearly_steps = 100\n"
STEPS = 240
UNTRAINED = 5.5
"""nats per byte"""
AGREE = 0.05
"""nats between two anchors; one may have trained some rounds longer on a busy machine"""


def held_out() -> torch.Tensor:
    return byte_gpt.validation_windows(64, 32)


def loss_of_bytes(host: Host, out: Path, *words: str) -> float:
    export(host, out, *words)
    model = byte_gpt.build_model("0.25M", seed=1)
    found = model.load_state_dict(load_file(out), strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"head.weight", "embedding.weight"}, found
    return byte_gpt.evaluate(model, held_out())


def loss_of_lightning(host: Host, out: Path) -> float:
    return loss_of_bytes(host, out, "--strip-prefix", "gpt.")


def loss_of_transformers(host: Host, out: Path) -> float:
    import transformers

    config = transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=96, n_layer=2, n_head=3)
    transformers.GPT2LMHeadModel(config).save_pretrained(out / "base")
    export(host, out / "model", "--base", str(out / "base"))
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "model").eval()
    with torch.no_grad():
        return float(model(input_ids=held_out(), labels=held_out()).loss)


def export(host: Host, out: Path, *words: str) -> None:
    done = gossipdp("--home", str(host.home), "checkpoint", "export", str(out), *words)
    assert done.returncode == 0, done.stderr


def command(recipe: str, ranks: int, out: Path, short: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    script = [sys.executable, *launcher, str(RECIPES / f"{recipe}_gossip.py"), str(STEPS), str(out)]
    # No framework reports to its maker. Ray's sockets need a short path, so they are in a folder of their own.
    return [
        "env",
        "HF_HUB_OFFLINE=1",
        "CUDA_VISIBLE_DEVICES=",
        f"RAY_TMPDIR={short}",
        "RAY_USAGE_STATS_ENABLED=0",
        *script,
    ]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair
@pytest.mark.parametrize(
    ("recipe", "needs", "ranks", "loss"),
    [
        ("plain", "", 1, loss_of_bytes),
        ("muon", "", 1, loss_of_bytes),
        ("ddp", "", 2, loss_of_bytes),
        ("fsdp", "", 2, loss_of_bytes),
        ("hf_trainer", "transformers", 1, loss_of_transformers),
        ("lightning_trainer", "lightning", 1, loss_of_lightning),
        ("accelerate_loop", "accelerate", 2, loss_of_bytes),
        ("ray_train", "ray", 1, loss_of_bytes),
    ],
)
def test_two_hosts_of_a_recipe_are_one_model_when_exported(
    network: Callable[..., Network],
    tmp_path: Path,
    recipe: str,
    needs: str,
    ranks: int,
    loss: Callable[[Host, Path], float],
) -> None:
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed")
    made = network(2, settings=SETTINGS)
    made.settle_in()
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        for host in made.hosts:
            host.start_daemon()
            until(f"{host.name}'s daemon runs", host.status, made.hosts)
            host.start_training(command(recipe, ranks, tmp_path / f"{host.name}.safetensors", short))
        for host in made.hosts:
            assert host.training is not None
            assert host.training.ended(moves=host.exchanges) == 0, host.last_words()
    exchanges = [host.exchanges() for host in made.hosts]
    losses = []
    for host in made.hosts:
        assert (tmp_path / f"{host.name}.safetensors").stat().st_size > 0
        assert gossipdp("--home", str(host.home), "leave").returncode == 0
        assert host.daemon is not None and host.daemon.ended() == 0, host.last_words()
        losses.append(loss(host, tmp_path / f"{host.name}-exported"))
    print(f"{recipe}, {ranks} ranks: {exchanges} exchanges, {losses[0]:.3f} and {losses[1]:.3f} nats")
    assert min(exchanges) >= 8
    assert abs(losses[0] - losses[1]) <= AGREE
    assert max(losses) < UNTRAINED - 2.0
    for host in made.hosts:
        # Not every traceback counts: on a busy host Ray's own actors complain and go on.
        assert "GD-501" not in host.text() and f'File "{RECIPES.parents[2] / "gossipdp"}' not in host.text()
