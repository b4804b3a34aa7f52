"""The limit of gossip: two synchronous peers that average after every step equal two ranks under DDP."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.processes.running import Host, end, until

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).with_name("training_sync.py")
STEPS = 20
SETTINGS = """[exchange]
mode = "sync"
codec = "fp32"
every = 1
warmup_steps = 0
early_steps = 0
kappa = 0.0
[outer]
lr = 1.0
momentum = 0.0
[safety]
clip = "off"
"""


def command(out: Path, rank: int, how: str) -> list[str]:
    return [sys.executable, str(SCRIPT), str(out), str(STEPS), str(rank), how]


@pytest.mark.long
def test_two_synchronous_peers_with_one_step_a_round_are_two_ranks_of_DDP(tmp_path: Path) -> None:
    (tmp_path / "ddp").mkdir()
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ranks = [
        subprocess.Popen(command(tmp_path / "ddp" / f"{rank}.safetensors", rank, "ddp"), env=variables)
        for rank in range(2)
    ]
    hosts = [Host(tmp_path, f"h{n}", founder=n == 0, settings=SETTINGS) for n in range(2)]
    try:
        first, second = hosts
        first.settle_in(None)
        first.start_daemon()
        until("the founder listens", first.status, hosts)
        invite = first.home / "invite"
        until("there is an invite", invite.exists, hosts)
        second.settle_in(invite.read_text())
        second.start_daemon()
        until("they know each other", lambda: len(second.members()) == 2, hosts)
        for rank, host in enumerate(hosts):
            host.start_training(command(tmp_path / f"{rank}.safetensors", rank, "gossip"))
        for host in hosts:
            assert host.training is not None
            assert host.training.ended() == 0, host.last_words()
        assert [rank.wait() for rank in ranks] == [0, 0]
    finally:
        end(hosts)
        for rank in ranks:
            rank.kill()
            rank.wait()
    ddp = load_file(tmp_path / "ddp" / "0.safetensors")
    for number in range(2):
        found = load_file(tmp_path / f"{number}.safetensors")
        off = max(float((found[name] - ddp[name]).abs().max()) for name in ddp)
        print(f"peer {number}: {off:.2g} from DDP")
        assert off <= 1e-6, first.last_words()
    assert max(float(value.abs().max()) for value in ddp.values()) > 0.1 and torch.isfinite(ddp["0.weight"]).all()
