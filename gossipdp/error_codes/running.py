"""4xx, 5xx and 6xx: exchanges, this host, checkpoints and state. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gossipdp.error_codes.entry import Code

__all__ = ["CODES"]

CODES: Final[Mapping[str, Code]] = {
    "GD-401": Code(
        "No partner",
        "This peer made no exchange for 30 s. The text says why each member was not asked or refused. Training goes"
        " on.",
        "see `gossipdp members`: which are alive, at which round, and by which path",
        notices=True,
    ),
    "GD-402": Code(
        "An update, a snapshot, a message or a link was refused",
        "A payload or a snapshot held NaN or Inf, had the wrong length, or passed a bound. A member with three"
        " proven faults is set aside: no exchanges with it for a minute, twice as long at each relapse, up to an"
        " hour. A member with 1,024 messages or 64 MB waiting to be read loses its link for 10 s. What a member"
        " sends past its budget of costly messages is dropped and counted.",
        "for NaN or Inf, check the training of the sender; otherwise check the sender's version and settings",
        notices=True,
    ),
    "GD-403": Code(
        "Training diverged again",
        "Training gave NaN or Inf within 100 rounds of a reload. The training process ends, and the peer with it."
        " The first time, after three refused snapshots in a row, training loads the network's model and resets its"
        " optimizer.",
        "look for bad samples, lower the learning rate or clip gradients; `[safety] heal = false` switches off both the"
        " reload and this end",
        (8,),
    ),
    "GD-404": Code(
        "The peers did not agree on one final model",
        "Peers exchanged at the end of the run and did not come within 1e-3 of their usual distance. Or most of them"
        " were too far apart to be averaged. There is no final model: this host's own model is in HOME/not-final. The"
        " text and final.json there say the distance, and which members are too far away.",
        "ban or repair a member whose replica is broken; then start all hosts again and `finish` once more, or average"
        " the homes with `checkpoint export --average`",
        (8,),
        notices=True,
    ),
    "GD-405": Code(
        "Training runs away",
        "The movement of a round grew over several rounds, to more than eight times the usual one, and this was not the"
        " first time lately. This peer then steps as if alone: outer learning rate 1, no outer momentum, and the weight"
        " of its exchanges falls to 0. It returns to normal by itself once its rounds stop growing.",
        "lower the learning rate, or look for the batch that makes the loss rise; if you raised the rate on purpose, do"
        " nothing",
        notices=True,
    ),
    "GD-406": Code(
        "A stranger asks all to finish",
        "A member asks all members to end their training. This peer has known other members for `[safety]"
        " proven_after`, but not this one, so it trains on. Keys cost nothing, so a stranger could otherwise end every"
        " run.",
        "run `gossipdp finish` on a host that the others have known for `[safety] proven_after`, or on each host;"
        " `gossipdp members ban` removes a stranger",
        notices=True,
    ),
    "GD-501": Code(
        "A rank died or stopped",
        "A rank of the training group died, or makes no more steps. The text names rank and process. The daemon"
        " stays a member.",
        "see what that rank wrote last; the group continues once its launcher has restarted it",
        (7,),
        notices=True,
    ),
    "GD-502": Code(
        "No memory for the model",
        "The model, or the memory shared with the training process, does not fit in this host's memory. Before a"
        " peer takes memory, it compares what the model needs with what is free. The text says both, what holds the"
        " rest, and which setting saves memory. A daemon that finds no memory later exits with 75 and is started"
        " again.",
        "use a host with more memory, free some, or raise the limit of its container; make room on the disk of"
        " `[checkpoint] dir`, where copies for joiners and moments go",
        (7, 75),
        notices=True,
    ),
    "GD-503": Code(
        "The training process is missing, or one too many",
        "Another training process is already attached, or the training command has not attached. Or a rank is not of"
        " the attached group, or a process of the demo failed.",
        "call `gossipdp.attach(model, optimizer)` once in each training process, and unset GOSSIPDP_OFF",
        (7,),
    ),
    "GD-505": Code(
        "The operating system refused an operation",
        "A disk, a device or a folder of this host cannot be used, such as a home that this user cannot write. A"
        " daemon whose start fails with it exits with 75 and is started again.",
        "check the disk or device that the text names, and the permissions",
        (7, 75),
    ),
    "GD-506": Code(
        "The daemon holds more memory than its bounds allow",
        "The daemon's memory exceeds the sum of its limits. A member can cause that with one endless message.",
        "restart the daemon under a memory limit; if a member does so again, ban it with `gossipdp members ban`",
        notices=True,
    ),
    "GD-508": Code(
        "CUDA cannot pin more memory",
        "The driver refuses to pin memory that daemon and training share. Copies go through a small pinned buffer, and"
        " training waits for them at step boundaries. The text says how much memory is not pinned.",
        "free memory of the host, or give its container more; some virtual machines limit what may be pinned",
        notices=True,
    ),
    "GD-509": Code(
        "This daemon failed on a message",
        "The daemon's own code failed on a message of a member. The exchange and the transfers with that member end,"
        " and the daemon goes on. The member gets no strike, because members pass on messages that others made. The"
        " text names the message and the fault.",
        "report the text as a bug of gossipdp; if a member causes it on purpose, ban it with `gossipdp members ban`",
        notices=True,
    ),
    "GD-510": Code(
        "This operating system is not supported",
        "gossipdp runs on Linux alone. Daemon and training process share memory and sockets in Linux's own ways.",
        "on Windows use WSL2 with mirrored networking, on a Mac a Linux host or container; GOSSIPDP_OFF=1 trains"
        " without a peer",
        (7,),
    ),
    "GD-601": Code(
        "A checkpoint or a state file cannot be read",
        "A checkpoint is damaged, unreadable, or was written by a later version. Or the file that `peer.load` was given"
        " is damaged, or `peer.save` did not write it.",
        "check the disk and delete what is damaged, or upgrade gossipdp on this host",
        (8,),
    ),
    "GD-602": Code(
        "A checkpoint or a file cannot be written",
        "The disk is full, is too slow, or this user cannot write there. Training goes on. Copies for joiners and"
        " moments that are not written stay in memory. After a `peer.save` that returned"
        " False the next call tries again. A daemon whose start fails with it exits with 75 and is started again.",
        "check the disk, or name another folder: [checkpoint] dir",
        (8, 75),
        notices=True,
    ),
    "GD-603": Code(
        "A state file is damaged",
        "A file of the home cannot be read. The text names it. The peer goes on without it where it can.",
        "move it away; the peer writes a new one",
        (8,),
    ),
    "GD-604": Code(
        "No checkpoint",
        "There is no checkpoint to show, verify or export. Or a home that belongs to a run has none, and no member"
        " gives it the model. Or there is no file where `peer.load` looks for one.",
        "start another member of this run",
        (8,),
        notices=True,
    ),
    "GD-605": Code(
        "A later checkpoint is kept",
        "This peer follows the network, although its own checkpoint was ahead of the network's clock. That"
        " checkpoint is pinned: it holds a file `pinned`.",
        "delete it when you no longer want it, or found a new network from it",
    ),
    "GD-606": Code(
        "A pinned checkpoint will be deleted",
        "Four later checkpoints are pinned. The peer deletes the oldest one after it saves new checkpoints.",
        "copy it elsewhere if you want to keep it",
    ),
    "GD-607": Code(
        "This peer follows another side",
        "Two sides of the network trained apart. This side does not train, is the smaller one, or is"
        " behind: it keeps a pinned checkpoint of its model and fetches the other side's. Training goes on meanwhile.",
        "nothing; delete the pinned checkpoint when you no longer want it",
    ),
    "GD-608": Code(
        "Optimizer state of another model, or none",
        "`peer.load` or `peer.load_state_dict` got the state of another model or optimizer, or none. Or `peer.load` got"
        " that of another network's run. Or gossip is off, and the file was saved in a network, whose daemons keep the"
        " model.",
        "load what this model's own training saved, or start with fresh moments",
        (8,),
    ),
    "GD-609": Code(
        "The base of an export cannot be used",
        "The directory holds no safetensors, damaged ones, or several models.",
        "save the trained model with `save_pretrained`, and name that directory as `--base`",
        (8,),
    ),
    "GD-610": Code(
        "Optimizer state that cannot be saved by names",
        "The optimizer keeps something other than plain tensors or numbers (LBFGS, 8-bit optimizers), or keeps state in"
        " attributes of its own (Ranger21). Or its state is scattered over the ranks (ZeroRedundancyOptimizer). Or"
        " another object keeps state in an optimizer that makes none itself (a schedule-free wrapper of plain SGD). Or"
        " `state_dict(sharded=True)` met an entry of a param group that a new optimizer does not have. Training goes"
        " on.",
        "save the optimizer's own state_dict() with the training process's checkpoint; use `peer.save` instead of"
        " shards",
        (8,),
    ),
}
