"""`algorithm = "epidemic"` with real daemons on loopback: replicas that train apart hold the same bits."""

from __future__ import annotations

import contextlib
import re
import urllib.request

import numpy as np
import pytest

from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage.checkpoint import Checkpoint
from gossipdp.runtime.storage.store import Store
from peers.control import ask
from simulations.processes.numpy_trainer import NumpyTrainer
from simulations.processes.progress import until
from simulations.processes.two_daemons import Pair, one_daemon, two_daemons

pytestmark = pytest.mark.processes

SIZE = 200_000
SETTINGS = {
    "exchange.algorithm": "epidemic",
    "exchange.every": 10,
    "exchange.epoch_steps": 40,
    "exchange.warmup_steps": 0,
    "checkpoint.every": "off",
}


def anchors(pair: Pair):
    """The anchor of each daemon's latest checkpoint."""
    found = []
    for home in pair.homes:
        store = Store(home / "checkpoints")
        clock = ask(home, "status")["clock"]
        ask(home, "checkpoint")

        def newest(store: Store = store, clock: int = clock) -> Checkpoint | None:
            pair.wait(0.05)
            found = store.latest()[0]
            return found if found is not None and found.meta.clock >= clock else None

        saved = until("the checkpoint is written", newest)
        assert saved is not None
        anchor = np.zeros(Schema.from_bytes(saved.schema).size, np.float32)
        saved.load({"anchor": anchor})
        found.append(anchor)
    return found


def _payload(pair: Pair) -> list[int]:
    """Bytes of increments that each daemon has received."""
    return [pair.status(which)["rumour_bytes"]["payload"] for which in (0, 1)]


@pytest.mark.long
def test_two_daemons_train_apart_and_hold_the_same_bits() -> None:
    start = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
    with two_daemons(start, SETTINGS) as pair:
        noise = np.random.default_rng(2)
        for _ in range(100):
            for trainer in pair.trainers:
                trainer.x -= np.float32(0.02) * trainer.x + np.float32(0.01) * noise.standard_normal(SIZE, np.float32)
                trainer.step()
            pair.wait(0.01)
        assert [pair.status(which)["algorithm"] for which in (0, 1)] == ["epidemic"] * 2
        # No process steps any more: what is on its way arrives and reaches x.
        before = [-1, -1]
        while (told := _payload(pair)) != before:
            before = told
            pair.wait(1.5)
        first, second = anchors(pair)
        assert min(told) > 5 * 0.05 * SIZE, "each has got increments of the other"
        assert (first == second).all()
        assert (first[:SIZE] != start).mean() > 0.1
        for trainer in pair.trainers:
            # Residuals, and steps after the last round, are in no anchor.
            assert np.sqrt(np.mean((trainer.x - first[:SIZE]) ** 2)) < 0.2


@pytest.mark.long
def test_two_daemons_judge_what_both_have_sent_and_hold_the_same_bits_of_it() -> None:
    """With a robust rule: both settle the same, and training does not go back meanwhile."""
    start = np.random.default_rng(3).standard_normal(SIZE).astype(np.float32)
    settings = SETTINGS | {"exchange.robust": "nnm-median", "exchange.epoch_steps": 20}
    with two_daemons(start, settings) as pair:
        settled = set[str]()

        def settle() -> bool:
            for trainer in pair.trainers:
                trainer.x -= np.float32(0.02) * trainer.x
                trainer.step()
            pair.wait(0.02)
            first, second = (pair.status(which)["fingerprints"] for which in (0, 1))
            found = first.keys() & second.keys()
            assert all(first[epoch] == second[epoch] for epoch in found)
            settled.update(found)
            return len(settled) >= 8

        until("both settle eight epochs", settle, moves=lambda: len(settled))
        for which in (0, 1):
            with urllib.request.urlopen(pair.status(which)["metrics"]) as page:
                [judged] = re.findall(r"^gossipdp_epochs_judged_total (\S+)$", page.read().decode(), re.MULTILINE)
            assert float(judged) >= 8.0
        for trainer in pair.trainers:
            assert np.mean(trainer.x**2) < 0.5 * np.mean(start**2), "both have learned"


@pytest.mark.long
def test_of_five_daemons_one_that_trains_elsewhere_leads_nobody_there() -> None:
    """By the mean the other four would follow it by 3.5 of 20 on every parameter."""
    start = np.random.default_rng(4).standard_normal(SIZE // 4).astype(np.float32)
    settings = SETTINGS | {"exchange.robust": "nnm-trimmed", "exchange.epoch_steps": 50}
    with contextlib.ExitStack() as running:
        homes = [running.enter_context(one_daemon("first", ["up", "--network", "five"], settings))]
        trainers = [NumpyTrainer(homes[0], start)]
        for name in ("second", "third", "fourth", "fifth"):
            homes.append(running.enter_context(one_daemon(name, ["join", f"@{homes[0] / 'invite'}"], settings)))
            trainers.append(NumpyTrainer(homes[-1], np.zeros_like(start)))

        settled = set[str]()

        def settle() -> bool:
            for _ in range(50):
                for trainer in trainers:
                    aim = np.float32(20.0 if trainer is trainers[-1] else 0.0)
                    trainer.x -= np.float32(0.02) * (trainer.x - aim)
                    trainer.step()
                    trainer.wait(0.01)
            told = [ask(home, "status")["fingerprints"] for home in homes]
            shared = set.intersection(*map(set, told))
            assert all(len({each[epoch] for each in told}) == 1 for epoch in shared)
            settled.update(shared)
            return len(settled) >= 6

        until("all settle six epochs", settle, moves=lambda: len(settled))
        assert all(abs(float(trainer.x.mean())) < 0.2 for trainer in trainers[:-1])
        assert float(trainers[-1].x.mean()) > 5.0
