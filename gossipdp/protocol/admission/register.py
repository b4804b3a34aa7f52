"""Who may be a member of the network, by this host's lists and by the decisions of the network's operator.

The operator holds a key of its own. Its signature makes a decision valid, so any member may pass the decision on. The
decision with the highest number about a subject stands, so peers with the same decisions admit the same members. The
decision that closes the network names all peers that it takes: no part of a register can shut the rest out. No message,
clock or file may stand here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from gossipdp.protocol.admission.packing import MAX_SUBJECTS
from gossipdp.protocol.wire.messages import Decision, Verdict

__all__ = ["NETWORK", "Admission", "signed"]

NETWORK: Final = b""
"""subject of the decision about the network itself"""
_SAYS: Final = {0: (Verdict.OPEN, Verdict.CLOSED), 32: (Verdict.NONE, Verdict.BANNED)}
"""length of a subject -> what a decision may say of it"""
_PURPOSE: Final = b"gossipdp decision 1\0"
_pack = msgspec.msgpack.Encoder().encode


def signed(decision: Decision, network: str, sign: Callable[[bytes], bytes]) -> Decision:
    """`decision` with the operator's signature, valid in networks of this name alone."""
    return replace(decision, signature=sign(_statement(decision, network)))


def _statement(decision: Decision, network: str) -> bytes:
    about = (decision.subject, decision.name, decision.reason, decision.time, decision.allowed)
    return _PURPOSE + _pack((network, decision.number, int(decision.verdict), *about))


class Admission:
    """The lists of this host, and the decisions that stand.

    Args:
        me: this peer's id, which no list excludes here.
        network: the network's name.
        operator: public key (32 bytes) whose decisions count; b"" if this host knows none.
        verify: checks a signature: public key, data, signature.
        allowed: ids of the only peers that this host admits; empty for every peer.
        banned: ids of peers that this host does not admit.
        decisions: kept from earlier starts. Those of another operator do not stand; `foreign` counts them.
    """

    def __init__(
        self,
        me: bytes,
        *,
        network: str = "",
        operator: bytes = b"",
        verify: Callable[[bytes, bytes, bytes], bool] = lambda key, data, signature: False,
        allowed: frozenset[bytes] = frozenset(),
        banned: frozenset[bytes] = frozenset(),
        decisions: Iterable[Decision] = (),
    ) -> None:
        self.me, self.network, self.operator, self._verify = me, network, operator, verify
        self._allowed, self._banned = allowed, banned
        self._stands: dict[bytes, Decision] = {}
        self._named: frozenset[bytes] = frozenset()
        """the peers that the network takes while it is closed"""
        self.digest = _digest(())
        """16 bytes, equal at all peers that have the same decisions"""
        self.changes = 0
        """number of times that decisions were taken"""
        kept = tuple(decisions)
        self.foreign = sum(not self.genuine(decision) for decision in kept)
        self.take(kept)

    def genuine(self, decision: Decision) -> bool:
        """Whether the operator signed `decision` for this network, and it says something of its kind of subject."""
        fits = decision.verdict in _SAYS.get(len(decision.subject), ())
        statement = _statement(decision, self.network)
        return fits and bool(self.operator) and self._verify(self.operator, statement, decision.signature)

    def news(self, decision: Decision) -> bool:
        """Whether `decision` would replace what stands about its subject."""
        known = self._stands.get(decision.subject)
        if known is None:
            return decision.subject == NETWORK or len(self._stands.keys() - {NETWORK}) < MAX_SUBJECTS
        return (decision.number, decision.signature) > (known.number, known.signature)

    def take(self, decisions: Iterable[Decision]) -> list[Decision]:
        """Let all of `decisions` stand that are genuine and news, at once. Returns them."""
        taken = []
        for decision in decisions:
            if self.news(decision) and self.genuine(decision):
                self._stands[decision.subject] = decision
                taken.append(decision)
        if taken:
            network = self._stands.get(NETWORK)
            self._named = frozenset() if network is None else frozenset(network.allowed)
            self.digest = _digest(self.decisions)
            self.changes += 1
        return taken

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All that stand, sorted by subject."""
        return tuple(self._stands[subject] for subject in sorted(self._stands))

    def about(self, subject: bytes) -> Decision | None:
        """What stands about `subject`; None without a decision."""
        return self._stands.get(subject)

    @property
    def closed(self) -> bool:
        """Whether the network takes only the peers that the operator has named."""
        return self._verdict(NETWORK) is Verdict.CLOSED

    @property
    def named(self) -> frozenset[bytes]:
        """The peers that the network takes while it is closed."""
        return self._named

    def admits(self, peer: bytes) -> bool:
        """Whether this peer may deal with `peer`."""
        return not self.why_not(peer)

    def why_not(self, peer: bytes) -> str:
        """Why this peer may not deal with `peer`; "" if it may."""
        if peer != self.me and peer in self._banned:
            return "[safety] ban of this host names it"
        if peer != self.me and self._allowed and peer not in self._allowed:
            return "[safety] allow of this host does not name it"
        return self.excluded(peer)

    def excluded(self, peer: bytes) -> str:
        """Why the operator keeps `peer` out of the network, on all hosts; "" if it does not."""
        if peer == self.me:
            return ""
        if self._verdict(peer) is Verdict.BANNED:
            return "the operator has banned it"
        return "the network is closed, and the operator has not allowed it" if self._shut(peer) else ""

    @property
    def fate(self) -> str:
        """Why other members keep this peer itself out; "" if they do not."""
        if self._verdict(self.me) is Verdict.BANNED:
            reason = self._stands[self.me].reason
            return "the operator has banned this peer" + (f" ({reason})" if reason else "")
        return "the network is closed, and the operator has not allowed this peer" if self._shut(self.me) else ""

    @property
    def lists(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """The only peers admitted (empty: all but the second set), and the peers not admitted."""
        stands = self._stands.items()
        banned = self._banned | {peer for peer, decision in stands if decision.verdict is Verdict.BANNED}
        allowed = self._allowed
        if self.closed:
            allowed = allowed & self._named if allowed else self._named
        return (allowed | {self.me} if self._allowed or self.closed else frozenset()), banned - {self.me}

    def _shut(self, peer: bytes) -> bool:
        return self.closed and peer not in self._named

    def _verdict(self, subject: bytes) -> Verdict:
        known = self._stands.get(subject)
        return Verdict.NONE if known is None else known.verdict


def _digest(decisions: Iterable[Decision]) -> bytes:
    marks = [(decision.subject, decision.number, decision.signature) for decision in decisions]
    return hashlib.blake2b(_pack(marks), digest_size=16, person=b"gossipdp-decide").digest()
