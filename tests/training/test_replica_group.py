"""Two ranks of one host, as real processes under DistributedDataParallel: one peer, and the same bits in both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ledger_daemon import LedgerDaemon

from gossipdp.runtime import link as links

DEADLINE = 90.0


@pytest.mark.processes
def test_ranks_of_a_ddp_host_are_one_peer_and_equal_bit_for_bit(tmp_path: Path) -> None:
    script = Path(__file__).with_name("ddp_host.py")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "GOSSIPDP_HOME": str(tmp_path / "nobody")}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    random = np.random.default_rng(0)
    first = daemon = LedgerDaemon(tmp_path, every=3, alpha=0.7, mu=0.5)
    until = time.monotonic() + DEADLINE
    stopped = False
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        daemon.pump(0.02)
        if daemon.server.region is not None and daemon.session and not stopped:
            daemon.mix(0.01 * random.standard_normal(daemon.region.size).astype(np.float32))
            daemon.seal()
        if daemon is first and daemon.drained >= 6:
            first.server.close()
            daemon = LedgerDaemon(tmp_path, every=30, anchor=first.a, clock=1000)
        elif daemon is not first and daemon.drained >= 4 and not stopped:
            stopped = True
            (tmp_path / "stop").touch()
    daemon.pump()
    daemon.server.close()
    outputs = []
    for process in processes:
        process.kill()
        outputs.append(process.communicate()[0])
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)

    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["trail"] == ranks[1]["trail"], "after every step"
    assert len(set(ranks[0]["trail"])) == len(ranks[0]["trail"]) == ranks[0]["step"] + 1
    assert [rank["known"] for rank in ranks] == [[False, True]] * 2, "both know of the daemon that died"
    assert [rank["after"] for rank in ranks] == [True] * 2
    assert [rank["nobody"] for rank in ranks] == ["GD-105"] * 2, "every rank raises, none waits for ever"
    assert [rank["sharded"] for rank in ranks] == ["GD-304"] * 2

    assert first.drained >= 6 and daemon.drained >= 4
    attached = [event for event in first.events if isinstance(event, links.Attached)]
    assert [event.world for event in attached] == [2]
    submits = [event for event in first.events if isinstance(event, links.Submitted)]
    assert all(event.samples == 8 * event.steps for event in submits), "both ranks' samples"
    assert daemon.schema is not None and daemon.a is not None and daemon.last is not None
    weight = next(entry for entry in daemon.schema.entries if entry.name == "first.weight")
    assert np.array_equal(daemon.last[weight.offset : weight.stop], np.float32(ranks[1]["first.weight"]))
