"""Modules of a user's that are called as packages of this project."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes.running import Host

pytestmark = pytest.mark.processes

TRAIN = """
import torch

import gossipdp
import peers
import simulations
import tests

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
peer = gossipdp.attach(model, optimizer)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print("owners:", peers.OWNER, simulations.OWNER, tests.OWNER, flush=True)
"""


def test_a_users_own_peers_simulations_and_tests_shadow_none_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "script"
    (folder / "tests").mkdir(parents=True)
    for path in (folder / "peers.py", folder / "simulations.py", folder / "tests" / "__init__.py"):
        path.write_text("OWNER = 'user'\n")
    (folder / "train.py").write_text(TRAIN)
    host = Host(tmp_path, "h0", founder=True)
    try:
        first = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        supervisor = host.start_supervised([sys.executable, str(folder / "train.py")], PYTHONPATH=first)
        assert supervisor.ended() == 0, host.last_words()
        assert "owners: user user user" in host.text()
    finally:
        host.end()
