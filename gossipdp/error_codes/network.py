"""1xx and 2xx: reaching other peers and the daemon of this host; keys and admission. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gossipdp.error_codes.entry import Code

__all__ = ["CODES"]

CODES: Final[Mapping[str, Code]] = {
    "GD-101": Code(
        "No peer answers",
        "A peer does not answer at an address. The text names each address that was tried, and why it failed: refused,"
        " timed out (a firewall that drops packets), unreachable, closed by a proxy, or another program answered. With"
        " `[network] proxy` it also names a proxy that does not answer, is not a SOCKS5 proxy or refuses. The peer"
        " tries again. A joining peer that makes no progress repeats this every half minute.",
        "check that a peer runs there, that its address is right, and that firewalls let its port through",
        (4,),
        notices=True,
    ),
    "GD-102": Code(
        "Other peers cannot dial this peer",
        "Members tried the address that this peer advertises, and did not reach it. The peer goes on outbound-only:"
        " it is a full member over the links that it opens itself.",
        "open its TCP port (4710) to the other hosts, or set `[network] advertise` to the address where they reach it",
    ),
    "GD-103": Code(
        "The advertised address is doubtful",
        "The address that this peer tells others is private, is loopback, or belongs to another interface than the"
        " one it listens on. Or a marketplace or a router maps no port to it. Peers outside cannot dial it.",
        "set `[network] advertise` to an address that the other hosts reach",
    ),
    "GD-104": Code(
        "A port, a socket or a home is taken, or open files run out",
        "A port is busy, the socket of this home belongs to another daemon, or the limit of open files is too low"
        " for all links. A busy port is tried again until it is free. With too few open files the peer keeps fewer"
        " links. It also refuses a training process, which the supervisor starts again. The same code warns of too many"
        " unfinished connections of strangers. The peer closes the oldest of them.",
        "end the other daemon (`gossipdp leave`) or choose another home; raise the limit of open files (`ulimit -n`,"
        " systemd's LimitNOFILE)",
        (4, 7),
        notices=True,
    ),
    "GD-105": Code(
        "No daemon on this host",
        "A command or a training script did not find the daemon of this home, or got no answer. Or it could not open"
        " another file to reach it. `attach` first waits ten seconds if a daemon may be about to start.",
        "start a peer with `gossipdp up` or `gossipdp join`, or name another home with `--home` or GOSSIPDP_HOME;"
        " GOSSIPDP_OFF=1 trains without a network",
        (4,),
    ),
    "GD-106": Code(
        "No model yet",
        "`attach` waited for the network's model and did not get one in time. Or a joiner has met members, and none"
        " of them gave it a model.",
        "see `gossipdp members`: one peer must have the model, or the founder's training must start",
        (4,),
    ),
    "GD-107": Code(
        "Fewer members than expected",
        "`gossipdp members --expect N` found fewer than N live members.",
        "wait, or see `gossipdp members` and `gossipdp status` for the missing members",
        (4,),
    ),
    "GD-201": Code(
        "Another network secret",
        "The encrypted handshake failed, because one side has another network secret. Both sides report it. The"
        " address is dialled again and again, because a proxy without its peer looks the same.",
        "compare the fingerprints that `gossipdp keys show` prints on both hosts: the host with the wrong secret"
        " joins again with a new invite",
        notices=True,
    ),
    "GD-202": Code(
        "An identity was not proven",
        "A peer showed the id of a key that it does not hold. No link is made.",
        "see which host is at that address: it does not hold the key that it shows",
        (5,),
        notices=True,
    ),
    "GD-203": Code(
        "Another network or run",
        "The other side belongs to a network of another name, or to another run of the same name. A joiner ends with"
        " this error if every address of the invite refuses it three times in a row at its first start.",
        "compare network and run in `gossipdp status` on both hosts; to join another network, use another home"
        " (--home)",
        (6,),
        notices=True,
    ),
    "GD-204": Code(
        "Banned, or not among those allowed",
        "The operator has banned one of the two hosts, or closed the network without allowing it. Or the lists"
        " `[safety] ban` and `allow` of one of the two hosts exclude the other. A joiner ends with this error if every"
        " address of the invite refuses it three times in a row at its first start.",
        "see the operator's decisions with `gossipdp members decisions`; if the two hosts should have a link, also"
        " check `[safety] ban` and `allow` on both",
        (5,),
        notices=True,
    ),
    "GD-205": Code(
        "This identity is live elsewhere",
        "Two daemons run with the same key: a home was copied, or a machine image holds a home. Members with a link to"
        " one of the two refuse the other. If the two meet, the daemon that started later, by the hosts' clocks, ends"
        " with 9. The first one restarts (75) if members mistake it for an earlier start of the other. If a machine"
        " was copied while it ran, neither daemon is the first, and both end. Two outbound-only copies do not find"
        " each other.",
        "give each host a home of its own: on the copy, `gossipdp join` with another --home",
        (5, 9, 75),
        notices=True,
    ),
    "GD-206": Code(
        "An invite, a key or a login cannot be used",
        "An invite, a key, the network's secret or the login of a proxy is missing, damaged, unreadable, or open to"
        " other users of the host.",
        "copy the whole invite again (`gossipdp invite --show` prints it); `chmod 600` a file that other users can"
        " read",
        (3,),
    ),
    "GD-207": Code(
        "The operator's key is missing, or is another one",
        "A decision about members needs the key of the network's operator, which `gossipdp up` made on the host that"
        " founded the network. A host follows the one operator that its invite names. As a notice: members follow an"
        " operator, and this host's invite named none.",
        "decide on the host that has operator.key, or name the file with --key. On a host that follows no operator:"
        " `gossipdp keys operator --trust KEY`, with the key that the notice names if you know it, and restart",
        (3,),
        notices=True,
    ),
    "GD-208": Code(
        "Another secret of the network",
        "One of the two hosts has a newer network secret (`gossipdp keys rotate`) than the other. A peer for which the"
        " new secret was sealed gets it from any member. Members admit other peers with the previous secret for a"
        " stated time. An older invite is void after that time.",
        "on the host without the newest secret, `gossipdp join` with a new invite, in the same home; `gossipdp status`"
        " on any member shows who lacks it",
        (3, 5),
        notices=True,
    ),
    "GD-209": Code(
        "The invite does not let this host in",
        "An invite for one host has expired, was revoked, or has let in as many hosts as it may. Or this network's"
        " operator has not signed it. As a notice: it has let in more hosts than it may, because two members admitted"
        " hosts at the same time.",
        "ask for a new invite (`gossipdp invite --for NAME` on the operator's host). If it let in a host that you do"
        " not know, `gossipdp members ban` that host, then `gossipdp keys rotate`",
        (5,),
        notices=True,
    ),
}
