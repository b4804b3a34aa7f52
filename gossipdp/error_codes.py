"""What an operator can do about each error code. Data only; nothing of gossipdp is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ADVICE"]

ADVICE: Final[Mapping[str, str]] = {
    "GD-101": "see that a peer runs there, that its address is right, that firewalls let its port through",
    "GD-104": "raise the limit of open files (`ulimit -n`, systemd's LimitNOFILE)",
    "GD-201": "compare the fingerprints that `gossipdp keys show` prints on both hosts: the host with the wrong secret"
    " joins again with a new invite",
    "GD-202": "see which host is at that address: it does not hold the key that it shows",
    "GD-203": "`gossipdp status` names network and run; to join another one, take a home of its own (--home)",
    "GD-204": "if the two are to have links, check [safety] ban and allow on both hosts",
    "GD-205": "give each host a home of its own: on the copy, `gossipdp join` with another --home",
    "GD-302": "install one version on all hosts: `gossipdp version` says which",
    "GD-321": "in the script, attach the optimizer whose step() is called, or call peer.step() after each update",
    "GD-401": "see `gossipdp members`: which are alive, at which round, and by which path",
    "GD-402": "NaN: look at the training of the sender; anything else: at the sender's version and settings",
    "GD-501": "see what that rank wrote last; the group goes on once its launcher has started it again",
    "GD-502": "use a host with more memory, or raise its container's limit",
    "GD-507": "raise `[safety] memory` to what all members publish in seven epochs, or take another compressor",
    "GD-506": "restart the daemon under a memory limit; `gossipdp keys rotate` keeps a member out that does so again",
    "GD-602": "check the disk, or name another folder: [checkpoint] dir",
    "GD-604": "start another member of this run",
}
"""code -> what to do, where the text of the error or notice does not say so itself"""
