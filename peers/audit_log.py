"""Reads the audit log of a home for `gossipdp members audit`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime import plain_json
from peers.log_file import FILES
from peers.logs import audit_file

__all__ = ["read", "told"]


def read(home: Path, last: int) -> list[dict[str, Any]]:
    """The last records, the oldest first. Torn lines are skipped."""
    path = audit_file(home)
    files = [*(path.with_name(f"{path.name}.{number}") for number in range(FILES - 1, 0, -1)), path]
    lines = chain.from_iterable(file.read_bytes().splitlines() for file in files if file.exists())
    return [record for line in lines if (record := _record(line)) is not None][-last:]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = plain_json.parse(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("time"), int | float) and "event" in record
    return record if whole else None


def told(record: Mapping[str, Any]) -> str:
    """One record as a line: date and time, the event, and the peer or address."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["time"]))
    about = {key: value for key, value in record.items() if key not in ("time", "event")}
    if peer := about.pop("id", ""):
        name = about.pop("name", "")
        about = {"": f"{name} ({peer[:8]})" if name else str(peer)[:8], **about}
    parts = [f"{key} {value}" if key else str(value) for key, value in about.items()]
    return printable(f"{at}  {record['event']}  {', '.join(parts)}".rstrip())
