"""3xx: configuration, models, optimizers and training scripts. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gossipdp.error_codes.entry import Code

__all__ = ["CODES"]

CODES: Final[Mapping[str, Code]] = {
    "GD-301": Code(
        "Another model",
        "The model differs from the network's, or between the ranks of a host, or between a checkpoint and the base"
        " of an export. The text names the first tensor that differs, a frozen one too.",
        "train the model that the network trains, or found another network; frozen values that are drawn at random"
        " want one `torch.manual_seed` on every host; `attach(compare_frozen=False)` allows another frozen base",
        (6,),
    ),
    "GD-302": Code(
        "Another protocol version",
        "Two hosts, or a daemon and its training process, run versions of gossipdp that do not understand each other.",
        "install one version on all hosts: `gossipdp version` says which",
        (6,),
        notices=True,
    ),
    "GD-303": Code(
        "Settings that peers must share differ",
        "The settings of the algorithm differ: the text names the keys. No exchange is made and no model fetched. It"
        " also says that scripts exclude different tensors, or one that the model does not have.",
        "give all hosts the same `[exchange]` and `[outer]` settings, and `attach` the same `exclude`",
        (3, 6),
    ),
    "GD-304": Code(
        "A sharding that cannot be exchanged",
        "The model is wrapped in FSDP1, or a tensor is sharded by columns or over several mesh dimensions.",
        "shard with `torch.distributed.fsdp.fully_shard` (FSDP2), along the first dimension",
        (6,),
    ),
    "GD-305": Code(
        "A tensor that cannot be exchanged",
        "A parameter or buffer is not dense fp32, fp64, bf16 or fp16. Or it shares a part of its memory with another"
        " one. Or no parameter is trained.",
        "freeze or exclude that tensor, or attach another model",
        (6,),
    ),
    "GD-306": Code(
        "Several ranks without a process group",
        "The launcher started several ranks, and the script attached before torch.distributed was initialized.",
        "call `torch.distributed.init_process_group` before `gossipdp.attach`",
        (3,),
    ),
    "GD-307": Code(
        "A framework is not installed",
        "An adapter needs a package that cannot be imported. The text names the extra that installs it.",
        "install the extra: `pip install 'gossipdp[NAME]'`",
        (3,),
    ),
    "GD-308": Code(
        "One group of ranks spans several hosts",
        "torchrun joined ranks of several hosts into one group. A peer is one host.",
        "start torchrun on each host by itself (`--standalone`): gossip joins the hosts",
        (3,),
    ),
    "GD-309": Code(
        "Shared data cannot be read, or differs",
        "A `Sampler` or `Stream` cannot read its data, or peers use data of different length, block or seed under"
        " one name.",
        "give all peers the same data set, name, block and seed",
        (8,),
    ),
    "GD-310": Code(
        "The configuration is not valid TOML",
        "The text names file and line.",
        "put texts in quotes, and one key on a line",
        (3,),
    ),
    "GD-311": Code(
        "A value is not allowed",
        "A configuration key has a value that is not allowed. The text says where it came from and what is allowed."
        " Or `peer.log_to` got something that is no tracker.",
        "`gossipdp config explain KEY` says what a key may be",
        (3,),
    ),
    "GD-312": Code(
        "An unknown configuration key",
        "A key, a section or an environment variable that begins with GOSSIPDP_ is not known. The text names the"
        " nearest. Or it is a key of an earlier version that had a second algorithm; a value of it that changes nothing"
        " is only noticed.",
        "correct the name, or remove the key; `gossipdp config show` lists all keys",
        (3,),
        notices=True,
    ),
    "GD-313": Code(
        "The configuration file cannot be read",
        "The file is missing, is no file, is too long, or this user cannot read it.",
        "name a readable TOML file",
        (3,),
    ),
    "GD-314": Code(
        "Which home is meant is unclear, or it holds no peer",
        "There is no peer on this host, there are several and none is named, or this user has no home directory. `up`"
        " founds a network only if --network or RUN.toml is given, or its name at a terminal.",
        "name one with `--home DIR` or GOSSIPDP_HOME; `gossipdp up --network NAME` or `join` makes one",
        (3,),
    ),
    "GD-315": Code(
        "This home belongs to another network",
        "A home belongs to one network for ever, and its name differs from the one asked for.",
        "choose another `--home`",
        (3,),
    ),
    "GD-316": Code(
        "The training command cannot go on",
        "The command cannot be found or executed, or it ended too often: see the rules of restarts. The peer shows"
        " the last lines of its standard error, leaves, and ends with the command's exit code.",
        "if the text names an error of gossipdp, do what the last lines say: gossipdp refused the script, its model or"
        " its state. Else run it without gossipdp until it trains. Then start this peer again",
        (3,),
    ),
    "GD-317": Code(
        "An optimizer or a schedule that cannot be followed",
        "gossipdp cannot follow DeepSpeed's optimizers, one of another model, or two that step on one parameter. It"
        " cannot follow one that puts its own copy of the weights back, or that steps in the backward pass of a"
        " reentrant checkpoint. Of a wrapper the text names the attribute that holds the optimizer. With"
        " `follow_clock` a schedule must be a LambdaLR that counts steps.",
        "step on the model's own parameters with a torch optimizer: the text says how in this case",
        (3,),
    ),
    "GD-318": Code(
        "The demo's folder cannot be used",
        "`gossipdp demo --out` names something that is no folder, holds files of something else, or is in use by"
        " another demo.",
        "name a new or empty folder with `--out`",
        (2,),
    ),
    "GD-319": Code(
        "A trained parameter is not exchanged",
        "The model changed after `attach`, or the optimizer trains parameters that the attached model does not hold."
        " The text names the first one. Training goes on. The last values of a parameter that is gone go on being"
        " exchanged, and hold the other hosts back.",
        "add, replace and unfreeze parameters before `attach`, and attach every module that is trained",
        notices=True,
    ),
    "GD-320": Code(
        "The ranks of this host train apart",
        "The ranks do not hold the same parameters: their gradients are not reduced. At `attach` the group is"
        " refused. Later training goes on alone. If it does so to its end, its steps count as lost, the peer leaves"
        " without a final model, and the run ends with 6.",
        "wrap the model in DistributedDataParallel, or shard it with `fully_shard`, before `attach`",
        (6,),
        notices=True,
    ),
    "GD-321": Code(
        "Parameters change and no step is counted",
        "The script changes parameters and never calls `step()` of an attached optimizer, so nothing is exchanged."
        " It is reported after five changes, and after ten seconds at least. On CUDA, changes through"
        " `parameter.data` are not noticed.",
        "in the script, attach the optimizer whose step() is called, or call peer.step() after each update",
        notices=True,
    ),
    "GD-322": Code(
        "The run of this peer ends",
        "The peer finishes, and takes no training process any more. A process that is attached trains alone from then"
        " on.",
        "let the script end; to train on, see `gossipdp explain GD-323`",
        (3,),
    ),
    "GD-323": Code(
        "The run of this home is finished",
        "HOME/final holds the final model. Training on in this home would be another run from that model, so `up` and"
        " `join` do not begin one without being told.",
        "begin a new run in another home (`--home`); to train this model on, rename HOME/final as the text says",
        (3,),
    ),
    "GD-324": Code(
        "A plan lacks a figure",
        "`gossipdp plan` needs a figure that is missing, or got one that is not allowed. The text names the flag.",
        "give the flag that the text names; `gossipdp plan --help` has an example",
        (3,),
    ),
    "GD-325": Code(
        "The script loaded weights while attached",
        "`load_state_dict` changed the attached model outside a step, for example after a learning-rate range test or"
        " for a rollback. If other hosts train, the network's model is put back, because loaded weights would pull all"
        " hosts away from it. If none does, the loaded weights become the model. To replace the model of a whole"
        " network: stop the other hosts by `gossipdp leave`, load the weights and make a step, then start them again."
        " If weights change after the last step, the last steps are not handed over.",
        "load weights and run range tests before `attach`",
        notices=True,
    ),
    "GD-326": Code(
        "A second model of this process got the network's model",
        "This process was attached to this home before, with another model. A home is one peer of one network, and a"
        " network has one model: the second model's values were replaced by those that the first one was trained to."
        " For folds of a cross-validation or runs of a sweep that is a leak.",
        "give each model a network and a home of its own; see `gossipdp up --network NAME`",
        notices=True,
    ),
    "GD-327": Code(
        "The optimizer draws corrections back",
        "This optimizer computes the weights from a point of its own, as MADGRAD, D-Adaptation, Lookahead and"
        " schedule-free optimizers do. What other hosts have learned is drawn back towards that point, so hosts learn"
        " less from each other, or nothing. `attach` tries a small copy of the optimizer, and the text tells the share"
        " of a change that it took back. Training goes on.",
        "train with an optimizer whose steps depend on gradients, such as AdamW, SGD or Prodigy",
        notices=True,
    ),
}
