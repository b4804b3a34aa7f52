"""Every error code: what it means and what an operator can do. Data only; no other module of gossipdp is imported here.

`gossipdp explain CODE` prints an entry, and the page of errors lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gossipdp.error_codes import network, running, training
from gossipdp.error_codes.entry import Code

__all__ = ["ADVICE", "CODES", "EXITS", "RESERVED", "Code"]

CODES: Final[Mapping[str, Code]] = {**network.CODES, **training.CODES, **running.CODES}
"""code -> entry, in the order of the codes"""

RESERVED: Final = frozenset({"GD-504", "GD-507"})
"""codes of earlier versions; no new entry takes one"""

ADVICE: Final[Mapping[str, str]] = {code: entry.do for code, entry in CODES.items() if entry.notices}
"""code -> what to do, where the text of the notice does not say so itself"""

EXITS: Final[Mapping[int, str]] = {
    0: "success",
    1: "a simulation or a benchmark missed a mark; `doctor`: something is wrong; `status --check`: degraded",
    2: "usage: a wrong option or argument",
    3: "configuration, or a script that cannot be followed",
    4: "cannot reach a peer or a daemon",
    5: "refused by the other peers; `status --check`: the same",
    6: "mismatch: another model, network or version",
    7: "this host: memory, ports, disks",
    8: "data or checkpoint",
    9: "this daemon is a copy of a live peer (GD-205)",
    10: "`status --check`: alone",
    11: "`status --check`: joining",
    12: "`status --check`: idle",
    13: "`status --check`: leaving",
    14: "`status --check`: finishing",
    15: "`status --check`: starting",
    70: "a bug in gossipdp",
    75: "a daemon that the supervisor starts again",
    130: "interrupted",
}
"""exit codes of the commands and of the daemon"""
