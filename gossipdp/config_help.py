"""What each key of the configuration means, and when an operator changes it.

`config show`, `config explain` and the page of all keys read it. Types, ranges and defaults are in `config`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from gossipdp.config import AGREED, DEFAULT_PRESET, RULES, SECTIONS, Config, value_of
from gossipdp.config_loading import variable_of

__all__ = ["HELP", "Help", "Key", "known_keys", "section_help"]


class Help(NamedTuple):
    """What `config` does not say of a key."""

    meaning: str
    """one or more sentences; the first is enough for a list"""
    unit: str
    """of the value; "" for a word, a switch or a share"""
    when: str
    """the situation in which an operator changes it"""


HELP: Final[dict[str, Help]] = {
    "preset": Help(
        "Set of values for hosts of one kind: one machine, one data centre, or several providers.",
        "",
        'Use "lan" if all hosts are in one data centre, and "local" if all peers are on one machine.',
    ),
    "network.name": Help(
        "Name of the network. The home is ~/.gossipdp/NAME by default.",
        "",
        "Set it if one host takes part in several networks, or to tell runs apart in logs and metrics.",
    ),
    "network.peer": Help(
        "Name of this peer in `members`. \"auto\" is the host's name with the first digits of the peer's id.",
        "",
        "Set it if host names tell you nothing, as on rented hosts.",
    ),
    "network.listen": Help(
        'Address of the peer\'s one TCP port. Port 0 takes a free port. With "off" this peer only dials out.',
        "",
        "Change the port if another program has it, if a second peer runs on the host, or if the provider maps one "
        "port.",
    ),
    "network.advertise": Help(
        'Address that other peers dial, or a list of up to 4. "auto" chooses them, with the port maps of Vast.ai and '
        'RunPod, and logs the reason. With "none" no peer dials this one.',
        "",
        "Set it if the log warns that the address is private (GD-103) or cannot be dialled (GD-102), as behind a "
        "port map.",
    ),
    "network.nat": Help(
        'Whether the peer asks its router to map its TCP port: "off", or "auto" by NAT-PMP, else by UPnP with the '
        'extra `nat`. It needs `advertise = "auto"`.',
        "",
        'Set it to "auto" at home, where a router drops what comes from outside. The default is "off", because "auto" '
        "changes the router.",
    ),
    "network.relay": Help(
        'Whether this peer carries traffic between members that cannot dial each other, and how much: "off", "auto" '
        "for 100 Mbit/s, or a rate. It needs an address that members can dial. It cannot read what it carries.",
        "",
        "Set it on a host with a public address and spare bandwidth if other hosts can only dial out.",
    ),
    "network.relay_only": Help(
        "Whether this peer only carries traffic: it holds no model and never trains. `gossipdp relay` sets it.",
        "",
        "Set it on a small server with a public address, if no host of the network can be dialled.",
    ),
    "network.proxy": Help(
        "SOCKS5 proxy through which the peer dials all others, such as that of `ssh -D` or of Tailscale in userspace. "
        "The proxy resolves names. It sees which hosts are dialled, but only ciphertext.",
        "",
        "Set it if this host reaches others only through a proxy.",
    ),
    "network.proxy_login": Help(
        "File with `user:password` for the proxy, which no other user may read. The proxy gets both unencrypted.",
        "",
        "Set it if the log says that the proxy wants a user and a password.",
    ),
    "network.seeds": Help(
        "Members to dial first. One live member is enough.",
        "",
        "Set it if every address in the invite has changed, or if the inviting peer cannot be dialled.",
    ),
    "exchange.mode": Help(
        "When corrections reach the live parameters: on arrival (async), at the end of the next round (overlap), "
        "or before training continues (sync).",
        "",
        "Use sync to compare with local SGD or DDP, and overlap if corrections must arrive with a fixed delay.",
    ),
    "exchange.deadline": Help(
        'With mode "sync": time that training waits for the exchanges of a round.',
        "seconds",
        "Raise it if mode sync misses exchanges on a slow link. Lower it if a lost peer stops training for too long.",
    ),
    "exchange.every": Help(
        "H: inner steps per round of a host of typical speed. In modes async and overlap, other hosts make more or "
        "fewer according to their speed.",
        "steps",
        "Raise it to send fewer bytes, or if exchanges fill their rounds. Lower it if replicas drift apart.",
    ),
    "exchange.codec": Help(
        "Codec of the differences that an exchange sends. Two peers use the finer of their codecs.",
        "",
        "Use fp32 to rule out quantization while you look for the cause of a worse loss.",
    ),
    "exchange.bits": Help(
        "Bits per parameter of the modulo codec.",
        "bits/parameter",
        "Use 4 for a slightly lower loss, at a third more bytes. With 2, replicas stay far apart. Use 8 if "
        "gossipdp_escalated_blocks_total is more than 10 % of gossipdp_blocks_total.",
    ),
    "exchange.warmup_steps": Help(
        "End of the warm start, in steps of the network's clock. During it exchanges run back to back, with lr 1 "
        "and momentum 0.",
        "steps",
        "Set 0 if the network starts from a trained model. Raise it if the learning rate of the script warms up "
        "longer.",
    ),
    "exchange.early_steps": Help(
        "End of the early rounds, in steps of the network's clock. They have more exchanges and less outer momentum. "
        "It is unused if `run_steps` is set.",
        "steps",
        "Lower it to a fifth of the run to send fewer bytes. Raise it if replicas still drift apart afterwards.",
    ),
    "exchange.early_exchanges": Help(
        "Exchanges of an early round. A small network makes ceil(log2 N) if that is less.",
        "exchanges",
        "Lower it to send fewer bytes, or if early rounds fill the link.",
    ),
    "exchange.late_exchanges": Help(
        "Exchanges of a round after the early ones, at most. A network of two makes one, and a round makes as many as "
        "fit.",
        "exchanges",
        "Set 1 to send fewer bytes: a long run then sends half as much.",
    ),
    "exchange.partners": Help(
        'Choice of partners while the view is complete and fresh. "hypercube" applies in early rounds if N is a '
        'power of two, and wherever an exchange fills half a round. "base2" always applies. '
        'Otherwise, and with "random", the partner is a random member.',
        "",
        "Use random if hosts come and go all the time, or to compare the schedules.",
    ),
    "exchange.run_steps": Help(
        "Length of the run in steps of the network's clock; 0: unknown. Early rounds are its first 40 %.",
        "steps",
        "Set it if you know how many steps the run will make.",
    ),
    "exchange.bandwidth": Help(
        "Limit of one exchange, each way. Both peers keep to the lower of their limits. It does not limit transfers "
        "of the model.",
        "bytes/second",
        "Set it if exchanges disturb other traffic of the host, or if the provider bills or throttles bursts.",
    ),
    "exchange.kappa": Help(
        "Share of the mixing displacement that enters the outer momentum.",
        "",
        "Lower it if replicas drift apart at a high outer momentum, because momentum amplifies what exchanges move.",
    ),
    "exchange.weight": Help(
        "gamma: how far each anchor moves towards the other. 0.5 is their average.",
        "",
        "Lower it if one exchange should move a replica less, as with members of uncertain quality. Replicas then "
        "agree less.",
    ),
    "exchange.window": Help(
        "Chunks of one exchange in flight at once (credit).",
        "chunks",
        "Raise it if exchanges use little of a long fast link. Lower it if the daemon needs too much memory.",
    ),
    "exchange.apart_rounds": Help(
        "Rounds of separate training after which two sides of a healed partition are not averaged. The smaller "
        "side, or one that does not train, saves its model and fetches the other's.",
        "rounds",
        "Raise it if partitions last long and the smaller side must not lose its work. The loss may then be higher.",
    ),
    "exchange.moments": Help(
        "Whether the daemon keeps Adam's moments for a restarted training process and for joiners. They take 2 bytes "
        "per parameter. A joiner waits for them as for the model.",
        "",
        "Switch it off if joiners start too late over a slow link, or if disk space is short.",
    ),
    "outer.lr": Help(
        'alpha: learning rate of the outer step. "auto" is 1, and falls to 0.7 where an exchange fills its round.',
        "",
        "Lower it if the loss rises after outer steps.",
    ),
    "outer.momentum": Help(
        'mu: momentum of the outer step. "auto" is 0.6 in early rounds and 0.8 after them. It is lower if hosts differ '
        "in speed, and for few hosts: 0.43 for two, at most 0.62 for three and 0.71 for four. From 0.9 on, peers drift "
        "apart.",
        "",
        "Use 0.4 to 0.6 for a long run whose exchanges fill their rounds (metric gossipdp_landing_lateness near 1).",
    ),
    "safety.clip": Help(
        'Factor on the bound of the change that one chunk of one exchange may make. "auto" is 1.5.',
        "",
        "Raise it if sides that trained apart agree too slowly. Lower it to 1 if members may lie: it limits their "
        "harm.",
    ),
    "safety.memory": Help(
        'Memory that may wait to be sent, to all peers together. "auto" is a quarter of the memory, at most 1 GiB.',
        "bytes",
        "Raise it if links to slow members drop messages. Lower it if the training process needs the host's memory.",
    ),
    "safety.allow": Help(
        "Ids of the only peers that may have a link with this one. If it is empty, every peer with the secret may.",
        "",
        "Set it on every host if the secret may have leaked, or if only known hosts may take part.",
    ),
    "safety.ban": Help(
        "Ids of peers that may not have a link with this one.",
        "",
        "Set it on every host to exclude a harmful member.",
    ),
    "safety.heal": Help(
        "After three consecutive snapshots with NaN or Inf, the network's model is loaded into the training "
        "process and its optimizer is reset. If it happens again within 100 rounds, training ends (GD-403).",
        "",
        "Switch it off if your script has its own recovery from NaN.",
    ),
    "safety.proven_after": Help(
        "Time after which a known member counts as proven. Only proven members decide which half of a healed network "
        "goes on, whether this peer lags, when the run ends, and what speed is usual. Until one member is proven, all "
        "count.",
        "seconds",
        "Lower it if all hosts of the network live for minutes.",
    ),
    "checkpoint.dir": Help(
        "Folder of the checkpoints, relative to the peer's home. Copies for joiners and moments are there too, in "
        "unnamed files.",
        "",
        "Set it if the disk of the home is small, slow or lost with the host.",
    ),
    "checkpoint.every": Help(
        'Time between checkpoints. With "off" a peer saves only at the start of a run, on request and when it leaves.',
        "seconds",
        "Lower it on hosts that vanish without notice. Raise it if checkpoints fill the disk's bandwidth.",
    ),
    "checkpoint.keep": Help(
        "Number of checkpoints to keep, newest first.",
        "checkpoints",
        "Lower it if the disk is small. Raise it if you want to go back further than a few checkpoints.",
    ),
    "finish.wait": Help(
        "Time that a peer whose training is over waits for members that still train. If its script ended by itself and "
        "they train on, it then leaves without a final model. It waits at most as long again for members that average "
        'the final model with it. With "off" it waits for none.',
        "seconds",
        "Raise it if scripts end at very different times and all hosts should hold the final model. Lower it if a lost "
        "host must not delay the end.",
    ),
    "finish.follow": Help(
        "Whether this host's training ends when a member runs `gossipdp finish`.",
        "",
        "Set it to false if not every member may end the training of all.",
    ),
    "finish.base": Help(
        "Directory of save_pretrained for this model. HOME/final is then such a directory too. Empty: HOME/final has "
        "one file of tensors.",
        "",
        "Set it to load the final model by from_pretrained, or in a model server.",
    ),
    "metrics.listen": Help(
        "Address of the Prometheus metrics and of the status page. A second daemon on the machine takes a free port.",
        "",
        "Bind it to a private address if Prometheus runs on another machine. Whoever reaches it can read the page.",
    ),
    "compute.workers": Help(
        'Threads of the daemon that encode, decode, mix and step at once, each on other chunks of the model. "auto" '
        "takes 1 below 8 usable cores, 2 below 16, else 4. If daemon and training share few cores, more threads slow "
        "training down.",
        "threads",
        "Raise it if cores are idle and exchanges of a large model fill their rounds. Set 1 if training "
        "needs all cores.",
    ),
    "membership.timing": Help(
        "Preset of the timeouts of membership and links. Members of one network may differ.",
        "",
        "Use lan or local to notice a lost peer sooner. Use wan if healthy peers are suspected on a poor link.",
    ),
}
"""Help by "section.key", and for "preset"."""


class Key(NamedTuple):
    """Everything that pages and commands show of one key."""

    name: str
    """ "section.key", or "preset" """
    meaning: str
    unit: str
    range: str
    default: str
    """as a TOML literal, before any preset"""
    variable: str
    """environment variable that sets it"""
    when: str
    shared: bool
    """all peers of a network need the same value"""


def known_keys() -> Iterator[Key]:
    """Yield every key, in the order of `config.dump`."""
    yield _key("preset", 'one of "lan", "local", "wan"', json.dumps(DEFAULT_PRESET))
    defaults = Config()
    for name, rule in RULES.items():
        yield _key(name, rule.allowed, rule.show(value_of(defaults, name)))


def section_help(section: str) -> str:
    """What the keys of `section` are about, in one sentence."""
    return (SECTIONS[section].__doc__ or "").partition("\n")[0]


def _key(name: str, allowed: str, default: str) -> Key:
    about = HELP[name]
    return Key(name, about.meaning, about.unit, allowed, default, variable_of(name), about.when, name in AGREED)
