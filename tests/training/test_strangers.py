"""Ranks that do not train one replica, or not in step: refused if known at once, alone if found out later."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossipdp.runtime import link as links
from simulations.processes.progress import until
from tests.training.ledger_daemon import LedgerDaemon

CASES = ("stages", "sizes", "seeds", "apart", "uneven")


@pytest.mark.processes
def test_ranks_that_are_not_one_replica_are_told_and_nothing_of_them_reaches_the_daemon(tmp_path: Path) -> None:
    """All cases run in the same two processes, because imports take longer than any case."""
    here = Path(__file__).parent
    environment = {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "GOSSIPDP_HOME": str(tmp_path)}
    children = [
        {
            "script": str(here / "host_of_strangers.py"),
            "argv": [str(tmp_path), *CASES],
            "environment": {**environment, "RANK": str(rank)},
            "log": str(tmp_path / f"rank{rank}.log"),
        }
        for rank in range(2)
    ]
    (tmp_path / "first.json").write_text(json.dumps({"imports": [], "children": children}))
    daemon = LedgerDaemon(tmp_path, every=3)
    process = subprocess.Popen(
        [sys.executable, str(here / "nursery.py"), str(tmp_path / "first.json")],
        env={**os.environ, "PYTHONPATH": str(here.parents[1])},
    )
    logs = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    try:
        until(
            "all cases are over",
            lambda: process.poll() is not None,
            moves=lambda: len(daemon.events),
            meanwhile=lambda: daemon.pump(0.02),
        )
    finally:
        process.kill()
        print(*(log.read_text() for log in logs if log.exists()), sep="\n")
    assert process.wait() == 0
    daemon.pump()
    daemon.server.close()
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]

    for case, seen in {
        "stages": "tensor 0 is stage0.weight (4, 4) float32 on rank 0, stage1.weight (4, 4) float32 on rank 1",
        "sizes": "tensor 0 is weight (4, 4) float32 on rank 0, weight (5, 4) float32 on rank 1",
    }.items():
        for rank in ranks:
            assert (rank[case]["code"], rank[case]["seen"]) == ("GD-301", f"rank 1 of 2; {seen}")
    for rank in ranks:
        assert rank["seeds"]["code"] == "GD-320"
        assert rank["seeds"]["seen"].startswith("rank 1 of 2; 3 of 3 parameters differ from rank 0, the first is 0.")

    first, second = (rank["apart"] for rank in ranks)
    assert first["alone"] and second["alone"] and first["step"] == second["step"] < 30, "at the same step"
    assert first["gained"] == second["gained"] == 10, "a loop that ends by the clock ends"
    assert "GD-320" in first["said"] and "training goes on alone" in first["said"] and not second["said"]

    first, second = (rank["uneven"] for rank in ranks)
    assert (first["step"], second["step"]) == (6, 20) and second["alone"]
    assert "GD-501 a rank of this group has died or makes no more steps" in second["said"]

    assert [event.world for event in daemon.events if isinstance(event, links.Attached)] == [2, 2], "apart and uneven"
    told = [event for event in daemon.events if isinstance(event, links.Told)]
    apart = [event for event in told if event.code == "GD-320"]
    assert [(event.exit, event.alone, event.lost_steps > 0) for event in apart] == [(6, True, False), (6, True, True)]
    trained = ranks[0]["apart"]
    assert apart[-1].lost_steps == trained["lost"] == trained["step"] + 10, "no step of them was handed over"
    uneven = [event for event in told if event.code == "GD-501"]
    assert [(event.exit, event.alone) for event in uneven] == [(7, True)] * 2 and uneven[-1].lost_steps

    detached = next(place for place, event in enumerate(daemon.events) if isinstance(event, links.Detached))
    submitted = [place for place, event in enumerate(daemon.events) if isinstance(event, links.Submitted)]
    assert submitted and min(submitted) > detached, "no patchwork was handed over"
    assert not [event for event in daemon.events if isinstance(event, links.RankLost)]
