"""Fixtures of the tests of the daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipdp.runtime.node import Node
from peers import assembly, home
from peers.control import ControlServer
from tests.peers.daemon.homes_and_nodes import NoSignals, Start


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A home that `up` has prepared."""
    path = tmp_path / "home"
    config = home.read_config(path, {"network.name": "tiny", "preset": "local"}, {})
    home.found(path, config, None)
    return path


@pytest.fixture
def start(where: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the daemon of that home, without its loop and its signals."""
    open_ones: list[Node | ControlServer] = []

    def control(directory: Path) -> ControlServer:
        open_ones.append(ControlServer(directory))
        return open_ones[-1]

    def started() -> Node:
        overrides = {
            "network.name": "tiny", "preset": "local", "network.listen": "tcp://127.0.0.1:0", "metrics.listen": "off"
        }  # fmt: skip
        node = assembly.build(where, home.read_config(where, overrides, {}))
        open_ones.append(node)
        return node

    monkeypatch.setattr(assembly, "ControlServer", control)
    monkeypatch.setattr(assembly, "Signals", NoSignals)
    yield started
    for one in open_ones:
        one.close()
