"""Decisions of the network's operator, as command and daemon hand them over, and who may make them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from gossipdp.errors import ConfigError
from gossipdp.protocol.admission.register import NETWORK, Admission, signed
from gossipdp.protocol.wire.messages import Decision, Verdict, printable
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity
from gossipdp.runtime.network.key_files import read_key

__all__ = ["Desk", "decode", "describe", "operator_key", "subject_of"]

LEAST: Final = 4
"""digits of an id that name a member, at least"""
_pack = msgspec.msgpack.Encoder().encode


def describe(admission: Admission) -> dict[str, Any]:
    """The answer to `decisions`."""
    return {
        "network": admission.network,
        "operator": admission.operator.hex(),
        "closed": admission.closed,
        "allowed": sorted(peer.hex() for peer in admission.named),
        "decisions": [_told(decision) for decision in admission.decisions],
    }


def _told(decision: Decision) -> dict[str, Any]:
    return {
        "number": decision.number,
        "verdict": decision.verdict.name.lower(),
        "id": decision.subject.hex(),
        "name": decision.name,
        "reason": decision.reason,
        "time": decision.time,
    }


def decode(decision: str) -> Decision:
    """The decision in a request, from hexadecimal digits. Raises ConfigError GD-207."""
    try:
        return msgspec.msgpack.decode(bytes.fromhex(decision), type=Decision)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError("GD-207", "this is no decision", seen=str(error), do="run one version of gossipdp") from None


def operator_key(home: Path, file: Path | None = None) -> Identity:
    """The operator's key in `file`, or in `home`. Raises ConfigError GD-206 or GD-207."""
    path = file or home / OPERATOR_FILE
    try:
        return Identity(read_key(path))
    except FileNotFoundError:
        do = f"do it on the host that founded the network, or name a copy of its {OPERATOR_FILE} with --key"
        raise ConfigError("GD-207", "the operator's key is not here", seen=str(path), do=do) from None


def subject_of(words: str, members: Sequence[Mapping[str, Any]]) -> tuple[bytes, str]:
    """Id and name of the peer that `words` mean: a whole id, the begin of a member's id, or a member's name.

    Raises:
        click.UsageError: they mean no member, or several.
    """
    known = {row["id"]: row["name"] for row in members}
    text = words.lower()
    if re.fullmatch("[0-9a-f]{64}", text):
        return bytes.fromhex(text), str(known.get(text, ""))
    found = [peer for peer, name in known.items() if name == words or (len(text) >= LEAST and peer.startswith(text))]
    if not found:
        raise click.UsageError(f"{words!r} is no member's name, and no id begins with it; see `gossipdp members --all`")
    if len(found) > 1:
        several = ", ".join(f"{known[peer]} ({peer[:16]})" for peer in found[:8])
        raise click.UsageError(f"{words!r} means several members: {several}; give more digits of the id")
    return bytes.fromhex(found[0]), str(known[found[0]])


class Desk:
    """Signs decisions in the order in which they are made.

    Args:
        key: the operator's.
        answer: what the daemon answers to `decisions`.

    Raises:
        ConfigError: GD-207, the daemon follows another operator or none.
    """

    def __init__(self, key: Identity, answer: Mapping[str, Any]) -> None:
        if answer["operator"] != key.id.hex():
            seen = f"this key is {key.id.hex()}, and the host follows {answer['operator'] or 'no operator'}"
            do = "use that operator's key, or `gossipdp keys operator --trust KEY` on every host"
            raise ConfigError("GD-207", "this host does not follow this operator", seen=seen, do=do)
        self._key, self._network = key, str(answer["network"])
        self._number = max([each["number"] for each in answer["decisions"]], default=0)
        self.closed, self.allowed = bool(answer["closed"]), set(map(bytes.fromhex, answer["allowed"]))
        self.banned = {bytes.fromhex(each["id"]) for each in answer["decisions"] if each["verdict"] == "banned"}

    def about_peer(self, verdict: Verdict, peer: bytes, name: str, reason: str) -> str:
        """A signed decision about a peer, newer than all that the daemon knows, in hexadecimal digits."""
        return self._signed(Decision(self._next(), verdict, peer, _clean(name), _clean(reason), int(time.time())))

    def about_network(self, reason: str, *, closed: bool, allowed: Iterable[bytes]) -> str:
        """The same about the network, with the peers that it takes while it is closed."""
        verdict = Verdict.CLOSED if closed else Verdict.OPEN
        return self._signed(
            Decision(self._next(), verdict, NETWORK, "", _clean(reason), int(time.time()), tuple(sorted(set(allowed))))
        )

    def _next(self) -> int:
        self._number = max(self._number + 1, int(time.time() * 1000))
        return self._number

    def _signed(self, decision: Decision) -> str:
        return _pack(signed(decision, self._network, self._key.sign)).hex()


def _clean(text: str) -> str:
    return printable(text)[:48]
