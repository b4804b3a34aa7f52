"""What the homes of one run hold: who took part, what each went through, with which settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from gossipdp.config import Config, agreed
from gossipdp.config_loading import load
from gossipdp.error_codes import CODES
from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import printable, short
from gossipdp.runtime import plain_json
from gossipdp.runtime.files import load_run
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.observability.history import EVERY, FILE, Record, read
from gossipdp.runtime.storage.store import Store
from peers import home as homes
from peers.finished import read_about
from peers.invites import read_invite
from peers.log_file import FILES, log_file

__all__ = ["Event", "PeerRun", "Totals", "bytes_per_parameter", "events", "gather", "grown", "totals_of"]


LINE: Final = re.compile(r"(\S+) (?:WARNING|ERROR  ) [^:]*: (?:.*?)(GD-[0-9]{3})\b[ :]*(.*)")
SHOWN: Final = 240
"""characters of the last text"""
LARGEST: Final = 12 << 20
"""bytes read of one log file: its end"""


@dataclass(frozen=True, slots=True)
class Event:
    """All warnings and errors with one code.

    first, last: seconds since 1970.
    text: what the last one said.
    """

    code: str
    count: int
    first: float
    last: float
    text: str

    @property
    def title(self) -> str:
        return CODES[self.code].title if self.code in CODES else ""

    @property
    def do(self) -> str:
        return CODES[self.code].do if self.code in CODES else ""


def events(home: Path) -> list[Event]:
    """The warnings and errors of daemon and supervisor by code, the newest first."""
    found: dict[str, Event] = {}
    for process in ("peer", "supervisor"):
        for at, code, text in _told(_lines(log_file(home, process))):
            known = found.get(code)
            if known is None:
                found[code] = Event(code, 1, at, at, text)
            else:
                newer = text if at >= known.last else known.text
                found[code] = replace(
                    known, count=known.count + 1, first=min(known.first, at), last=max(known.last, at), text=newer
                )
    return sorted(found.values(), key=lambda event: -event.last)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log and of its rotated files. A file that cannot be read has none."""
    for each in (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FILES))):
        try:
            with open(each, "rb") as file:
                file.seek(max(0, each.stat().st_size - LARGEST))
                yield from file.read(LARGEST).decode("utf-8", "replace").splitlines()
        except OSError:
            continue


def _told(lines: Iterable[str]) -> Iterator[tuple[float, str, str]]:
    """Time, code and text of each warning and error with a code, from a log of text or of JSON lines."""
    for line in lines:
        try:
            if line.startswith("{"):
                said = plain_json.parse(line)
                if said.get("code") and said.get("level") in ("warning", "error"):
                    text = str(said.get("message")).removeprefix(str(said["code"])).strip()
                    yield float(said["time"]), str(said["code"])[:6], _short(text)
            elif (match := LINE.match(line)) is not None:
                yield datetime.fromisoformat(match[1]).timestamp(), match[2], _short(match[3])
        except (ValueError, TypeError, AttributeError):
            continue


def _short(text: str) -> str:
    """The text without its advice, which has a column of its own."""
    return printable(text.partition("; do: ")[0])[:SHOWN]


GAP: Final = 6 * EVERY
"""seconds between two records from which the daemon counts as away"""


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures of one peer over all lives of its daemon.

    away: seconds between its lives. stall: seconds of training spent in gossipdp.
    exchanged, formula: bytes received in exchanges, counted and by the codecs' formulas. parameters: mixed in them.
    """

    seconds: float
    away: float
    lives: int
    rounds: int
    steps: int
    samples: int
    stall: float
    sent: int
    received: int
    exchanges: int
    failed: int
    exchanged: float
    formula: float
    parameters: float


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One peer of the run, as its home tells it.

    final: what final.json says; empty if the run is not finished.
    checkpoints: rounds and clocks of the checkpoints that are kept.
    """

    home: Path
    name: str
    id: str
    network: str
    run: str
    settings: dict[str, Any]
    records: Sequence[Record]
    events: Sequence[Event]
    checkpoints: Sequence[str]
    final: dict[str, Any]

    @property
    def totals(self) -> Totals:
        return totals_of(self.records)

    @property
    def loss(self) -> float | None:
        """The training loss that was reported last."""
        return next((record.loss for record in reversed(self.records) if record.loss is not None), None)


def gather(places: Sequence[Path]) -> list[PeerRun]:
    """Read the homes.

    Raises:
        ConfigError: GD-314, a place is no home; GD-315, the homes belong to different networks.
    """
    found = [_peer(place) for place in places]
    networks = sorted({(peer.network, peer.run) for peer in found})
    if len(networks) > 1:
        seen = "; ".join(f"{name}, run {run[:8] or 'none'}" for name, run in networks)
        raise ConfigError("GD-315", "these homes belong to different runs", seen=seen, do="name homes of one run")
    # A flag of `up` may have named a peer: its home does not tell, and the other members do.
    names = {member.id: member.name for peer in found for record in peer.records for member in record.members}
    return [replace(peer, name=names.get(peer.id, peer.name)) for peer in found]


def _peer(home: Path) -> PeerRun:
    known = homes.network_of(home)
    if known is None:
        do = "name the folder of a peer, such as ~/.gossipdp/NETWORK"
        raise ConfigError("GD-314", "this is no peer's home", seen=str(home), do=do)
    config, identity = homes.read_config(home), Identity.load(home)
    store = Store(home / config.checkpoint.dir, keep=config.checkpoint.keep)
    return PeerRun(
        home=home,
        name=homes.peer_name(config, identity),
        id=short(identity.id),
        network=known.name,
        run=(load_run(home / homes.RUN) or b"").hex(),
        settings=_settings(home, config),
        records=read(home / FILE),
        events=events(home),
        checkpoints=[path.name for path in store.list()],
        final=read_about(home) or {},
    )


def _settings(home: Path, config: Config) -> dict[str, Any]:
    """The settings in force: HOME/invite also has those of flags, which `config` lacks."""
    try:
        invited = read_invite(homes.read_text(homes.invite_file(home))).settings
    except ConfigError:
        return agreed(config)
    return agreed(load(invited, file="invite", presets=homes.presets()))


def grown(records: Sequence[Record], value: Callable[[Record], float], *, by_life: bool = True) -> list[float]:
    """A counter that begins anew now and then, as one that does not.

    Args:
        by_life: it begins anew with each life of the daemon. Else, as one of the training process, where it falls.
    """
    before, last, totals = 0.0, 0.0, []
    for number, record in enumerate(records):
        new_life = by_life and number > 0 and records[number - 1].life != record.life
        if new_life or value(record) < last:
            before += last
        last = value(record)
        totals.append(before + last)
    return totals


def totals_of(records: Sequence[Record]) -> Totals:
    """The figures of a peer with this history. The report and the demo tell them alike."""
    if not records:
        return Totals(0.0, 0.0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    gaps = [b.time - a.time for a, b in pairwise(records) if a.life != b.life and b.time - a.time > GAP]
    return Totals(
        seconds=records[-1].time - records[0].time,
        away=sum(gaps),
        lives=len({record.life for record in records}),
        # A daemon that was killed counts on from its newest checkpoint, until it has heard what it had done.
        rounds=max(record.round for record in records),
        steps=int(grown(records, lambda record: record.steps)[-1]),
        samples=int(grown(records, lambda record: record.samples)[-1]),
        stall=grown(records, lambda record: record.stall, by_life=False)[-1],
        sent=int(grown(records, lambda record: record.sent)[-1]),
        received=int(grown(records, lambda record: record.received)[-1]),
        exchanges=int(grown(records, lambda record: record.exchanges)[-1]),
        failed=int(grown(records, lambda record: record.failed)[-1]),
        exchanged=grown(records, lambda record: record.exchanged)[-1],
        formula=grown(records, lambda record: record.formula)[-1],
        parameters=grown(records, lambda record: record.parameters)[-1],
    )


def bytes_per_parameter(totals: Sequence[Totals]) -> tuple[float | None, float | None]:
    """Bytes received for each parameter of an exchange, counted and by the formula; None without an exchange."""
    whole = sum(each.parameters for each in totals)
    if not whole:
        return None, None
    return round(sum(each.exchanged for each in totals) / whole, 4), round(
        sum(each.formula for each in totals) / whole, 4
    )
