"""The content of a state, for a peer that takes the state over and then applies exactly what is missing.

The summary holds the signed headers of all increments in the live epochs, so the receiver can check them and prove
later what they prove. Settled epochs are digests. The summary is bounded as epochs are. A receiver refuses a larger one
before it verifies a signature, because verification costs time. No timer and no payload is handled here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic.epoch_set import MAX_LIVES, MAX_RUMOURS
from gossipdp.protocol.epidemic.epochs import AHEAD, GRACE, KEPT, MAX_HELD, REMEMBERED, SETTLE, Epochs, Settled, Usual
from gossipdp.protocol.epidemic.signing import name_of
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import LONGEST, NO_BASE, Rumour
from gossipdp.protocol.wire.messages import MAX_BUFFER, U32, U63, Digest

__all__ = ["Summary", "pack", "unpack"]

_MOST: Final = MAX_RUMOURS * (GRACE + SETTLE + 1 + AHEAD + MAX_HELD)


class _Past(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: U32
    digest: Digest
    count: U32
    samples: U63


class _Usual(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: U32
    length: Annotated[float, Meta(ge=0.0, le=LONGEST)]
    age: U32


_Proof = Annotated[tuple[Rumour, ...], Meta(min_length=2, max_length=MAX_LIVES + 1)]


class Summary(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is inside a state. The encoding is part of the wire format."""

    first: U32
    """first epoch that is not settled"""
    past: Annotated[tuple[_Past, ...], Meta(max_length=KEPT)]
    inside: Annotated[tuple[Rumour, ...], Meta(max_length=_MOST)]
    proofs: Annotated[tuple[_Proof, ...], Meta(max_length=_MOST)]
    base: Digest = NO_BASE
    """name of the state's founding"""
    lengths: Annotated[tuple[_Usual, ...], Meta(max_length=REMEMBERED)] = ()
    """lengths of increments in settled epochs"""

    def usual(self) -> dict[int, Usual]:
        """`lengths` as `Epochs.restart` takes them."""
        return {each.epoch: Usual(each.length, each.age) for each in self.lengths}

    def settled(self) -> dict[int, Settled]:
        """`past` as `Epochs.restart` takes them."""
        return {past.epoch: Settled(past.digest, past.count, past.samples) for past in self.past}


def pack(epochs: Epochs) -> bytes:
    """The summary of this peer's state.

    Raises:
        LocalProtocolError: it is longer than a message may be.
    """
    past = tuple(_Past(epoch, each.digest, each.count, each.samples) for epoch, each in epochs.settled().items())
    lengths = tuple(_Usual(epoch, *usual) for epoch, usual in epochs.usual.items())
    live = epochs.live()
    inside = tuple(rumour for each in live for rumour in each.inside.values())
    proofs = tuple(proof for each in live for proof in each.proofs())
    data = msgspec.msgpack.encode(Summary(epochs.first, past, inside, proofs, epochs.base, lengths))
    if len(data) > MAX_BUFFER:
        raise LocalProtocolError(f"summary of {len(data)} bytes, limit {MAX_BUFFER}")
    return data


def unpack(
    data: Buffer, *, span: int, run: bytes, largest: int, verify: Callable[[bytes, bytes, bytes], bool]
) -> Summary | None:
    """Parse and check a summary.

    Args:
        span: steps of an epoch.
        run: name of the run.
        largest: most bytes of an increment.
        verify: whether (peer, bytes, signature) is valid.

    Returns:
        None if the bytes are malformed, a signature is wrong, or no peer can have such a state.
    """
    if memoryview(data).nbytes > MAX_BUFFER:
        return None
    try:
        summary = msgspec.msgpack.decode(data, type=Summary)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    epochs = range(summary.first, summary.first + GRACE + SETTLE + 1 + AHEAD + MAX_HELD)
    rumours = (*summary.inside, *(each for proof in summary.proofs for each in proof))
    for rumour in rumours:
        if rumour.epoch not in epochs or rumour.clock // span != rumour.epoch:
            return None
        if rumour.size > largest or rumour.run != run:
            return None
    settled = [*(past.epoch for past in summary.past), *(usual.epoch for usual in summary.lengths)]
    if any(epoch >= summary.first for epoch in settled) or not _possible(summary):
        return None
    named = {name_of(rumour, run): rumour for rumour in rumours}
    if len(named) < len(rumours):
        return None
    if not all(verify(rumour.origin, name, rumour.signature) for name, rumour in named.items()):
        return None
    return summary


def _possible(summary: Summary) -> bool:
    """Whether a peer can have these increments and proofs."""
    lives: defaultdict[tuple[bytes, int], set[int]] = defaultdict(set)
    for rumour in summary.inside:
        lives[rumour.origin, rumour.epoch].add(rumour.incarnation)
    places = {(each.origin, each.epoch, each.incarnation, each.sequence) for each in summary.inside}
    void = {(proof[0].origin, proof[0].epoch) for proof in summary.proofs}
    epochs = Counter(rumour.epoch for rumour in summary.inside), Counter(epoch for _, epoch in void)
    return (
        len(places) == len(summary.inside)
        and len(void) == len(summary.proofs)
        and not void & lives.keys()
        and all(len(each) <= MAX_LIVES for each in lives.values())
        and all(count <= MAX_RUMOURS for each in epochs for count in each.values())
        and all(len({(each.origin, each.epoch) for each in proof}) == 1 for proof in summary.proofs)
    )
