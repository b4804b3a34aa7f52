"""Two hosts that train together, without a network: training processes of two peers, and a ledger daemon for each.

The link, the hooks and the ledgers are real; an exchange is exact averaging of the two anchors, as soon as both have a
new snapshot. What the wire does to it is tested where the wire is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from gossipdp.runtime import link as links
from simulations.processes.namespaces.processes import kept_port
from simulations.processes.progress import until
from tests.training.ledger_daemon import LedgerDaemon

ROOT = Path(__file__).parents[2]


class Peer:
    def __init__(self, directory: Path, ranks: int, every: int) -> None:
        directory.mkdir()
        self.name, self.directory, self.ranks = directory.name, directory, ranks
        self._port = kept_port()
        self.daemon = LedgerDaemon(directory, every=every)
        self.daemon.has_model = False
        self.exchanged = 0
        """the snapshot that has been averaged last"""
        self.out = directory / "out.safetensors"
        self.logs = [directory / f"rank{rank}.log" for rank in range(ranks)]

    def children(self, script: Path, steps: int) -> list[dict[str, object]]:
        environment = {"GOSSIPDP_HOME": str(self.directory)}
        if self.ranks > 1:
            port = str(self._port.getsockname()[1])
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(self.ranks)}
            environment |= {"LOCAL_WORLD_SIZE": str(self.ranks)}
        return [
            {
                "script": str(script),
                "argv": [str(steps), str(self.out)],
                "environment": {**environment, **({"RANK": str(n), "LOCAL_RANK": str(n)} if self.ranks > 1 else {})},
                "log": str(log),
            }
            for n, log in enumerate(self.logs)
        ]

    def seen(self, kind: type) -> list[links.LinkEvent]:
        return [event for event in self.daemon.events if isinstance(event, kind)]

    @property
    def steps(self) -> int:
        return sum(event.steps for event in self.seen(links.Submitted) if isinstance(event, links.Submitted))

    @property
    def samples(self) -> int:
        return sum(event.samples for event in self.seen(links.Submitted) if isinstance(event, links.Submitted))

    def saved_what_it_handed_over(self) -> bool:
        """True if the script's file, or directory, is the last snapshot. It may hold another name of a tied tensor."""
        file = self.out / "model.safetensors" if self.out.is_dir() else self.out
        schema, last, saved = self.daemon.schema, self.daemon.last, load_file(file)
        assert schema is not None and last is not None
        found = [entry for entry in schema.entries if entry.name in saved]
        return len(found) >= len(saved) - 1 and all(
            np.array_equal(last[entry.offset : entry.stop], saved[entry.name].ravel()) for entry in found
        )

    def close(self) -> None:
        self._port.close()
        self.daemon.server.close()

    @property
    def said(self) -> str:
        return "".join(f"--- {log}\n{log.read_text()[-3000:]}\n" for log in self.logs if log.exists())

    def ends(self) -> str:
        return ""

    def last_words(self) -> str:
        return self.said


class Pair:
    """Two peers of `ranks` processes each."""

    def __init__(self, directory: Path, *, ranks: int = 1, every: int = 4) -> None:
        self.directory = directory
        self.peers = [Peer(directory / name, ranks, every) for name in ("first", "second")]
        self._apart: list[float] = []
        self.start: NDArray[np.float32] = np.zeros(0, np.float32)
        """the model both begin with"""

    def train(
        self,
        script: Path,
        steps: int,
        imports: Sequence[str] = (),
        settings: Mapping[str, str] = {},
        *,
        together: bool = True,
    ) -> None:
        """Runs `script` to its end on both; they exchange if `together`."""
        children = [child for peer in self.peers for child in peer.children(script, steps)]
        first = self.directory / "first.json"
        first.write_text(json.dumps({"imports": list(imports), "children": children}))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GOSSIPDP_")}
        kept |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        # No framework asks its maker for anything, or leaves files outside of the test's folder.
        kept |= {"HF_HUB_OFFLINE": "1", "HOME": str(self.directory), **settings}
        nursery = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py")), str(first)],
            cwd=self.directory,
            env=kept,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

        def train() -> None:
            for peer in self.peers:
                peer.daemon.pump(0.005)
            self._begin()
            self._exchange(together)

        try:
            until(
                f"{script.name} ends",
                lambda: nursery.poll() is not None,
                self.peers,
                moves=lambda: tuple(peer.steps for peer in self.peers),
                meanwhile=train,
            )
        finally:
            code = nursery.poll()
            nursery.kill()
            errors = nursery.communicate()[1].decode()
            for peer in self.peers:
                peer.daemon.pump()
        assert code == 0, errors + "".join(peer.said for peer in self.peers)

    @property
    def exchanges(self) -> int:
        return len(self._apart)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            peer.close()

    def _begin(self) -> None:
        """Both start at once, from the first peer's model."""
        if self.start.size or not all(peer.seen(links.ModelWritten) for peer in self.peers):
            return
        first, second = (peer.daemon for peer in self.peers)
        self.start = first.region.buffers[0].copy()
        second.a = self.start.copy()
        first.begin_session()
        second.begin_session()

    def _exchange(self, together: bool) -> None:
        first, second = (peer.daemon for peer in self.peers)
        if all(peer.daemon.snapshot > peer.exchanged for peer in self.peers):
            assert first.a is not None and second.a is not None
            gap, way = np.linalg.norm(second.a - first.a), np.linalg.norm(first.a - self.start)
            self._apart.append(float(gap / way))
            if together:
                half = (second.a - first.a) / np.float32(2.0)
                first.mix(half)
                second.mix(-half)
            for peer in self.peers:
                peer.exchanged = peer.daemon.snapshot
        for daemon in (first, second):
            if daemon.server.region is not None and daemon.session:
                daemon.seal()

    def apart(self) -> float:
        """How far the two were from each other when they exchanged, as a share of how far they had come.

        The median of the later half of all exchanges: alone, both go their own ways, and it is about 0.7.
        """
        return statistics.median(self._apart[len(self._apart) // 2 :])
