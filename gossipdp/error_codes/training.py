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
        " of an export. The text names the first tensor that differs. It may be a frozen one.",
        "train the model that the network trains, or found another network; if frozen values are drawn at random, call"
        " `torch.manual_seed` with one number on every host; `attach(compare_frozen=False)` allows another frozen base",
        (6,),
    ),
    "GD-302": Code(
        "Versions that do not work together",
        "Two hosts have no protocol version in common. Or a daemon and its training process run versions of gossipdp"
        " that do not work together. Hosts may run different versions of gossipdp while they speak a common protocol"
        " version. `gossipdp keys rotate` gives this error while a live member speaks protocol 3.",
        "compare `gossipdp version` on both hosts, and upgrade the one with the older protocol; for a daemon and its"
        " training process, install the same version of gossipdp for both, and restart the daemon",
        (6,),
        notices=True,
    ),
    "GD-303": Code(
        "Settings that peers must share differ",
        "The settings of the algorithm differ: the text names the keys. The two peers neither exchange nor fetch a"
        " model from each other. Or the scripts exclude different tensors, or one that the model does not have.",
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
        "put strings in quotes, and each key on its own line",
        (3,),
    ),
    "GD-311": Code(
        "A value is not allowed",
        "A configuration key has a value that is not allowed. The text says where it came from and what is allowed."
        " Or `peer.log_to` got an object that is not a tracker.",
        "see the allowed values with `gossipdp config explain KEY`",
        (3,),
    ),
    "GD-312": Code(
        "An unknown configuration key",
        "A key, a section or an environment variable that begins with GOSSIPDP_ is not known. The text names the most"
        " similar one. Or the key belongs to a second algorithm, which only earlier versions had. If its value changes"
        " nothing, the peer starts and gives a notice.",
        "correct the name, or remove the key; `gossipdp config show` lists all keys",
        (3,),
        notices=True,
    ),
    "GD-313": Code(
        "The configuration file cannot be read",
        "The file is missing, is not a regular file, is too long, or this user cannot read it.",
        "name a readable TOML file",
        (3,),
    ),
    "GD-314": Code(
        "No peer in the home, or several homes",
        "This host has no peer, or it has several and the command names none, or this user has no home directory. `up`"
        " founds a network only with --network, with RUN.toml, or with a name that you type at a terminal.",
        "name one with `--home DIR` or GOSSIPDP_HOME; `gossipdp up --network NAME` or `join` makes one",
        (3,),
    ),
    "GD-315": Code(
        "This home belongs to another network",
        "A home belongs to one network permanently, and the command names another network.",
        "choose another `--home`",
        (3,),
    ),
    "GD-316": Code(
        "The training command cannot go on",
        "The command cannot be found or executed, or it failed too often. The peer shows the last"
        " lines of its standard error, leaves, and ends with the command's exit code.",
        "if the text names an error of gossipdp, do what the last lines say: gossipdp refused the script, its model or"
        " its state. Otherwise run the script without gossipdp until it trains. Then start this peer again",
        (3,),
    ),
    "GD-317": Code(
        "An optimizer or a schedule that cannot be followed",
        "gossipdp cannot follow an optimizer of DeepSpeed, an optimizer of another model, or two optimizers that step"
        " on one parameter. It cannot follow an optimizer that overwrites the weights with its own copy, or that steps"
        " in the backward pass of a reentrant checkpoint. For a wrapper, the text names the attribute that holds the"
        " optimizer. With `follow_clock` the schedule must be a LambdaLR that counts steps.",
        "step on the model's own parameters with a torch optimizer: the text says how in this case",
        (3,),
    ),
    "GD-318": Code(
        "The demo's folder cannot be used",
        "The path of `gossipdp demo --out` is not a folder, holds files that no demo has written, or another demo uses"
        " it.",
        "name a new or empty folder with `--out`",
        (2,),
    ),
    "GD-319": Code(
        "A trained parameter is not exchanged",
        "The model changed after `attach`, or the optimizer trains parameters that the attached model does not hold."
        " The text names the first one. Training goes on. Peers still exchange the last values of a parameter that is"
        " gone, and these hold the other hosts back.",
        "add, replace and unfreeze parameters before `attach`, and attach every module that is trained",
        notices=True,
    ),
    "GD-320": Code(
        "The ranks of this host train apart",
        "The ranks do not hold the same parameters: their gradients are not reduced. `attach` refuses such a group. If"
        " ranks come apart later, training goes on alone. If it does so until its end, its steps count as lost, the"
        " peer leaves without a final model, and the run ends with 6.",
        "wrap the model in DistributedDataParallel, or shard it with `fully_shard`, before `attach`",
        (6,),
        notices=True,
    ),
    "GD-321": Code(
        "Parameters change, but no step is counted",
        "The script changes parameters and never calls `step()` of an attached optimizer, so nothing is exchanged."
        " The notice comes after at least five changes and ten seconds. On CUDA, gossipdp does not see changes through"
        " `parameter.data`.",
        "in the script, attach the optimizer whose step() is called, or call peer.step() after each update",
        notices=True,
    ),
    "GD-322": Code(
        "The run of this peer ends",
        "The peer is finishing and accepts no more training processes. A process that is still attached trains alone"
        " from then on.",
        "let the script end; to train on, see `gossipdp explain GD-323`",
        (3,),
    ),
    "GD-323": Code(
        "The run of this home is finished",
        "HOME/final holds the final model. More training in this home would be a new run from that model. `up` and"
        " `join` do not begin one by themselves.",
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
        " If weights change after the last step, the last steps do not reach the other hosts.",
        "load weights and run range tests before `attach`",
        notices=True,
    ),
    "GD-326": Code(
        "A second model of this process got the network's model",
        "This process was attached to this home before, with another model. A home is one peer of one network, and a"
        " network has one model: the trained values of the first model replaced those of the second. In a"
        " cross-validation or a sweep, this leaks data from one fold or run into the next.",
        "give each model a network and a home of its own; see `gossipdp up --network NAME`",
        notices=True,
    ),
    "GD-327": Code(
        "The optimizer undoes corrections",
        "This optimizer computes the weights from its own stored point, as MADGRAD, D-Adaptation with SGD"
        " and FTRL do. Its steps pull the weights back towards that point, so hosts learn less from"
        " each other, or nothing. `attach` tries a small copy of the optimizer. The text says which share of a change"
        " that copy undid. Training goes on.",
        "use an optimizer that steps from the current weights, such as AdamW, SGD or Prodigy",
        notices=True,
    ),
}
