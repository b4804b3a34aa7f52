"""One thing that happened in a simulated network, for traces."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from gossipdp.protocol import jobs
from gossipdp.protocol.events import Event

__all__ = ["Record"]


class Record(NamedTuple):
    """One thing that happened. `host` and `other` are numbers of hosts.

    sent, twice, lost    `host` hands the message `what` over to `other`; the network duplicates or loses it
    got, missed          the message has arrived from `host` at `other`, or the link is cut, or `other` is down
    said                 the peer of `host` emits the event `what`
    does, did            `host` begins or has finished the job `what`, with `result`
    fault                the fault `what` strikes, at `host` if it concerns one host
    anything else        an input or a timer of `host`, by its name
    """

    at: float
    kind: str
    host: int | None
    other: int | None = None
    what: Any = None
    result: Any = None

    def __str__(self) -> str:
        host = "--" if self.host is None else f"p{self.host}"
        other = "" if self.other is None else f"p{self.other}"
        what = "" if self.what is None else _line(self.what)
        return f"{self.at:10.4f} {host:>4} {other:>4} {self.kind} {what}".rstrip()


def _line(what: Any) -> str:
    dataclass = isinstance(what, Event | jobs.Job)
    names = [each.name for each in fields(what)] if dataclass else getattr(what, "__struct_fields__", ())
    if not names:
        return str(what)
    values = ((name, getattr(what, name)) for name in names)
    shown = (f"{name}={value[:4].hex() if isinstance(value, bytes) else value}" for name, value in values)
    return f"{type(what).__name__}({', '.join(shown)})"[:240]
