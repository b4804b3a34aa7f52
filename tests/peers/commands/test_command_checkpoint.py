"""`gossipdp checkpoint`: list, verify and export."""

import json
from pathlib import Path

import numpy as np
import pytest

from gossipdp.protocol.schema import Schema
from gossipdp.runtime import progress
from gossipdp.runtime.storage import store
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.store import Store
from tests.peers.commands.running import Run

LAST = CheckpointMeta(
    network="tiny", run="", peer="", incarnation=1, round=3, clock=150, steps=50, samples=400, schema="",
)  # fmt: skip


def write(home: Path, *, round: int = 1, clock: int = 50) -> None:
    """Write one more checkpoint."""
    schema = Schema.of([("w", (2, 3), "float32", "parameter"), ("b", (3,), "bfloat16", "parameter")])
    meta = CheckpointMeta(
        network="tiny", run="", peer="", incarnation=1, round=round, clock=clock, steps=50, samples=400,
        peer_rounds=round, schema=schema.digest.hex(),
    )  # fmt: skip
    vectors = {"anchor": np.full(9, round, np.float32), "momentum": np.zeros(9, np.float32)}
    Store(home / "checkpoints").save(vectors, meta, schema.to_bytes())


@pytest.fixture
def saved(founder: Path) -> Path:
    for round in (1, 2):
        write(founder, round=round, clock=50 * round)
    return founder


@pytest.mark.parametrize(("clocks", "told"), [((50, 80, 80), False), ((50, 80, 60), True), ((80, 50, 80), False)])
def test_newest_checkpoint_is_named_where_an_earlier_one_has_a_higher_clock(
    gossipdp: Run, founder: Path, clocks: tuple[int, ...], told: bool
) -> None:
    for clock in clocks:
        write(founder, clock=clock)
    said = "checkpoint-00000003 is the newest. checkpoint-00000002 has a higher clock: after it this peer took an older"
    assert (said in gossipdp("checkpoint", "list", "--home", founder).out) is told


def test_checkpoints_are_listed_verified_and_exported(gossipdp: Run, saved: Path, tmp_path: Path) -> None:
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [(row["name"], row["state"], row["round"]) for row in rows] == [
        ("checkpoint-00000001", "complete", 1),
        ("checkpoint-00000002", "complete", 2),
    ]
    last = gossipdp("checkpoint", "list", "--home", saved).out.splitlines()[2]
    assert last.startswith("checkpoint-00000002  complete")
    assert gossipdp("checkpoint", "verify", "--home", saved).code == 0
    one = gossipdp("checkpoint", "export", "old.safetensors", "--checkpoint", "checkpoint-00000001", "--home", saved)
    assert (one.code, one.out) == (0, "wrote old.safetensors: 2 tensors of round 1\n")
    header = (tmp_path / "old.safetensors").read_bytes()
    assert b'"BF16"' in header
    (saved / "checkpoints/checkpoint-00000002/state.safetensors").write_bytes(b"torn")
    done = gossipdp("checkpoint", "export", "new.safetensors", "--home", saved)
    assert done.code == 0 and done.err.startswith("GD-601 checkpoint ") and "of round 1" in done.out
    assert (tmp_path / "new.safetensors").read_bytes() == header


@pytest.mark.parametrize("out", ["models/new/", "models"])
def test_export_to_a_directory__a_file_in_it(gossipdp: Run, saved: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "models").mkdir()
    done = gossipdp("checkpoint", "export", out, "--home", saved)
    path = Path(out) / "model.safetensors"
    assert (done.code, done.out) == (0, f"wrote {path}: 2 tensors of round 2\n") and (tmp_path / path).is_file()


def test_checkpoints_are_looked_for_where_the_peer_was_told_to_keep_them(
    gossipdp: Run, saved: Path, tmp_path: Path
) -> None:
    (saved / "checkpoints").rename(tmp_path / "elsewhere")
    there = ("--home", saved, "--set", f"checkpoint.dir={tmp_path / 'elsewhere'}")
    assert len(json.loads(gossipdp("checkpoint", "list", "--json", *there).out)) == 2
    assert gossipdp("checkpoint", "verify", *there).code == 0
    assert "of round 2" in gossipdp("checkpoint", "export", tmp_path / "out.safetensors", *there).out
    assert gossipdp("checkpoint", "verify", "--home", saved).code == 8
    assert gossipdp("checkpoint", "list", "--home", saved, "--set", "checkpoint.dirr=x").code == 3


def test_list_shows_which_checkpoints_are_pinned_and_why(gossipdp: Run, saved: Path) -> None:
    checkpoints = Store(saved / "checkpoints")
    checkpoints.pin(checkpoints.list()[0], "GD-605 the network's model is of step 80 of its clock")
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [row["pinned"] for row in rows] == ["GD-605 the network's model is of step 80 of its clock", None]
    lines = gossipdp("checkpoint", "list", "--home", saved).out.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["pinned", "yes", "-"]
    assert lines[3:] == ["checkpoint-00000001 is pinned: GD-605 the network's model is of step 80 of its clock"]
    (checkpoints.list()[1] / "pinned").write_bytes(b"")
    (checkpoints.list()[0] / "pinned").write_bytes(b"\x1b[2Jgone")
    assert gossipdp("checkpoint", "list", "--home", saved).out.splitlines()[3:] == [
        "checkpoint-00000001 is pinned: ?[2Jgone",
        "checkpoint-00000002 is pinned: its reason is lost",
    ]


def test_verify_of_a_named_checkpoint_says_ok_or_is_eight(gossipdp: Run, saved: Path) -> None:
    done = gossipdp("checkpoint", "verify", "checkpoint-00000001", "--home", saved)
    assert done.code == 0 and done.out.startswith("ok: ") and "round 1" in done.out and done.out.count("ok: ") == 1


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_list_before_the_first_checkpoint_is_empty__of_no_home_it_is_eight(
    gossipdp: Run, founder: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = gossipdp("checkpoint", "list", *words, "--home", founder)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    done = gossipdp("checkpoint", "list", *words, "--home", tmp_path / "nowhere")
    assert (done.code, done.out) == (8, "") and done.err.startswith("GD-604 there is no checkpoint to list")


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize("home", ["founded", "nowhere"])
def test_no_checkpoint_to_verify_is_eight_in_an_empty_home_and_in_none(
    gossipdp: Run, founder: Path, tmp_path: Path, home: str, words: tuple[str, ...]
) -> None:
    where = founder if home == "founded" else tmp_path / "nowhere"
    done = gossipdp("checkpoint", "verify", *words, "--home", where)
    assert (done.code, done.out) == (8, "")
    assert done.err.startswith(f"GD-604 there is no checkpoint to verify\n  seen: {where}/checkpoints")
    assert "\n  do:   " in done.err and not (tmp_path / "nowhere").exists()


def test_verify_as_json_has_a_row_a_checkpoint_and_the_same_code(gossipdp: Run, saved: Path) -> None:
    done = gossipdp("checkpoint", "verify", "--json", "--home", saved)
    assert done.code == 0 and [(row["name"], row["state"], row["round"]) for row in json.loads(done.out)] == [
        ("checkpoint-00000001", "ok", 1),
        ("checkpoint-00000002", "ok", 2),
    ]
    (saved / "checkpoints/checkpoint-00000002/state.safetensors").write_bytes(b"torn")
    done = gossipdp("checkpoint", "verify", "--home", saved, "--json")
    rows = json.loads(done.out)
    assert done.code == 8 and done.err.startswith("GD-601 checkpoint ")
    assert [(row["state"], row.get("code")) for row in rows] == [("ok", None), ("damaged", "GD-601")]
    assert rows[1]["seen"]
    [row] = json.loads(gossipdp("checkpoint", "verify", "checkpoint-00000001", "--json", "--home", saved).out)
    assert (row["path"], row["round"]) == (str(saved / "checkpoints/checkpoint-00000001"), 1)


def test_a_damaged_checkpoint_is_eight(gossipdp: Run, saved: Path) -> None:
    (saved / "checkpoints/checkpoint-00000002/manifest.json").write_text("{}")
    done = gossipdp("checkpoint", "verify", "--home", saved)
    assert done.code == 8 and done.out.count("ok: ") == 1 and done.err.startswith("GD-601 checkpoint ")
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [row["state"] for row in rows] == ["complete", "damaged"]


def test_list_reads_manifests_alone__verify_reads_everything(gossipdp: Run, saved: Path) -> None:
    state = saved / "checkpoints/checkpoint-00000002/state.safetensors"
    contents = state.read_bytes()
    state.write_bytes(contents[:-1] + b"\x01")
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [(row["state"], row["bytes"]) for row in rows] == [("complete", rows[0]["bytes"])] * 2
    done = gossipdp("checkpoint", "verify", "--home", saved)
    assert done.code == 8 and f"bytes 0 to {len(contents)} do not match their hash" in done.err
    state.write_bytes(contents[:-1])
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [row["state"] for row in rows] == ["complete", "damaged"]


def test_what_lasts_tells_how_far_it_is_on_standard_error(
    gossipdp: Run, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "AFTER", 0.0)
    monkeypatch.setattr(store, "PIECE", 100)
    Store(saved / "checkpoints").save({"anchor": np.ones(90, np.float32)}, LAST, b"schema")
    done = gossipdp("checkpoint", "verify", "checkpoint-00000003", "--home", saved)
    assert done.err.startswith("reading checkpoint-00000003: 0.0 of 0.0 GB, ") and done.err.endswith(" s left\n")
    assert done.out.startswith("ok: ") and done.err.count("\n") == 1


@pytest.mark.parametrize("words", [("export", "x.safetensors", "--checkpoint", "nope"), ("verify", "nope")])
def test_checkpoint_that_is_not_there__is_not_called_damaged(
    gossipdp: Run, saved: Path, words: tuple[str, ...]
) -> None:
    done = gossipdp("checkpoint", *words, "--home", saved)
    assert done.code == 8 and done.err.startswith("GD-604 there is no checkpoint nope\n") and "damaged" not in done.err


def test_no_checkpoint_to_export_is_eight(gossipdp: Run, founder: Path) -> None:
    done = gossipdp("checkpoint", "export", "x.safetensors", "--home", founder)
    assert done.code == 8 and done.err.startswith("GD-604 there is no checkpoint to export\n")
