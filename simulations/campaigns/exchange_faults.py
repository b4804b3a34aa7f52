"""Names of what can go wrong in the watched exchange of a `Duel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Fault", "Label", "Setting", "Step"]


class Label(NamedTuple):
    """Names one message of the watched exchange: sender, type, chunk, turn, and how often it was sent before."""

    sender: int
    kind: str
    chunk: int
    turn: int
    occurrence: int

    def __str__(self) -> str:
        where = "" if self.chunk < 0 else f" chunk {self.chunk}" + (f" turn {self.turn}" if self.turn >= 0 else "")
        return f"p{self.sender} {self.kind}{where}" + (f" (no. {self.occurrence + 1})" if self.occurrence else "")


class Step(NamedTuple):
    """One event of the watched exchange, after which a fault may strike."""

    at: float
    host: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The kind of exchange that is watched."""

    name: str
    window: int = 2
    chunks: int = 2
    crossing: bool = False
    """both peers offer at the same moment"""
    job: float = 0.003
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong: `kind` at `label`, or after event number `after`.

    lose, lose twice,            the message with this label; late: by `LATE` seconds;
    double, double late,         behind: the next message overtakes it
    late, behind
    again                        it and all that its sender sends later arrive a second time, `lasts` seconds late
    crash, both crash, leave     of `host` or of both, back after `lasts` seconds
    cut, one-way                 no message passes for `lasts` seconds, or none of `host`
    cut and crash                and `host` crashes in the middle of the cut
    pause                        `host` stands still for `lasts` seconds
    """

    kind: str
    label: Label | None = None
    after: int = -1
    host: int = 0
    lasts: float = 0.0
    disk: bool = True

    def __str__(self) -> str:
        if self.label is not None:
            return f"{self.kind}: {self.label}" + (f", {self.lasts:g} s late" if self.lasts else "")
        who = {"cut": "", "both crash": ""}.get(self.kind, f" p{self.host}")
        return f"{self.kind}{who} after event {self.after}, {self.lasts:g} s{'' if self.disk else ', disk lost'}"
