"""The example jobs alone (GOSSIPDP_OFF=1): sizes, data splits, determinism, learning."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from peers.jobs import byte_gpt, digits
from simulations.processes.namespaces.processes import kept_port

BYTE_GPT = ["--threads", "1", "--batch", "4", "--context", "32", "--eval-windows", "8", "--log-every", "5"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    torch.set_num_threads(1)
    for name in ("GOSSIPDP_HOME", "GOSSIPDP_ATTEMPT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def library(root: Path) -> Path:
    """A small standard library: 60 files, and files that must not be read."""
    for n in range(60):
        path = root / f"package_{n % 3}" / f"module_{n}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# module {n}\n" + f"def f_{n}(x):\n    return x + {n}\n" * 20)
    for skipped in ("site-packages/a.py", "package_0/test/b.py", "encodings/c.py", "package_1/__pycache__/d.py"):
        (root / skipped).parent.mkdir(parents=True, exist_ok=True)
        (root / skipped).write_text("skipped = 1\n")
    (root / "notes.txt").write_text("no source")
    return root


# -- byte_gpt: data --------------------------------------------------------------------------------------------


def test_corpus_is_split_by_file_and_no_file_is_on_both_sides(tmp_path: Path) -> None:
    root = library(tmp_path)
    names = byte_gpt.corpus_files(root)
    assert len(names) == 60
    assert names == sorted(names)
    corpus = byte_gpt.load_corpus(root)
    for held, text in ((False, corpus.train), (True, corpus.validation)):
        parts = bytes(text.tolist()).split(b"\0")
        assert parts == [(root / name).read_bytes() for name in names if byte_gpt.is_validation(name) is held]
    assert 0 < sum(map(byte_gpt.is_validation, names)) < 20


@pytest.mark.parametrize(
    ("name", "held"),
    [("argparse.py", False), ("asyncio/base_events.py", False), ("json/decoder.py", False), ("typing.py", False)],
)
def test_side_of_a_file_depends_on_its_name_alone(name: str, held: bool) -> None:
    assert byte_gpt.is_validation(name) is held


def test_standard_library_gives_enough_text_of_both_kinds() -> None:
    corpus = byte_gpt.load_corpus()
    assert corpus.train.dtype == torch.uint8
    assert len(corpus.train) > 4_000_000
    assert 0.04 < len(corpus.validation) / len(corpus.train) < 0.3


def test_validation_windows_are_fixed_and_inside_the_text() -> None:
    windows = byte_gpt.validation_windows(50, 64)
    assert windows.shape == (50, 65)
    assert torch.equal(windows, byte_gpt.validation_windows(50, 64))
    text = byte_gpt.load_corpus().validation
    assert windows[0].tolist() == text[:65].tolist()
    assert windows[-1].tolist() == text[-65:].tolist()


def test_every_peer_rank_and_restart_reads_other_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(seed: int | None, rank: int, home: str = "", attempt: str = "0") -> int:
        monkeypatch.setenv("GOSSIPDP_HOME", home)
        monkeypatch.setenv("GOSSIPDP_ATTEMPT", attempt)
        return int(torch.randint(2**40, (), generator=byte_gpt.data_generator(seed, rank)))

    drawn = [
        first(None, 0, "/peers/a"), first(None, 0, "/peers/b"), first(None, 1, "/peers/a"),
        first(None, 0, "/peers/a", "1"), first(0, 0), first(1, 0), first(0, 1),
    ]  # fmt: skip
    assert len(set(drawn)) == len(drawn)
    assert first(0, 0, "/peers/a") == first(0, 0, "/peers/b"), "a seed that is named decides"
    assert first(None, 0, "/peers/a") == drawn[0]


# -- byte_gpt: model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "parameters"), [("0.25M", 246_240), ("1M", 1_017_216), ("3M", 3_213_568), ("11M", 10_720_128)]
)
def test_sizes_have_the_parameters_they_say(size: str, parameters: int) -> None:
    model = byte_gpt.build_model(size)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert abs(parameters / (float(size[:-1]) * 1e6) - 1) < 0.08
    assert not list(model.buffers())


def test_logits_have_the_shape_of_the_bytes_and_start_near_uniform() -> None:
    model = byte_gpt.build_model("0.25M")
    windows = torch.randint(256, (3, 41), generator=torch.Generator().manual_seed(0))
    assert model(windows[:, :-1]).shape == (3, 40, 256)
    assert byte_gpt.evaluate(model, windows) == pytest.approx(torch.tensor(256.0).log().item(), abs=0.1)


def test_attention_is_causal() -> None:
    model = byte_gpt.build_model("0.25M")
    tokens = torch.randint(256, (1, 24), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 12] += 1
    with torch.inference_mode():
        difference = (model(tokens) - model(changed % 256)).abs().amax(-1)[0]
    assert difference[:12].max() == 0
    assert difference[12:].min() > 0


def test_rotation_makes_scores_depend_on_distance_alone() -> None:
    """Su et al. 2021, equation 16."""
    q, k = torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(2)).unbind()
    cos, sin = byte_gpt.rotations(20, 32, torch.device("cpu"))

    def score(at: int, of: int) -> torch.Tensor:
        return (byte_gpt.rotate(q, cos[at], sin[at]) * byte_gpt.rotate(k, cos[of], sin[of])).sum()

    torch.testing.assert_close(score(7, 3), score(19, 15))
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_same_seed_gives_the_same_weights_and_disturbs_no_other_randomness() -> None:
    torch.manual_seed(5)
    one = byte_gpt.build_model("0.25M", seed=3).state_dict()
    two = byte_gpt.build_model("0.25M", seed=3).state_dict()
    other = byte_gpt.build_model("0.25M", seed=4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_evaluation_is_the_mean_over_windows_whatever_the_batch() -> None:
    model = byte_gpt.build_model("0.25M").train()
    windows = byte_gpt.validation_windows(7, 16)
    with torch.inference_mode():
        each = [F.cross_entropy(model(w[None, :-1])[0], w[1:]).item() for w in windows]
    assert byte_gpt.evaluate(model, windows, batch=3) == pytest.approx(sum(each) / 7, rel=1e-5)
    assert model.training


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    rates = [byte_gpt.learning_rate(step, 110, 10, 1.0) for step in range(111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert rates[110] == pytest.approx(0.0, abs=1e-12)
    assert rates[10:] == sorted(rates[10:], reverse=True)


# -- byte_gpt: loop --------------------------------------------------------------------------------------------


def test_run_learns_logs_saves_and_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    for name in ("one", "two"):
        files = ["--log", str(tmp_path / f"{name}.jsonl"), "--save", str(tmp_path / f"{name}.safetensors")]
        byte_gpt.main([*BYTE_GPT, "--steps", "40", "--eval-every", "20", "--data-seed", "7", *files])
        printed = json.loads(capsys.readouterr().out)
        records = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        losses.append([(record["step"], record["loss"]) for record in records if "loss" in record])
        assert [record["step"] for record in records if "val" in record] == [20, 40]
        assert records[-1]["val"] == printed["validation_loss"]
        assert records[-2]["tokens"] == 40 * 4 * 32
        assert printed["steps"] == 40
        assert printed["stall_share"] == printed["stall_seconds"] == 0.0
    assert [step for step, _ in losses[0]] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert losses[0] == losses[1]
    assert losses[0][-1][1] < losses[0][0][1] - 0.4
    one, two = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    model = byte_gpt.build_model("0.25M")
    model.load_state_dict(one)
    assert byte_gpt.evaluate(model, byte_gpt.validation_windows(8, 32)) == printed["validation_loss"]


def test_bfloat16_keeps_the_weights_in_fp32(tmp_path: Path) -> None:
    saved = tmp_path / "w.safetensors"
    options = byte_gpt.settings([*BYTE_GPT, "--steps", "3", "--dtype", "bf16", "--device", "cpu", "--save", str(saved)])
    assert byte_gpt.train(options)["validation_loss"] < 6
    assert {tensor.dtype for tensor in load_file(saved).values()} == {torch.float32}


@pytest.mark.processes
def test_two_ranks_of_one_host_train_together_and_rank_0_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = kept_port()
    port = str(kept.getsockname()[1])
    ranks = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    arguments = [*BYTE_GPT, "--steps", "4", "--eval-every", "2"]
    arguments += ["--log-file", str(tmp_path / "log"), "--save", str(tmp_path / "weights")]
    command = [sys.executable, "-m", "peers.jobs.byte_gpt", *arguments]
    environment = os.environ | {"RANK": "1", "LOCAL_RANK": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as other:
        byte_gpt.main(arguments)
        assert other.communicate()[0] == b""
    kept.close()
    assert other.returncode == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4, 4]
    assert records[1]["tokens"] == 2 * 4 * 4 * 32
    assert load_file(tmp_path / "weights")


def test_nobody_but_torch_holds_the_group_when_it_is_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If DDP's reducer is the last owner of the group, one of two ranks sometimes hangs at its end."""
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    join, leave = dist.init_process_group, dist.destroy_process_group
    monkeypatch.setattr(
        dist, "init_process_group", lambda _: join("gloo", f"file://{tmp_path}/met", world_size=1, rank=0)
    )
    left: list[bool] = []

    def last() -> None:
        gc.collect()
        left.append(any(type(each) is DistributedDataParallel for each in gc.get_objects()))
        leave()

    monkeypatch.setattr(dist, "destroy_process_group", last)
    byte_gpt.train(byte_gpt.settings([*BYTE_GPT, "--steps", "1"]))
    assert left == [False]


# -- digits ----------------------------------------------------------------------------------------------------


def test_digits_are_split_into_disjoint_shares() -> None:
    images, test = digits.load_images()
    assert (len(images.labels), len(test.labels)) == (1437, 360)
    shares = [digits.share(images, rank, 4) for rank in range(4)]
    assert sum(len(part.labels) for part in shares) == 1437
    together = torch.cat([part.pixels for part in shares])
    assert torch.equal(together.sum(0), images.pixels.sum(0))


def test_digits_are_read_after_a_few_hundred_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits.main(["--steps", "300", "--log", str(tmp_path / "log")])
    printed = json.loads(capsys.readouterr().out)
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [record["step"] for record in records] == [50, 100, 150, 200, 250, 300]
    assert records[-1]["accuracy"] == printed["accuracy"] > 0.93
    assert records[-1]["loss"] < records[0]["loss"]


def test_digits_start_from_the_same_weights_on_every_peer() -> None:
    one, two = digits.build_model(), digits.build_model()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_digits_refuse_a_rank_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        digits.settings(["--peers", "2", "--rank", "2"])
    assert "--rank 2 is not one of --peers 2" in capsys.readouterr().err
