"""Moments between real processes: of a killed training process, and on a host that joins."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes.running import Host, Network, until
from tests.runtime.storage.small_disk import small_disk

pytestmark = [pytest.mark.processes, pytest.mark.long]

SCRIPT = Path(__file__).with_name("training_moments.py")
SETTINGS = "[exchange]\nmoments = {}\nevery = 10\nwarmup_steps = 0\n"


def train(host: Host) -> None:
    host.start_training([sys.executable, str(SCRIPT), str(host.home.with_suffix(".notes"))])


def notes(host: Host) -> list[dict[str, Any]]:
    path = host.home.with_suffix(".notes")
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def files_without_a_name(host: Host) -> list[str]:
    """Those in the checkpoints' folder that the daemon maps."""
    assert host.daemon is not None
    maps = Path(f"/proc/{host.daemon.pid}/maps").read_text().splitlines()
    return [line for line in maps if f"{host.home}/checkpoints/" in line and line.endswith("(deleted)")]


def start(network: Callable[..., Network], moments: str) -> tuple[Network, Host, Host]:
    """Two hosts; the founder has trained for 1000 steps."""
    two = network(2, settings=SETTINGS.format(moments))
    two.settle_in()
    return found(two)


def found(two: Network) -> tuple[Network, Host, Host]:
    first, second = two.hosts
    first.start_daemon()
    train(first)
    until("the founder has trained", lambda: len(notes(first)) == 2, two.hosts)
    return two, first, second


@pytest.mark.parametrize("moments", ["true", "false"])
def test_joiner_and_a_process_that_was_killed_begin_with_moments(network: Callable[..., Network], moments: str) -> None:
    two, first, second = start(network, moments)
    [fresh, trained] = notes(first)
    assert fresh["begins"] == 0
    second.start_daemon()
    train(second)
    until("the joiner trains", lambda: len(notes(second)) == 1, two.hosts)
    [joined] = notes(second)
    assert first.training is not None
    first.training.kill()
    train(first)
    until("the killed process is back", lambda: len(notes(first)) == 3, two.hosts)
    again = notes(first)[2]
    print(f"moments = {moments}: loss {trained['loss']:.4f}; first 20 steps of the joiner {joined['loss']:.4f}, "
          f"of the one killed {again['loss']:.4f}")  # fmt: skip
    if moments == "true":
        assert joined["begins"] > 100 and joined["second"] > 0.0
        assert again["begins"] > 900 and again["second"] > 0.0
        assert "received the optimizer's moments from" in second.text()
        assert all(files_without_a_name(host) for host in two.hosts)
    else:
        assert joined["begins"] == again["begins"] == 0


@pytest.mark.needs("mounts")
def test_moments_are_held_and_given_where_the_disk_has_no_room(network: Callable[..., Network]) -> None:
    two = network(2, settings=SETTINGS.format("true"))
    two.settle_in()
    with ExitStack() as disks:
        for host in two.hosts:
            disks.enter_context(small_disk(host.home / "checkpoints"))
        _, first, second = found(two)
        second.start_daemon()
        train(second)
        until("the joiner trains", lambda: len(notes(second)) == 1, two.hosts)
        assert notes(second)[0]["begins"] > 100
        for host in (first, second):
            assert "GD-602 copies and moments stay in memory, because " in host.text()
            assert not files_without_a_name(host)
        two.end()
