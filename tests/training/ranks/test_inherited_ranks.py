"""Moments of groups of ranks: each sends its part, and a group of another kind gets its slices."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gossipdp.codecs import moments as codec
from gossipdp.protocol.schema import chunk_parameters
from gossipdp.protocol.transfer.moments import chunk_sizes
from simulations.processes.progress import until
from tests.codecs.moments_reference import decoded
from tests.training.moments_daemon import MomentsDaemon


def serve(daemon: MomentsDaemon, home: Path, kind: str, world: int, steps: int) -> None:
    """Run a group of ranks to its end, with `daemon` beside it."""
    script = Path(__file__).with_name("host_of_moments.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(home), kind, str(steps)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        until(
            "the ranks end",
            lambda: all(process.poll() is not None for process in processes),
            moves=lambda: len(daemon.events),
            meanwhile=lambda: daemon.pump(0.02),
        )
    finally:
        for process in processes:
            process.kill()
            print(process.communicate()[0])
    assert [process.returncode for process in processes] == [0] * world
    daemon.pump()


def held(daemon: MomentsDaemon) -> dict[str, np.ndarray]:
    """What the daemon holds, by tensor."""
    schema = daemon.schema
    assert schema is not None and daemon.held is not None
    width = chunk_parameters(schema.size)
    whole = {"exp_avg": np.zeros(schema.size, np.float32), "exp_avg_sq": np.zeros(schema.size, np.float32)}
    for number, (chunk, size) in enumerate(zip(daemon.held.chunks, chunk_sizes(schema), strict=True)):
        at = slice(number * width, number * width + size)
        whole["exp_avg"][at], whole["exp_avg_sq"][at] = decoded(np.frombuffer(chunk.payload, np.uint8), size)
    return {
        f"{entry.name}::{key}": values[entry.offset : entry.stop].reshape(entry.shape)
        for entry in schema.entries
        for key, values in whole.items()
    }


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(("first", "then"), [(("fsdp", 2), ("ddp", 2)), (("ddp", 2), ("fsdp", 3))])
def test_group_of_another_kind_goes_on_with_the_moments_of_the_one_before(
    tmp_path: Path, first: tuple[str, int], then: tuple[str, int]
) -> None:
    daemon = MomentsDaemon(tmp_path, every=5)
    try:
        serve(daemon, tmp_path, *first, 16)
        assert daemon.held is not None and 6 <= daemon.held.steps <= 16
        kept = held(daemon)
        at_first = load_file(tmp_path / f"{first[0]}-{daemon.held.steps}.safetensors")
        for name, values in kept.items():
            now = at_first[name].numpy()
            if name.endswith("exp_avg"):
                root = np.sqrt(at_first[name + "_sq"].numpy())
                assert np.abs(values - now).max() <= (codec.MOST_RATIO / 254 + 0.1) * root.max(), name
            assert values.size == 1 or np.corrcoef(values.ravel(), now.ravel())[0, 1] > 0.9, name
        serve(daemon, tmp_path, *then, 0)
        found = load_file(tmp_path / f"{then[0]}-0.safetensors")
        for name, values in kept.items():
            assert torch.equal(found[name], torch.from_numpy(values)), name
            assert int(found[name.rpartition("::")[0] + "::step"]) == daemon.held.steps
    finally:
        daemon.server.close()
