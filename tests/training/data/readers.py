"""Data of known size, and the ranks and hosts that read it."""

import threading

import numpy as np
from torch.utils.data import Dataset

from gossipdp.training.data.passes import ReadingGroup
from tests.training.data_daemons import DataDaemon

SIZE = 1000


class Numbers(Dataset):
    """Sample i is i."""

    def __len__(self):
        return SIZE

    def __getitem__(self, number):
        return number


def rank_of(monkeypatch, world, rank, home):
    """Readers made from now on are those of one rank of a group of `world`."""
    group = ReadingGroup(b"one training run"[:16], world, rank, home)
    monkeypatch.setattr(ReadingGroup, "here", classmethod(lambda cls, _: group))


def drawn(loader):
    return [int(number) for batch in loader for number in batch]


def in_threads(actions):
    found = [None] * len(actions)

    def run(place):
        found[place] = actions[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def daemon_reads(daemon: DataDaemon, walk, readers):
    return len(daemon.peer.leasing.table(walk.plan.digest).owners) == readers


class Lines:
    """An iterable that begins anew, shuffled by the epoch as HF data sets are."""

    def __init__(self, size=SIZE):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.size).tolist())
