"""Recipes as peers of a real network: two daemons on loopback, a script of `peers/jobs/recipes` on each.

What the daemons keep after `gossipdp finish` is exported, loaded as people load it, and must be one trained model, no
worse than that of the script without gossip.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from peers.jobs import byte_gpt
from peers.jobs.images import load_images
from tests.processes.running import Host, Network, Process, environment, gossipdp, until

pytestmark = [pytest.mark.processes, pytest.mark.recipes]

RECIPES = Path(__file__).parents[2] / "peers" / "jobs" / "recipes"
SETTINGS = "[exchange]\nevery = 10\nwarmup_steps = 40\nearly_steps = 100\n"
OFTEN = "[exchange]\nevery = 4\nwarmup_steps = 16\nearly_steps = 40\n"
"""for few steps that are long"""
UNTRAINED = 5.5
"""nats per byte"""
AGREE = 0.005
"""difference of the losses of two hosts' final models, which are equal to 1e-3 of their usual distance"""
WORSE = 0.15
"""by how much the final model may have a higher loss than that of one script alone, with half of the samples: a host
makes some of its steps before the other has come"""


# -- losses of saved models -----------------------------------------------------------------------------------------


def held_out() -> torch.Tensor:
    return byte_gpt.validation_windows(64, 32)


def of_bytes(saved: Path) -> float:
    model = byte_gpt.build_model("0.25M", seed=1)
    tensors = {name.removeprefix("gpt."): tensor for name, tensor in load_file(saved).items()}  # Lightning's module
    found = model.load_state_dict(tensors, strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"head.weight", "embedding.weight"}, found
    return byte_gpt.evaluate(model, held_out())


def of_transformers(saved: Path) -> float:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(saved).eval()
    with torch.no_grad():
        return float(model(input_ids=held_out(), labels=held_out()).loss)


def of_adapter(saved: Path) -> float:
    """Of PEFT's adapter on the base that all recipes make."""
    import peft
    import transformers

    from peers.jobs.recipes import tiny

    base = transformers.AutoModelForCausalLM.from_pretrained(tiny.base_model())
    model = peft.PeftModel.from_pretrained(base, saved).eval()
    tokens = byte_gpt.validation_windows(64, 63)
    with torch.no_grad():
        return float(model(input_ids=tokens, labels=tokens).loss)


def of_letters(saved: Path) -> float:
    """Minus the logarithm of how probable a small letter is, which is rewarded."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    small = torch.tensor(tokenizer("abcdefghijklmnopqrstuvwxyz")["input_ids"])
    model = transformers.AutoModelForCausalLM.from_pretrained(saved).eval()
    with torch.no_grad():
        chances = model(input_ids=byte_gpt.validation_windows(64, 15)).logits[:, -1].softmax(-1)
    return -float(chances[:, small].sum(-1).mean().log())


def of_embeddings(saved: Path) -> float:
    """Of finding the second part of a piece among those of 64 pieces, by the first part."""
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(saved), device="cpu")
    pieces = [bytes(window.tolist()).decode(errors="replace") for window in byte_gpt.validation_windows(64, 71)]
    first, second = (
        model.encode(part, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False)
        for part in ([piece[:48] for piece in pieces], [piece[24:] for piece in pieces])
    )
    return float(torch.nn.functional.cross_entropy(20 * first @ second.T, torch.arange(64)))


def of_diffusers(saved: Path) -> float:
    """Mean square error of the noise that the UNet predicts, of the held-out images at fixed times."""
    from diffusers import DDPMPipeline

    pipeline = DDPMPipeline.from_pretrained(saved)
    clean = load_images()[1].pixels.view(-1, 1, 8, 8) * 2 - 1
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    times = torch.arange(len(clean)) * 1000 // len(clean)
    with torch.no_grad():
        predicted = pipeline.unet(pipeline.scheduler.add_noise(clean, noise, times), times).sample
    return float((predicted - noise).square().mean())


def of_timm(saved: Path) -> float:
    import timm

    model = timm.create_model("test_resnet", num_classes=10, in_chans=1).eval()
    model.load_state_dict(load_file(saved))
    images = load_images()[1]
    pixels = images.pixels.view(-1, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(pixels), images.labels))


def of_cart_pole(saved: Path) -> float:
    """The share of 500 steps that the likeliest actions miss, on average over ten episodes."""
    import gymnasium

    weights, balanced = load_file(saved), 0.0
    pole = gymnasium.make("CartPole-v1")
    for seed in range(10):
        state, ended = torch.from_numpy(pole.reset(seed=seed)[0]), False
        while not ended:
            for layer in (0, 2):
                state = (weights[f"actor.{layer}.weight"] @ state + weights[f"actor.{layer}.bias"]).tanh()
            action = (weights["actor.4.weight"] @ state + weights["actor.4.bias"]).argmax()
            state, reward, fell, cut, _ = pole.step(int(action))
            state, ended, balanced = torch.from_numpy(state), fell or cut, balanced + float(reward)
    return 1.0 - balanced / 5000


# -- the recipes ----------------------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """A pair of scripts, and how to judge what they train."""

    loss: Callable[[Path], float]
    """of a model, as the script saves it and as `checkpoint export` writes it: a file, or a directory of
    `save_pretrained`"""
    needs: str = ""
    """the framework, as it is imported"""
    ranks: int = 1
    steps: int = 240
    settings: str = SETTINGS
    trained: float = UNTRAINED - 2.0
    """a loss below this one"""


KINDS = {
    "plain": Recipe(of_bytes),
    "accumulation": Recipe(of_bytes),
    "resume": Recipe(of_bytes),
    "muon": Recipe(of_bytes),
    "ddp": Recipe(of_bytes, ranks=2),
    "fsdp": Recipe(of_bytes, ranks=2),
    "hf_trainer": Recipe(of_transformers, "transformers"),
    "lightning_trainer": Recipe(of_bytes, "lightning"),
    "accelerate_loop": Recipe(of_bytes, "accelerate", ranks=2),
    "ray_train": Recipe(of_bytes, "ray"),
    "lora_loop": Recipe(of_adapter, "peft", steps=120, settings=OFTEN, trained=4.5),
    "lora_trainer": Recipe(of_adapter, "peft", steps=120, settings=OFTEN, trained=4.5),
    "trl_sft": Recipe(of_adapter, "trl", steps=120, settings=OFTEN, trained=4.5),
    "trl_grpo": Recipe(of_letters, "trl", steps=120, settings=OFTEN, trained=0.7),
    "sentence_transformer": Recipe(of_embeddings, "sentence_transformers", trained=2.5),
    "nanogpt": Recipe(of_bytes),
    "diffusers_unconditional": Recipe(of_diffusers, "diffusers", trained=0.3),
    "timm_images": Recipe(of_timm, "timm", trained=0.7),
    "ppo": Recipe(of_cart_pole, "gymnasium", steps=960, trained=0.3),
}


def test_every_recipe_is_run_with_two_peers() -> None:
    assert set(KINDS) == {path.stem.removesuffix("_gossip") for path in RECIPES.glob("*_gossip.py")}


def command(script: str, recipe: Recipe, out: Path) -> list[str]:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(recipe.ranks)]
    launcher = ranks if recipe.ranks > 1 else []
    return [sys.executable, *launcher, str(RECIPES / f"{script}.py"), str(recipe.steps), str(out)]


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    """No framework reports to its maker or loads a model. Ray's sockets are in a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        ray = {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"}
        yield {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **ray}


def alone(name: str, recipe: Recipe, directory: Path, variables: dict[str, str]) -> float:
    """Loss of the model that the script without gossip saves."""
    out, log = directory / "alone", directory / "alone.log"
    process = Process(command(name, recipe, out), log, environment(**variables))
    try:
        assert process.ended(moves=lambda: os.path.getsize(log)) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
    return recipe.loss(out)


def final(host: Host, recipe: Recipe, saved: Path, out: Path) -> float:
    """Loss of the host's final model, exported on the base that its script saved, if that is a directory."""
    assert host.daemon is not None and host.daemon.ended() == 0, host.last_words()
    report = json.loads((host.home / "final" / "final.json").read_text())
    assert len(report["peers"]) == 2 and report["this_host"]["agrees"], report
    base = ["--base", str(saved)] if saved.is_dir() else []
    done = gossipdp("--home", str(host.home), "checkpoint", "export", str(out), *base)
    assert done.returncode == 0, done.stderr
    return recipe.loss(out)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair
@pytest.mark.parametrize("name", KINDS)
def test_two_hosts_of_a_recipe_end_with_one_model_no_worse_than_alone(
    network: Callable[..., Network], tmp_path: Path, variables: dict[str, str], name: str
) -> None:
    recipe = KINDS[name]
    if recipe.needs and find_spec(recipe.needs) is None:
        pytest.skip(f"{recipe.needs} is not installed")
    made = network(2, settings=recipe.settings)
    made.settle_in()
    for host in made.hosts:
        host.start_daemon()
        until(f"{host.name}'s daemon runs", host.status, made.hosts)
        host.start_training(command(f"{name}_gossip", recipe, tmp_path / host.name), **variables)
    for host in made.hosts:
        assert host.training is not None
        assert host.training.ended(moves=host.exchanges) == 0, host.last_words()
    exchanges = [host.exchanges() for host in made.hosts]
    status = made.founder.status()
    assert gossipdp("--home", str(made.founder.home), "finish").returncode == 0, made.founder.last_words()
    losses = [final(host, recipe, tmp_path / host.name, tmp_path / f"{host.name}-exported") for host in made.hosts]
    without = alone(name, recipe, tmp_path, variables)
    told = f"{exchanges} exchanges, final {losses[0]:.3f} and {losses[1]:.3f}, alone {without:.3f}"
    print(f"\n{name}, {recipe.ranks} ranks, {recipe.steps} steps: {told}")
    assert min(exchanges) >= 4
    if (adapter := tmp_path / made.founder.name / "adapter_model.safetensors").exists():
        assert status["parameters"] == sum(each.numel() for each in load_file(adapter).values())
        assert status["exchanged_bytes"] < status["exchanged_parameters"] <= status["parameters"] * exchanges[0]
    assert abs(losses[0] - losses[1]) <= AGREE
    assert max(losses) < recipe.trained
    assert max(losses) < without + WORSE
    for host in made.hosts:
        # Not every traceback counts: on a busy host Ray's own actors complain and go on.
        assert "GD-501" not in host.text() and f'File "{RECIPES.parents[2] / "gossipdp"}' not in host.text()
