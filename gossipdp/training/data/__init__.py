"""Data loading for peers: every peer and every rank reads another part of the data.

    sampler = gossipdp.training.data.Sampler(dataset)                    # a map-style data set
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    stream = gossipdp.training.data.Stream(TokenFile("train.bin", 1024))   # or any iterable, or a streamed HF data set
    loader = DataLoader(stream, batch_size=12, num_workers=4)

One pass over either is this host's share of one epoch of the network. The network goes through an epoch together, in
blocks. A fast peer reads more blocks, other peers read the open blocks of a lost peer, and a late peer begins where the
network is. Without a daemon, or under GOSSIPDP_OFF, a pass is a whole epoch, divided among the ranks as
torch.utils.data.DistributedSampler does. Nothing here knows the network.
"""

from __future__ import annotations

from gossipdp.training.data.sampler import Sampler
from gossipdp.training.data.sources import TokenFile
from gossipdp.training.data.stream import Stream

__all__ = ["Sampler", "Stream", "TokenFile"]
