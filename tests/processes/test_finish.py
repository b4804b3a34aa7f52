"""A run ends among real peers: one command, or the end of the training scripts, and all hold one final model."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.processes.running import Host, gossipdp, running, until

pytestmark = pytest.mark.processes

MARK = 1e-3
"""largest relative RMS distance of one final file to their mean"""


def finals(hosts: Sequence[Host]) -> list[dict[str, Any]]:
    """What final.json says on these hosts, once all have ended."""
    for host in hosts:
        assert host.supervisor is not None and host.supervisor.ended() == 0, host.last_words()
    return [json.loads((host.home / "final" / "final.json").read_text()) for host in hosts]


def newest(host: Host) -> tuple[int, int]:
    """Round and clock of the newest checkpoint, as it is listed."""
    rows = json.loads(gossipdp("--home", str(host.home), "checkpoint", "list", "--json").stdout)
    return rows[-1]["round"], rows[-1]["clock"]


def spread(hosts: Sequence[Host]) -> float:
    """Largest relative RMS distance of a final file to the mean of all."""
    files = [load_file(host.home / "final" / "model.safetensors") for host in hosts]
    models = np.stack([np.concatenate([one[name].ravel() for name in sorted(one)]) for one in files]).astype(np.float64)
    mean = models.mean(0)
    return float(np.sqrt(((models - mean) ** 2).mean(1)).max() / np.sqrt((mean**2).mean()))


def test_one_command_ends_the_run_of_all_and_a_killed_peer_costs_the_others_nothing(tmp_path: Path) -> None:
    with running(tmp_path, 4) as network:
        network.start_supervised()
        network.until_it_runs()
        *three, killed = network.hosts
        before = {host.name: host.status()["steps"] for host in three}
        # Stopped first, or it could have left before it is killed.
        ended = killed.children()
        for pid in ended.values():
            os.kill(pid, signal.SIGSTOP)
        said = gossipdp("--home", str(three[1].home), "finish", "--no-wait")
        assert said.returncode == 0, said
        for pid in ended.values():
            os.kill(pid, signal.SIGKILL)
        assert killed.supervisor is not None
        killed.supervisor.kill()
        reports = finals(three)
        assert spread(three) <= MARK
        names = {host.name for host in three}
        assert all(names <= {peer["name"] for peer in report["peers"]} for report in reports)
        here = [report.pop("this_host") for report in reports]
        assert all(each["agrees"] and each["relative_distance"] <= MARK for each in here)
        assert reports == [reports[0]] * len(reports), "the rest is the same on all hosts"
        assert [newest(host) for host in three] == [(each["rounds"], reports[0]["clock"]) for each in here]
        assert reports[0]["clock"] >= max(before.values())
        assert all("ending the training command, because the run finishes" in host.text() for host in three)
        again = gossipdp("--home", str(three[0].home), "up")
        assert again.returncode == 3 and "GD-323" in again.stderr


SCRIPT = """
import os, sys, time, torch, gossipdp
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
steps = int(sys.argv[1])
with gossipdp.attach(model, optimizer) as peer:
    while steps > 0 or not os.path.exists(sys.argv[2]):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step(); time.sleep(0.01)
        steps -= 1
"""
"""A training command. Arguments: steps that it makes at least, and a file with which it ends."""


def test_a_script_that_ends_early_leaves_no_final_model_and_its_steps_are_in_that_of_the_last(tmp_path: Path) -> None:
    script, end = tmp_path / "script.py", tmp_path / "end"
    script.write_text(SCRIPT)
    with running(tmp_path / "hosts", 2, settings='[finish]\nwait = "8s"\n') as network:
        last, early = network.hosts
        last.start_supervised([sys.executable, str(script), "0", str(end)])
        ends = [sys.executable, str(script), "500", str(tmp_path)]
        early.start_supervised(ends, join=f"@{network.invite()}")
        assert early.supervisor is not None and early.supervisor.ended() == 0, early.last_words()
        end.touch()
        [report] = finals([last])
        assert [peer["name"] for peer in report["peers"]] == [last.name] and report["this_host"]["agrees"]
        assert [each["name"] for each in report["this_host"]["handed_in"]] == [early.name]
        assert report["this_host"]["without"] == []
        assert not (early.home / "final").exists()
        here = json.loads((early.home / "not-final" / "final.json").read_text())["this_host"]
        assert here["early"] and not here["agrees"] and [each["name"] for each in here["without"]] == [last.name]
        assert f"has handed over its last steps, and waits for members that train: {last.name}" in early.text()
        assert "it waits for those that train" in last.text() and "its model is not final" in last.text()


@pytest.mark.long
def test_scripts_that_end_one_after_the_other_end_with_one_model(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with running(tmp_path / "hosts", 2) as network:
        first, second = network.hosts
        first.start_supervised([sys.executable, str(script), "900", str(tmp_path)])
        second.start_supervised([sys.executable, str(script), "1100", str(tmp_path)], join=f"@{network.invite()}")
        until("they exchange", lambda: second.exchanges() > 0, network.hosts)
        reports = finals(network.hosts)
        assert spread(network.hosts) <= MARK
        assert all(len(report["peers"]) == 2 and report["this_host"]["agrees"] for report in reports)
        assert "waits for members that train: h1" in first.text()
        assert {report["steps"] for report in reports} == {2000}, "the last steps count"
