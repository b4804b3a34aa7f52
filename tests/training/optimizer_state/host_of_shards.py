"""Ranks without gossip that save and load, or load shards of their state: `host_of_shards.py RANK RANKS FOLDER VERB`.

The first rank writes the whole state, as `peer.state_dict()` has it, to FOLDER/VERB.safetensors.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gossipdp
from tests.training.optimizer_state.shards import CHECKPOINT, model_and_optimizer, train

RANK, RANKS, FOLDER, VERB = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]


def saved() -> dict[str, torch.Tensor]:
    """Save shards while training goes on. Returns the whole state that they had, on the first rank."""
    model, optimizer = model_and_optimizer(fully_shard)
    peer = gossipdp.attach(model, optimizer)
    train(model, optimizer, 3)
    whole, shards = peer.state_dict(), peer.state_dict(sharded=True)
    moment = shards["0.weight::exp_avg"]
    assert isinstance(moment, DTensor) and not isinstance(shards["0.weight::step"], DTensor)
    own = optimizer.state[model[0].weight]["exp_avg"].to_local()
    assert moment.to_local().data_ptr() == own.data_ptr(), "gathered or copied"
    beside = dist.new_group()  # collectives of the saving thread must not mix with those of training
    future = dcp.async_save(shards, checkpoint_id=FOLDER / CHECKPOINT, process_group=beside)
    train(model, optimizer, 2)
    future.result()
    peer.detach()
    return whole


def loaded() -> dict[str, torch.Tensor]:
    """Load the shards into a new optimizer. Returns its whole state, on the first rank."""
    model, optimizer = model_and_optimizer(fully_shard)
    peer = gossipdp.attach(model, optimizer)
    shards = peer.state_dict(sharded=True)
    assert shards and not any(value.any() for value in shards.values())
    dcp.load(shards, checkpoint_id=FOLDER / CHECKPOINT)
    assert not optimizer.state, "the optimizer has the state before it was given to it"
    peer.load_state_dict(shards)
    whole = peer.state_dict()
    train(model, optimizer, 1)
    peer.detach()
    return whole


if __name__ == "__main__":
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(FOLDER / f"store-{VERB}"), RANKS), rank=RANK, world_size=RANKS
    )
    if VERB == "save":
        whole = saved()
        again = loaded()
        assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)
    else:
        whole = loaded()
    if RANK == 0:
        save_file(whole, FOLDER / f"{VERB}.safetensors")
    dist.destroy_process_group()
