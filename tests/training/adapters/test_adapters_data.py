"""Samplers and streams in loaders of frameworks, which divide among ranks too: every sample is read once."""

import collections
import itertools
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gossipdp.errors import DataError
from gossipdp.training.data import Sampler, Stream
from gossipdp.training.data.passes import ReadingGroup
from tests.training.data_daemons import DataDaemons

SIZE, BATCH = 256, 8
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


class Numbers(Dataset):
    """Sample i is i."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, number: int) -> int:
        return number


@pytest.fixture
def daemons() -> Iterator[DataDaemons]:
    """The environment is restored afterwards."""
    before = dict(os.environ)
    yield DataDaemons()
    os.environ.clear()
    os.environ.update(before)


def rank_of(monkeypatch: pytest.MonkeyPatch, world: int, rank: int, home: Path | None, group: int = 0) -> None:
    """Readers made from now on are those of one rank of a group of `world`."""
    reading = ReadingGroup(bytes([group]) * 16, world, rank, home)
    monkeypatch.setattr(ReadingGroup, "here", classmethod(lambda cls, _: reading))


def loader_of(kind: type, workers: int = 0, **settings: Any) -> tuple[Any, DataLoader]:
    """A stream or sampler in blocks of 16, and a loader of it."""
    reads = kind(Numbers(), block=16, ahead=0)
    if kind is Stream:
        return reads, DataLoader(reads, BATCH, num_workers=workers, **settings)
    return reads, DataLoader(Numbers(), BATCH, sampler=reads, num_workers=workers, **settings)


def drawn(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


# -- accelerate -------------------------------------------------------------------------------------------------


@pytest.fixture
def prepare() -> Callable[..., Any]:
    """As each of two processes prepares its loader."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.data_loader import prepare_data_loader

    accelerate.Accelerator(cpu=True)

    def prepared(loader: DataLoader, rank: int, **settings: Any) -> Any:
        return prepare_data_loader(loader, torch.device("cpu"), num_processes=2, process_index=rank, **settings)

    return prepared


@pytest.mark.parametrize(
    ("kind", "workers", "settings"),
    [
        (Sampler, 0, {}),
        (Sampler, 0, {"even_batches": False}),
        (Sampler, 0, {"split_batches": True}),
        (Stream, 0, {}),
        (Stream, 0, {"split_batches": True}),
        (Stream, 2, {}),
    ],
)
def test_accelerate__ranks_of_prepared_loaders_share_each_epoch_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    daemons: DataDaemons,
    prepare: Callable[..., Any],
    kind: type,
    workers: int,
    settings: dict[str, Any],
) -> None:
    daemon = daemons.start(tmp_path / "a")
    with daemons.running():
        ranks = []
        for rank in range(2):
            rank_of(monkeypatch, 2, rank, tmp_path / "a")
            reads, loader = loader_of(kind, workers)
            ranks.append(prepare(loader, rank, **settings))
        for _ in range(2):
            parts = [drawn(loader) for loader in ranks]
            assert len(parts[0]) == len(parts[1]) == SIZE // 2
            assert sorted(parts[0] + parts[1]) == list(range(SIZE))
        table = daemon.peer.leasing.table(reads.plan.digest)
        daemons.until(lambda: table.epoch + (table.finished[0].bit_count() >= 14) == 2)
        assert table.duplicates == 0


@pytest.mark.parametrize("spawned", [False, True])
def test_accelerate__a_stream_that_one_rank_would_read_for_all_is_gd_309(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[..., Any], spawned: bool
) -> None:
    rank_of(monkeypatch, 2, 0, None)
    workers = {"workers": 1, "multiprocessing_context": "spawn"} if spawned else {}
    _, loader = loader_of(Stream, **workers)
    prepared = prepare(loader, 0, put_on_device=True)
    with pytest.raises(DataError, match="GD-309") as caught:
        next(iter(prepared))
    assert "dispatch_batches=False" in caught.value.do
    rank_of(monkeypatch, 1, 0, None)
    _, loader = loader_of(Stream)
    assert sorted(drawn(prepare(loader, 0, put_on_device=True))) == list(range(SIZE)), "of one rank it is nothing else"


def test_accelerate__what_is_cut_elsewhere_is_told_to_processes_that_are_no_copies(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[..., Any]
) -> None:
    rank_of(monkeypatch, 2, 0, None)
    reads, loader = loader_of(Stream)
    walk = iter(prepare(loader, 0))
    before = reads.__getstate__()
    next(walk)
    assert (before["_whole"], reads.__getstate__()["_whole"]) == (False, True)


def test_accelerate__a_pass_of_several_ranks_has_no_length(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[..., Any]
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    rank_of(monkeypatch, 2, 0, None)
    _, loader = loader_of(Sampler)
    assert not transformers.trainer_utils.has_length(prepare(loader, 0)), "or half of every epoch would be left out"
    rank_of(monkeypatch, 1, 0, None)
    assert len(loader_of(Sampler)[1]) == SIZE // BATCH


# -- transformers -----------------------------------------------------------------------------------------------


def test_hf__a_trainer_wants_steps_where_an_epoch_has_no_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, daemons: DataDaemons, prepare: Callable[..., Any]
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    daemons.start(tmp_path / "a")
    rank_of(monkeypatch, 1, 0, tmp_path / "a")

    def values(**settings: Any) -> tuple[Any, ...]:
        arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **settings)
        trainer = transformers.Trainer(torch.nn.Linear(1, 1), arguments)
        found: tuple[Any, ...] = trainer.set_initial_training_values(arguments, loader_of(Sampler)[1])
        return found

    with daemons.running():
        with pytest.raises(ValueError, match="max_steps"):
            values()
        assert values(max_steps=5)[-1] == 5


# -- lightning --------------------------------------------------------------------------------------------------


def test_lightning__a_sampler_of_several_ranks_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from lightning.pytorch.trainer.states import RunningStage

    rank_of(monkeypatch, 2, 1, None)
    reads, loader = loader_of(Sampler)
    trainer = lightning.Trainer(strategy="ddp", devices=2, accelerator="cpu", logger=False, enable_checkpointing=False)
    prepared = trainer._data_connector._prepare_dataloader(loader, shuffle=False, mode=RunningStage.TRAINING)
    assert prepared.sampler is reads and len(drawn(prepared)) == SIZE // 2
    assert (reads.num_replicas, reads.rank) == (2, 1)


def test_lightning__a_pass_that_others_share_is_validated_at_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, daemons: DataDaemons
) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.seen: list[int] = []
            self.validated: list[int] = []

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            self.seen += batch.tolist()
            loss: torch.Tensor = self.linear(batch[:, None] / SIZE).square().mean()
            return loss

        def validation_step(self, batch: torch.Tensor) -> None:
            self.validated.append(len(self.seen))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    for number in range(2):
        daemons.start(tmp_path / str(number), number)
    with daemons.running():
        rank_of(monkeypatch, 1, 0, tmp_path / "1", group=1)
        other, _ = loader_of(Sampler)
        walk = iter(other)
        next(walk)
        rank_of(monkeypatch, 1, 0, tmp_path / "0", group=2)
        _, loader = loader_of(Sampler)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, default_root_dir=str(tmp_path), enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        module = Module()
        epochs: list[int] = []

        def epoch_begins(trainer: Any, pl_module: Any) -> None:
            epochs.append(len(module.seen))
            # What is left of the other's pass it reads now.
            collections.deque(itertools.islice(walk, SIZE // 2), maxlen=0)

        trainer.callbacks.append(lightning.callbacks.LambdaCallback(on_train_epoch_start=epoch_begins))
        trainer.fit(module, loader, DataLoader(Numbers(), SIZE))
        assert 0 < epochs[1] < SIZE, "the other has read some of it"
        assert module.validated == [epochs[1], len(module.seen)]


# -- ray --------------------------------------------------------------------------------------------------------


def test_ray__a_sampler_of_several_workers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray.train.v2.torch.train_loop_utils", reason="ray is not installed")
    context = types.SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 0)
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    rank_of(monkeypatch, 2, 0, None)
    reads, loader = loader_of(Sampler)
    prepared = ray.prepare_data_loader(loader, move_to_device=False)
    assert prepared.sampler is reads and len(drawn(prepared)) == SIZE // 2
