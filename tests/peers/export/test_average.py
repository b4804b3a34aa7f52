"""The mean of checkpoints of several homes, by the command and by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import peers.cli
from gossipdp.errors import MismatchError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage import checkpoint as checkpoints
from gossipdp.runtime.storage.store import Store
from peers import export
from peers.average import Averaged
from tests.peers.export.models import base_of, meta

SCHEMA = Schema.of([("layer.weight", (4, 3), "float32", "parameter"), ("mean", (3,), "float32", "buffer")])
NUMBERS = np.random.default_rng(3).standard_normal((3, SCHEMA.size)).astype(np.float32)


def home(path: Path, *values: np.ndarray, schema: Schema = SCHEMA, **more: np.ndarray) -> Path:
    """A home with one checkpoint for each of `values`."""
    for anchor in values:
        Store(path / "checkpoints").save({"anchor": anchor, **more}, meta(schema.digest.hex()), schema.to_bytes())
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.delenv("GOSSIPDP_HOME", raising=False)

    def command(*words: str | Path) -> tuple[int, str, str]:
        code = peers.cli.main(["checkpoint", "export", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def test_newest_checkpoints_of_all_homes_are_averaged(run: Callable[..., Any], tmp_path: Path) -> None:
    homes = [home(tmp_path / f"h{n}", np.zeros(SCHEMA.size, np.float32), NUMBERS[n]) for n in range(3)]
    code, out, _ = run("--average", *homes, tmp_path / "mean.safetensors")
    assert code == 0 and out.endswith(f"wrote {tmp_path / 'mean.safetensors'}: 2 tensors of the mean of 3 homes\n")
    assert out.startswith(f"{homes[0]}: round 7, clock 50\n")
    found = load_file(tmp_path / "mean.safetensors")
    expected = NUMBERS.astype(np.float64).mean(0)
    assert np.abs(found["layer.weight"].ravel() - expected[:12]).max() < 1e-7
    buffer = SCHEMA.entries[1]
    assert np.abs(found["mean"] - expected[buffer.offset : buffer.stop]).max() < 1e-7


def test_on_a_base_the_mean_is_a_whole_model(run: Callable[..., Any], tmp_path: Path) -> None:
    homes = [home(tmp_path / f"h{n}", NUMBERS[n]) for n in range(2)]
    tensors = {"layer.weight": np.zeros((4, 3), np.float32), "mean": np.zeros(3, np.float32)}
    base = base_of(tmp_path / "base", tensors)
    code, out, _ = run("--average", *homes, tmp_path / "out", "--base", base)
    assert code == 0 and "2 tensors of the mean of 2 homes" in out
    found = load_file(tmp_path / "out" / "model.safetensors")["layer.weight"].ravel()
    assert np.abs(found - NUMBERS[:2, :12].mean(0)).max() < 1e-6


def test_pieces_are_averaged_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PIECE", 16)
    parts = [Store(home(tmp_path / f"h{n}", NUMBERS[n]) / "checkpoints").latest()[0] for n in range(3)]
    mean = Averaged([part for part in parts if part is not None])
    tensor = export.trained(mean)["layer.weight"]
    found = np.concatenate([np.frombuffer(memoryview(piece), np.float32) for piece in tensor.contents()])
    assert np.abs(found - NUMBERS[:, :12].astype(np.float64).mean(0)).max() < 1e-7


def test_mean_is_of_the_models_without_lookahead__one_of_an_earlier_version_as_it_is(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    more = {"momentum": NUMBERS[2], "lookahead": np.array([0.5, 0.0], np.float32)}
    homes = [home(tmp_path / "new", NUMBERS[0], **more), home(tmp_path / "old", NUMBERS[1], momentum=NUMBERS[2])]
    assert run("--average", *homes, tmp_path / "mean.safetensors")[0] == 0
    found = load_file(tmp_path / "mean.safetensors")
    expected = (NUMBERS[0] + 0.5 * NUMBERS[2] + NUMBERS[1]) / 2.0
    assert np.abs(found["layer.weight"].ravel() - expected[:12]).max() < 1e-6
    buffer, mean = SCHEMA.entries[1], NUMBERS[:2].mean(0)
    assert np.abs(found["mean"] - mean[buffer.offset : buffer.stop]).max() < 1e-6


def test_another_model_is_gd_301_and_names_the_first_difference(run: Callable[..., Any], tmp_path: Path) -> None:
    other = Schema.of([("layer.weight", (5, 3), "float32", "parameter")])
    homes = [home(tmp_path / "a", NUMBERS[0]), home(tmp_path / "b", np.zeros(other.size, np.float32), schema=other)]
    code, _, err = run("--average", *homes, tmp_path / "out")
    assert code == 6 and err.startswith("GD-301 ") and "layer.weight" in err and str(homes[1]) in err
    assert not (tmp_path / "out").exists()


def test_buffers_of_different_founders_are_gd_301(tmp_path: Path) -> None:
    parts = []
    for number in (1, 2):
        reference = np.full(8, number, np.uint8)
        store = Store(home(tmp_path / f"h{number}", NUMBERS[0], reference=reference) / "checkpoints")
        found, _ = store.latest()
        assert found is not None
        parts.append(found)
    Averaged([parts[0], parts[0]])
    with pytest.raises(MismatchError, match="different founders"):
        Averaged(parts)


def test_words_that_make_no_average_are_a_usage_error(run: Callable[..., Any], tmp_path: Path) -> None:
    one = home(tmp_path / "a", NUMBERS[0])
    assert run("--average", one, tmp_path / "out")[0] == 2
    assert run("--average", one, one, tmp_path / "out", "--checkpoint", "checkpoint-00000001")[0] == 2
    code, _, err = run(one, one, tmp_path / "out")
    assert code == 2 and "give --average" in err
    assert run("--average", one, tmp_path / "none", tmp_path / "out")[0] == 8, "a home without a checkpoint"
