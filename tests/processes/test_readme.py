"""The commands of the README on two hosts, typed as they stand there, and what they print compared with it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from simulations.processes.namespaces.hosts import Host, Lab
from simulations.processes.progress import until

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SCRIPT = ROOT / "peers" / "jobs" / "recipes" / "train.py"
PUBLIC = {"host1": "45.0.0.1", "host2": "45.0.0.2"}
"""Addresses that look public: the README has none that look private. They exist in this lab alone."""


def section(title: str) -> str:
    """The text below a heading, up to the next."""
    return README.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.S)
    assert found, f"no block of {language}"
    return found[1]


def dialogue(text: str) -> list[tuple[str, str, str]]:
    """Host, command and expected output of each prompt in a block of commands."""
    parts = re.split(r"^(host\d)\$ (.*)\n", text, flags=re.M)[1:]
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))


def shape(text: str) -> str:
    """`text` without what differs from run to run: numbers, addresses, ids and names of hosts, folders, line breaks."""
    text = re.sub(rf"(?:host\d|{re.escape(socket.gethostname())})-[0-9a-f]{{8}}", "PEER", text)
    text = re.sub(r"\S*/\.gossipdp", "HOME", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\S+", "TIME", text)
    text = re.sub(r"\d[\d.:e+-]*", "N", text)
    return " ".join(text.split())


def matches(expected: str, output: str) -> bool:
    """Whether `output` has the parts of `expected`, which lines of `...` separate, in their order."""
    parts = [shape(part) for part in re.split(r"^\.\.\.$", expected, flags=re.M)]
    pattern = ".*".join(re.escape(part) for part in parts if part)
    return re.search(pattern, shape(output)) is not None


@dataclass
class Terminal:
    """One host as its user has it: a home folder, a network of its own, and commands that run in it."""

    host: Host
    folder: Path
    path: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: str) -> Path:
        """Start `command`. Return the file that its output goes to."""
        log = self.folder / f"output{len(self.started)}"
        own = {"HOME": str(self.folder), "PATH": self.path, "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        with open(log, "wb") as file:
            argv = self.host.command(["bash", "-c", f"exec {command}"])
            started = subprocess.Popen(argv, cwd=self.folder, env=own, stdout=file, stderr=subprocess.STDOUT)
        self.started.append(started)
        return log


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[dict[str, Terminal]]:
    tools = tmp_path / "tools"
    tools.mkdir()
    copy = f'#!/bin/sh\nexec cp "$1" "{tmp_path}/${{2%:}}/"\n'
    (tools / "scp").write_text(copy)  # stands for the ssh server that a host has
    (tools / "scp").chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Lab(2) as lab:
        made = {}
        for host, (name, address) in zip(lab.hosts, PUBLIC.items(), strict=True):
            for change in (["flush"], ["add", f"{address}/24"]):
                subprocess.run(["ip", "-n", host.namespace, "address", *change, "dev", "eth0"], check=True)
            (tmp_path / name).mkdir()
            made[name] = Terminal(host, tmp_path / name, path)
        try:
            yield made
        finally:
            running = [each for terminal in made.values() for each in terminal.started if each.poll() is None]
            for each in running:
                each.send_signal(signal.SIGTERM)
            for each in running:
                each.wait()


def until_it_shows(terminal: Terminal, command: str, expected: str) -> None:
    """Run `command` until it prints what is expected. `status` is asked again, `up` and `join` are left running."""
    logs = [terminal.start(command)]

    def shows() -> bool:
        over = terminal.started[-1].poll() is not None
        output = logs[-1].read_text()
        if matches(expected, output):
            return True
        if over:
            assert " status" in command, f"{command}: expected\n{expected}\nseen\n{output}"
            logs.append(terminal.start(command))
        return False

    until(f"{command} shows\n{expected}", shows)


def test_the_script_is_the_tested_one() -> None:
    kept = SCRIPT.read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert block(section("A training script"), "python") == kept


def test_it_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150 and len(text.split()) <= 1300


@pytest.mark.processes
@pytest.mark.needs("namespaces")
def test_two_hosts_print_what_it_says_and_end_with_one_model(terminals: dict[str, Terminal]) -> None:
    for terminal in terminals.values():
        (terminal.folder / "train.py").write_text(block(section("A training script"), "python"))
    # On host 1 the first command is `up`. On host 2 it is `join`, because `scp` is typed on host 1.
    steps = dialogue(block(section("Two hosts"), "console"))
    typed = [command.split()[1] for _, command, _ in steps if command.startswith("gossipdp ")]
    assert typed == ["up", "join", "status", "finish"]
    for host, command, expected in steps:
        until_it_shows(terminals[host], command, expected)
    for terminal in terminals.values():
        peer = terminal.started[0]
        assert peer.wait() == 0, (terminal.folder / "output0").read_text()
    models = [
        load_file(terminal.folder / ".gossipdp" / "tiny" / "final" / "model.safetensors")
        for terminal in terminals.values()
    ]
    for name, values in models[0].items():
        apart = np.linalg.norm(values - models[1][name]) / np.linalg.norm(values)
        assert apart <= 1e-3, name
