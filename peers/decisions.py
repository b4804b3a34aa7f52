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
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import NETWORK, SECRET, signed
from gossipdp.protocol.wire.messages import Decision, HostInvite, NewSecret, Verdict, printable
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity, digest_of
from gossipdp.runtime.network.key_files import read_key

__all__ = ["Desk", "decode", "describe", "encode", "operator_key", "subject_of"]

LEAST: Final = 4
"""digits of an id that name a member, at least"""
_pack = msgspec.msgpack.Encoder().encode


def describe(admission: Admission, generation: int) -> dict[str, Any]:
    """The answer to `decisions`. generation: of the secret that this host holds."""
    return {
        "network": admission.network,
        "operator": admission.operator.hex(),
        "closed": admission.closed,
        "allowed": sorted(peer.hex() for peer in admission.named),
        "generation": generation,
        "decisions": [_told(decision, admission) for decision in admission.decisions],
    }


def _told(decision: Decision, admission: Admission) -> dict[str, Any]:
    invite = decision.invite
    let_in = sorted(peer.hex() for peer in admission.holders(decision.subject))
    terms = {"expires": invite.expires, "uses": invite.uses, "let_in": let_in} if invite is not None else {}
    return {
        "number": decision.number,
        "verdict": decision.verdict.name.lower(),
        "id": decision.subject.hex(),
        "name": decision.name,
        "reason": decision.reason,
        "time": decision.time,
        **terms,
    }


def encode(decision: Decision) -> str:
    """A decision for a request, in hexadecimal digits."""
    return _pack(decision).hex()


def decode(decision: str) -> Decision:
    """The decision in a request, from hexadecimal digits. Raises ConfigError GD-207."""
    try:
        return msgspec.msgpack.decode(bytes.fromhex(decision), type=Decision)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError("GD-207", "this is not a decision", seen=str(error), do="upgrade gossipdp") from None


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
        near = [name for name in sorted({*known.values()}) if words and name.startswith(words)]
        see = f"did you mean {' or '.join(near[:8])}?" if near else "see `gossipdp members --all`"
        raise click.UsageError(f"{words!r} is no member's name, and no id begins with it; {see}")
    if len(found) > 1:
        several = ", ".join(f"{known[peer]} ({peer[:16]})" for peer in found[:8])
        raise click.UsageError(f"{words!r} fits several members: {several}; give more digits of the id")
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
            seen = f"this key is {key.id.hex()}, but the host follows {answer['operator'] or 'no operator'}"
            do = "use that operator's key, or `gossipdp keys operator --trust KEY` on every host"
            raise ConfigError("GD-207", "this host does not follow this operator", seen=seen, do=do)
        self._key, self._network = key, str(answer["network"])
        self._number = max([each["number"] for each in answer["decisions"]], default=0)
        self.generation = int(answer["generation"])
        """of the network's secret"""
        self.closed, self.allowed = bool(answer["closed"]), set(map(bytes.fromhex, answer["allowed"]))
        self.banned = {bytes.fromhex(each["id"]) for each in answer["decisions"] if each["verdict"] == "banned"}

    @classmethod
    def of_founder(cls, key: Identity, network: str) -> Desk:
        """The desk of an operator whose network has no daemon yet."""
        return cls(key, describe(Admission(key.id, network=network, operator=key.id), 0))

    def about_peer(self, verdict: Verdict, peer: bytes, name: str, reason: str) -> str:
        """A signed decision about a peer, newer than all that the daemon knows, in hexadecimal digits."""
        return self._signed(Decision(self._next(), verdict, peer, _clean(name), _clean(reason), int(time.time())))

    def about_network(self, reason: str, *, closed: bool, allowed: Iterable[bytes]) -> str:
        """The same about the network, with the peers that it takes while it is closed."""
        verdict = Verdict.CLOSED if closed else Verdict.OPEN
        return self._signed(
            Decision(self._next(), verdict, NETWORK, "", _clean(reason), int(time.time()), tuple(sorted(set(allowed))))
        )

    def about_invite(self, key: bytes, name: str, expires: float, uses: int) -> Decision:
        """A signed decision that the invite with this public key lets hosts in.

        Args:
            expires: seconds since 1970.
            uses: hosts.
        """
        made = HostInvite(int(expires), uses, self.generation)
        return self.sign(Decision(self._next(), Verdict.INVITED, key, name, "", int(time.time()), invite=made))

    def revoked(self, key: bytes, name: str, reason: str, expires: int, uses: int) -> str:
        """A signed decision that revokes an invite, in hexadecimal digits."""
        made, about = HostInvite(expires, uses, self.generation), (key, name, _clean(reason), int(time.time()))
        return self._signed(Decision(self._next(), Verdict.REVOKED, *about, invite=made))

    def about_secret(
        self, secret: bytes, peers: Iterable[bytes], grace: float = 0.0, reason: str = "", *, first: bool = False
    ) -> Decision:
        """A signed decision that the network has a new secret, sealed for each of `peers`.

        Args:
            grace: seconds for which everybody with the secret before is let in.
            first: the network is new, so no secret was before.
        """
        named, now, number = tuple(sorted(set(peers))), time.time(), self._next()
        boxes = tuple(Identity.seal(peer, secret) for peer in named)
        made = NewSecret(number if first else self.generation, int(now + grace), digest_of(secret), boxes)
        about = SECRET, "", _clean(reason), int(now), named
        return self.sign(Decision(number, Verdict.RENEWED, *about, secret=made))

    def _next(self) -> int:
        self._number = max(self._number + 1, int(time.time() * 1000))
        return self._number

    def sign(self, decision: Decision) -> Decision:
        """`decision` with the operator's signature."""
        return signed(decision, self._network, self._key.sign)

    def _signed(self, decision: Decision) -> str:
        return encode(self.sign(decision))


def _clean(text: str) -> str:
    return printable(text)[:48]
