"""Messages of state transfer: the model, its judgement by witnesses, and the inner optimizer's moments."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta

from gossipdp.protocol.wire.messages.base import U32, U63, Digest, Message, Norm, Reason

__all__ = [
    "MOST_CARRIED",
    "MOST_STEPS",
    "Has",
    "MomentsAsk",
    "MomentsChunk",
    "MomentsManifest",
    "MomentsRefuse",
    "MomentsRequest",
    "Standing",
    "StateAsk",
    "StateChunk",
    "StateManifest",
    "StateProbe",
    "StateRefuse",
    "StateRequest",
    "StateSample",
    "StateWait",
    "Steps",
]

MOST_CARRIED: Final = 1 << 30
"""bytes of the reference, and of the state, that travel with a model and are not averaged (`carried_state`)"""
MOST_STEPS: Final = 1 << 40
"""largest number of steps that an optimizer may report"""

Carry = Annotated[int, Meta(ge=0, le=MOST_CARRIED)]
Steps = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
"""steps of an optimizer, which counts them in a float"""


class Has(enum.IntEnum):
    """What a peer has of the network's model."""

    NOTHING = 0
    CHECKPOINT = 1
    MODEL = 2
    """it is ready: other peers may fetch the model from it"""
    SPARE = 3
    """it is ready and has no training process: its model may be older than the network's clock"""


class StateRequest(Message, frozen=True):
    """Freeze your state for me, and send the manifest."""

    transfer: U63


class StateManifest(Message, frozen=True):
    """What the source froze.

    Buffers: [schema, hashes (16 bytes each) of the chunks and of the pieces that follow them (`carried_state`),
    signature over all of it]; with an exact state also [summary of the increments inside it (`state_summary`)].
    """

    transfer: U63
    snapshot: U63
    """names the frozen state; two requests may be served from one"""
    parameters: U63
    chunk_parameters: U32
    clock: U63
    rounds: U32
    schema: Digest
    settings: Digest
    reference: Carry = 0
    """bytes of the reference"""
    state: Carry = 0
    """bytes of the state"""


class StateAsk(Message, frozen=True):
    """Send these chunks."""

    transfer: U63
    snapshot: U63
    chunks: Annotated[tuple[U32, ...], Meta(min_length=1, max_length=32)]
    asking: U32 = 0
    """a number that the answers repeat"""


class StateChunk(Message, frozen=True):
    """One chunk of frozen state, or one piece of what travels beside it.

    Buffers: one of [bfloat16 values], [fp32 values of buffers], [exact state (`fixed_point.pack`)], [piece].
    """

    transfer: U63
    snapshot: U63
    chunk: U32
    asking: U32 = 0


class StateRefuse(Message, frozen=True):
    """No state from this peer, or no sample from this witness."""

    transfer: U63
    reason: Reason
    """joining (it has no model), busy, new (it cannot judge before its first round), gone (the snapshot was dropped)"""


class StateWait(Message, frozen=True):
    """The state is being frozen. Answers a request that is repeated meanwhile."""

    transfer: U63
    chunks: U32
    """chunks frozen until now"""


class StateProbe(Message, frozen=True):
    """Send your anchor's values from these parameters on: I judge by them what I fetch from another peer."""

    transfer: U63
    starts: Annotated[tuple[U63, ...], Meta(min_length=1, max_length=16)]


class StateSample(Message, frozen=True):
    """A witness's own values. Buffers: [fp32 values, up to 256 from each start asked for]."""

    transfer: U63
    clock: U63
    rounds: U32
    distance: Norm
    """of two anchors at the witness's last exchanges, RMS per parameter"""
    step: Norm
    """the longest recent movement of the witness's anchor in one round, RMS per parameter"""


class Standing(Message, frozen=True):
    """What the sender has, and of which clock.

    A peer that comes back with a checkpoint sends it to all members until one of them is ready.
    """

    incarnation: U32
    """of the sender: a message of an earlier life may come late"""
    has: Has
    clock: U63
    """of the model or the newest checkpoint, in steps of the network's clock; 0 for nothing"""
    rounds: U32
    reply: bool
    """the sender asks for the receiver's"""
    number: U32 = 0
    """counts the sender's claims within one life: an arriving training process raises its claim, a leaving one lowers
    it"""


class MomentsRequest(Message, frozen=True):
    """Which moments of the inner optimizer do you have? Answered by a manifest, or a refusal."""

    transfer: U63


class MomentsManifest(Message, frozen=True):
    """What the source holds. Buffers: [chunk hashes (16 bytes each), signature over them and this header]."""

    transfer: U63
    number: U63
    """names these moments among all that the source has held since it started"""
    parameters: U63
    """parameters that have moments: the trainable ones, which stand first"""
    chunk_parameters: U32
    steps: Steps
    """steps that the optimizer had made; its bias correction goes on from there"""
    schema: Digest


class MomentsAsk(Message, frozen=True):
    """Send these chunks."""

    transfer: U63
    number: U63
    chunks: Annotated[tuple[U32, ...], Meta(min_length=1, max_length=32)]
    asking: U32 = 0
    """a number that the answers repeat"""


class MomentsChunk(Message, frozen=True):
    """One chunk of moments. Buffers: [both, as `codecs.moments` writes them]."""

    transfer: U63
    number: U63
    chunk: U32
    asking: U32 = 0


class MomentsRefuse(Message, frozen=True):
    """No moments from this peer."""

    transfer: U63
    reason: Reason
    """none, or gone (newer ones have replaced them)"""
