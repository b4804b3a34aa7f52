"""What peers say to each other: one frozen type a message, a limit on every field.

A message is a small header; vectors never stand in it but travel as raw buffers behind it (see `wire`).
Lengths are in bytes, times in seconds. Nothing here may hold behaviour beyond construction. What is said of rumours
stands in `rumour_messages`; ids, and how a message travels, in `catalogue`.

Never reorder the fields of a message; a new field goes last and has a default.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

PROTOCOL_VERSION: Final = 2

MAX_HEADER: Final = 4096
"""bytes of one header frame"""
MAX_FRAMES: Final = 64
"""frames of one message, header included"""
MAX_BUFFER: Final = 4 << 20
"""bytes of one raw buffer"""
MAX_RECORDS: Final = 40
"""member records in one message; fewer if they are long, as all of them must fit the header"""
DIGEST_BYTES: Final = 256
"""bytes of one part of a view's digest, or of a list of marks"""
MAX_DIGEST: Final = 8
"""such parts in one message"""
MAX_ACCUSERS: Final = 8
"""accusers of one suspect; fewer records of this kind go into a message"""
MAX_BLOCKS: Final = 16_384
"""blocks of an epoch of a data set"""
MAX_LEASES: Final = 24
"""blocks that one peer says it has open"""
MAX_READERS: Final = 24
"""readers of a data set in one message"""
MOST_CARRIED: Final = 1 << 30
"""bytes of what travels with a model and is not averaged: of the reference, and of the state (`carrying`)"""
MOST_STEPS: Final = 1 << 40
"""that an optimizer may say it has made"""

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Carry = Annotated[int, Meta(ge=0, le=MOST_CARRIED)]
U63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Steps = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
"""of an optimizer, which counts them in a float"""
PeerId = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The peer's Ed25519 public key."""
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
PRINTABLE: Final = (
    r"\A[^\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*\Z"
)
"""Text without control and format characters: another peer's text can change neither a line nor a terminal."""
UNSIGNED: Final = bytes(64)
"""in the place of a signature that is not made yet; it verifies for no key"""
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Name = Annotated[str, Meta(max_length=48, pattern=PRINTABLE)]
Address = Annotated[str, Meta(max_length=80, pattern=PRINTABLE)]
"""``host:port``, or "" for a peer that can only dial out."""
Reason = Annotated[str, Meta(max_length=80, pattern=PRINTABLE)]
CodecName = Annotated[str, Meta(max_length=16, pattern=PRINTABLE)]
Weight = Annotated[float, Meta(ge=0.0, le=1.0)]
Pull = Annotated[float, Meta(ge=0.0, le=100.0)]
"""how far v moves against what a moves by: kappa / alpha, or 0"""
Rate = Annotated[float, Meta(ge=125e3)]
"""bytes a second each way, at least 1 Mbit/s; infinity means "as fast as it goes\""""
StepRate = Annotated[float, Meta(ge=0.0)]
"""steps a second"""
Norm = Annotated[float, Meta(ge=0.0)]
"""A non-negative norm; infinity means "no bound known yet". NaN fails the comparison."""


class Lane(enum.IntEnum):
    """The two connections of a link; a payload on DATA never stands in front of a ping on CONTROL."""

    CONTROL = 0
    DATA = 1


class State(enum.IntEnum):
    """What the network believes of a member (SWIM, Das et al. 2002, section 4.2)."""

    ALIVE = 0
    SUSPECT = 1
    FAILED = 2
    LEFT = 3


class Has(enum.IntEnum):
    """What a peer has of the network's model."""

    NOTHING = 0
    CHECKPOINT = 1
    MODEL = 2
    """it is ready: others may fetch the model from it"""
    SPARE = 3
    """it is ready and has no training process: its model may be older than the network's clock"""


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Member(Struct, frozen=True, array_like=True):
    """One member as gossiped. A later (incarnation, refutation), compared as a pair, overrides an earlier one.

    `incarnation` counts starts of the peer and names its state; `refutation` counts refuted suspicions within
    one incarnation, so that refuting never disturbs an exchange.

    The member signs its own word: that it is alive, or that it leaves (`signatures`). Others may only add a suspicion
    or a failure to a word that says "alive", and then pass the signature of that word on.
    """

    id: PeerId
    name: Name
    address: Address
    incarnation: U32
    refutation: U32
    state: State
    version: Annotated[int, Meta(ge=1, le=255)] = PROTOCOL_VERSION
    software: Annotated[str, Meta(max_length=16, pattern=PRINTABLE)] = ""
    accusers: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_ACCUSERS)] = ()
    """of a suspect: who got no answer from it, each of them itself; empty in all other states"""
    signature: Signature = UNSIGNED


class Progress(Struct, frozen=True, array_like=True):
    """How far one peer has come, signed by that peer. Of two reports the one that is ahead in every count stands."""

    id: PeerId
    clock: U63
    """outer clock in steps: the network's clock when the peer joined, plus its own steps since"""
    steps: U63
    samples: U63
    rounds: U32
    signature: Signature = UNSIGNED


Bucket = Annotated[bytes, Meta(min_length=4, max_length=DIGEST_BYTES)]
Members = Annotated[tuple[Member, ...], Meta(max_length=MAX_RECORDS)]
ProgressReports = Annotated[tuple[Progress, ...], Meta(max_length=8)]


# -- membership -----------------------------------------------------------------------------------------------


class Ping(Message, frozen=True):
    """Are you there? Carries gossip both ways (SWIM section 4.1).

    `sequence` is (incarnation << 32 | counter): what answered an earlier life, and is repeated, answers nothing.
    """

    sequence: U63
    members: Members = ()
    progress: ProgressReports = ()
    speed: StepRate | None = None
    """steps a second that the sender trains, 0 if none or if it does not know; None: nothing is said of it"""


class Pong(Message, frozen=True):
    """SWIM's ack; named so because `Ack` acknowledges a chunk."""

    sequence: U63
    members: Members = ()
    progress: ProgressReports = ()
    speed: StepRate | None = None
    """as a Ping's"""


class PingRequest(Message, frozen=True):
    """Please ping `target` for me; answer with a Pong of the same sequence, or a Nack."""

    sequence: U63
    target: PeerId
    address: Address


class Nack(Message, frozen=True):
    """I am here, but the target of your PingRequest did not answer me (Lifeguard section III.A)."""

    sequence: U63


class PushPull(Message, frozen=True):
    """A page of the sender's view. `reply` asks for the receiver's in return: for all of it, for a list of what differs
    from `digest`, or for the records that are `listed`."""

    reply: bool
    members: Members = ()
    progress: ProgressReports = ()
    digest: Annotated[tuple[Bucket, ...], Meta(max_length=MAX_DIGEST)] = ()
    """four bytes for each bucket of the sender's view, in its order; empty for no digest"""
    listed: bool = False
    """`digest` is none, but a list of single records, the sender's or those asked for: see `buckets`"""


# -- exchange (pairwise averaging) ----------------------------------------------------------------------------


class Offer(Message, frozen=True):
    """Will you average with me now? `exchange` is (incarnation << 32 | counter): unique per initiator for ever."""

    exchange: U63
    schema: Digest
    settings: Digest
    codec: CodecName
    weight: Weight
    pull: Pull
    first: U32
    """the chunk to begin with; it rotates from exchange to exchange"""
    window: Annotated[int, Meta(ge=1, le=256)]
    """chunks the initiator may have open at once"""
    rate: Rate = float("inf")
    """what the initiator's host wants to spend on an exchange"""


class Accept(Message, frozen=True):
    """Yes: with the finer of the two codecs wished for, and the smaller weight, pull, window and rate."""

    exchange: U63
    codec: CodecName
    weight: Weight
    pull: Pull
    window: Annotated[int, Meta(ge=1, le=256)]
    incarnation: U32 = 0
    """the sender's: the initiator may know only an earlier one"""
    rate: Rate = float("inf")


class Refuse(Message, frozen=True):
    """No. `reason` is a stable word: busy, done, joining, leaving, idle (no training process), schema, settings, codec,
    apart, aside (for proven faults, for a while)."""

    exchange: U63
    reason: Reason


class Ranges(Message, frozen=True):
    """Turn 0 of a chunk: the initiator's predicted ranges. Buffers: [ranges]."""

    exchange: U63
    chunk: U32
    incarnation: U32
    """the responder's, as it accepted: what was said to an earlier one of it, and is repeated, opens nothing"""


class Data(Message, frozen=True):
    """A later turn of a chunk: codes, checks and escalations. Even turns are the initiator's.

    Buffers: turn 1: [ranges, *codec frames]; later: codec frames.
    """

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=1, le=16)]
    bound: Norm
    """tau: the largest ||delta|| of this chunk that the sender accepts unclipped"""


class Ack(Message, frozen=True):
    """An odd turn, the responder's last word: it has mixed the chunk with `share`. Buffers: codec frames."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=1, le=16)]
    share: Weight
    """k: the share of delta left by clipping, min(1, tau / ||delta||)"""


class Ask(Message, frozen=True):
    """The initiator has waited long after sending `turn`: say again what you answered."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=0, le=16)]


class Miss(Message, frozen=True):
    """Answer to Ask: your `turn` never came, send it again."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=0, le=16)]


class Void(Message, frozen=True):
    """The responder has not mixed this chunk, and never will."""

    exchange: U63
    chunk: U32


class End(Message, frozen=True):
    """The sender opens no more chunks of this exchange.

    `mine` tells whose exchange it is, for two peers may use the same number. `reason` is a stable word. From
    the initiator: settled (every chunk is), lost (some may be asked for later), unwanted (an offer taken back).
    From the responder: leaving, round, unknown (it remembers nothing of this exchange).
    """

    exchange: U63
    mine: bool
    reason: Reason


# -- state transfer to joiners --------------------------------------------------------------------------------


class StateRequest(Message, frozen=True):
    """Freeze your state for me, and send the manifest."""

    transfer: U63


class StateManifest(Message, frozen=True):
    """What the source froze. Buffers: [schema, hashes (16 bytes each) of chunks and of the pieces that follow them
    (`carrying`), signature over all of it, and of an exact state what is inside it (`rumour_summary`)]."""

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
    """bytes of the reference, and of the state"""
    state: Carry = 0


class StateAsk(Message, frozen=True):
    """Send these chunks."""

    transfer: U63
    snapshot: U63
    chunks: Annotated[tuple[U32, ...], Meta(min_length=1, max_length=32)]
    asking: U32 = 0
    """a number that the answers repeat"""


class StateChunk(Message, frozen=True):
    """One chunk of frozen state, or a piece of what is carried beside it. Buffers: [bfloat16 values; of buffers fp32
    values; of an exact state what `fixed_point.pack` writes; or the piece]."""

    transfer: U63
    snapshot: U63
    chunk: U32
    asking: U32 = 0


class StateRefuse(Message, frozen=True):
    """No state from here: `reason` is joining, busy, leaving or gone (the snapshot was dropped)."""

    transfer: U63
    reason: Reason


class StateWait(Message, frozen=True):
    """The state is being frozen: so many chunks of it are. The answer to a request that comes again meanwhile."""

    transfer: U63
    chunks: U32


class StateProbe(Message, frozen=True):
    """Send your anchor's values from these parameters on: I judge by them what I fetch from somebody else."""

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
    """of the witness's anchor in a round, the longest of late, RMS per parameter"""


class Standing(Message, frozen=True):
    """What the sender has, and of when. A peer that comes back with a checkpoint says so to all until one is ready."""

    incarnation: U32
    """the sender's: a word of an earlier life may come late"""
    has: Has
    clock: U63
    """of the model or the newest checkpoint, in steps of the network's clock; 0 for nothing"""
    rounds: U32
    reply: bool
    """and what has the receiver?"""
    number: U32 = 0
    """counts the sender's claims within one life: a training process that comes raises its claim, one that goes lowers
    it"""


# -- sides that meet again ------------------------------------------------------------------------------------


class Line(Struct, frozen=True, array_like=True):
    """What one member said of its side of the network when it met another side: the name of that side's model."""

    generation: U32
    """counts reunions; 0 for no line"""
    members: U32
    """0: the maker was told that it is apart, and speaks for nobody"""
    clock: U63
    rounds: U32
    maker: Annotated[bytes, Meta(max_length=32)]


class Lineage(Message, frozen=True):
    """The line that the sender holds."""

    incarnation: U32
    """the sender's: a word of an earlier life may come late"""
    number: U63
    """counts what the sender has said of this kind: so may one of this life"""
    life: U32
    """the receiver's incarnation, as far as the sender knows: of another the next field says nothing"""
    apart: bool
    """the sender holds the receiver apart: it has trained without it for long"""
    reply: bool
    """and which line does the receiver hold?"""
    lag: U63
    """steps of the network's clock since the sender's last exchange or transfer; huge while it re-syncs"""
    line: Line


# -- data -----------------------------------------------------------------------------------------------------


class Reader(Struct, frozen=True, array_like=True):
    """Which blocks of a data set one peer has open. A later (incarnation, sequence) overrides an earlier one."""

    peer: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """the first bytes of its id"""
    incarnation: U32
    sequence: U32
    """counts what it has said in this incarnation"""
    reads: bool
    """it trains on this data set; False: it did"""
    leases: Annotated[tuple[U32, ...], Meta(max_length=MAX_LEASES)] = ()
    """the epoch's last 16 bits << 16 | block"""


class Coverage(Message, frozen=True):
    """What the sender knows of a data set. Buffers: [blocks finished in `epoch`, and in the one after it]; see
    `sharding` for how a set is written."""

    data: Digest
    name: Name
    blocks: Annotated[int, Meta(ge=1, le=MAX_BLOCKS)]
    """of an epoch"""
    epoch: U32
    """all before it are finished"""
    reply: bool
    """and what does the receiver know?"""
    readers: Annotated[tuple[Reader, ...], Meta(max_length=MAX_READERS)] = ()


# -- the inner optimizer's moments, to joiners -----------------------------------------------------------------


class MomentsRequest(Message, frozen=True):
    """Which moments of the inner optimizer have you? Answered by a manifest, or a refusal."""

    transfer: U63


class MomentsManifest(Message, frozen=True):
    """What the source holds. Buffers: [chunk hashes (16 bytes each), signature over them and this header]."""

    transfer: U63
    number: U63
    """names these moments, of all that the source has held since it started"""
    parameters: U63
    """that have moments: the trainable ones, which stand first"""
    chunk_parameters: U32
    steps: Steps
    """that the optimizer had made: its bias correction goes on from there"""
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
    """No moments from here: `reason` is none, or gone (others have taken their place)."""

    transfer: U63
    reason: Reason


def printable(text: str) -> str:
    """`text`, which another peer may have written, without what could change a log or a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def short(peer: bytes) -> str:
    """Eight hexadecimal digits of a peer id, as logs and tables show it."""
    return peer[:4].hex()
