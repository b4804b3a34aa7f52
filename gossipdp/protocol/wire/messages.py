"""What peers say to each other: one frozen type a message, a limit on every field.

A message is a small header. Vectors travel as raw buffers behind it (`encoding`). Lengths are in bytes, times in
seconds. No behaviour is defined here. `table` gives each message its id, its buffers and its lane.

Never reorder the fields of a message. Older peers refuse a message with an unknown field, so what is new needs a new
message type and a new `PROTOCOL_VERSION` (`table.SINCE`). Only the structs inside messages, such as `Member` and
`Progress`, tolerate extra fields: a new one goes last and has a default.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta, Struct

__all__ = [
    "BOX_BYTES",
    "CARRIES",
    "DIGEST_BYTES",
    "FASTEST_RATE",
    "LARGEST_LOSS",
    "MAX_ACCUSERS",
    "MAX_ADDRESS",
    "MAX_ALLOWED",
    "MAX_BLOCKS",
    "MAX_BUFFER",
    "MAX_DIGEST",
    "MAX_FRAMES",
    "MAX_HEADER",
    "MAX_HOLDERS",
    "MAX_LEASES",
    "MAX_OTHERS",
    "MAX_READERS",
    "MAX_RECORDS",
    "MAX_USES",
    "MOST_CARRIED",
    "MOST_STEPS",
    "OLDEST_VERSION",
    "PRINTABLE",
    "PROTOCOL_VERSION",
    "RELAY",
    "SLOWEST_RATE",
    "U32",
    "U63",
    "UNSIGNED",
    "Accept",
    "Ack",
    "Address",
    "Ask",
    "CodecName",
    "Coverage",
    "Data",
    "Decision",
    "Decisions",
    "Digest",
    "End",
    "Has",
    "HostInvite",
    "Lane",
    "Line",
    "Lineage",
    "Loss",
    "Member",
    "Message",
    "Miss",
    "MomentsAsk",
    "MomentsChunk",
    "MomentsManifest",
    "MomentsRefuse",
    "MomentsRequest",
    "Nack",
    "Name",
    "NewSecret",
    "Norm",
    "Offer",
    "PeerId",
    "Phase",
    "Ping",
    "PingRequest",
    "Place",
    "Pong",
    "Progress",
    "Pull",
    "PushPull",
    "Ranges",
    "Rate",
    "Reader",
    "Reason",
    "Receipt",
    "Refuse",
    "Signature",
    "Standing",
    "State",
    "StateAsk",
    "StateChunk",
    "StateManifest",
    "StateProbe",
    "StateRefuse",
    "StateRequest",
    "StateSample",
    "StateSketches",
    "StateWait",
    "StepRate",
    "Steps",
    "Verdict",
    "Void",
    "Weight",
    "printable",
    "relay_of",
    "short",
    "through",
]

PROTOCOL_VERSION: Final = 6
"""the newest version that this peer speaks"""
OLDEST_VERSION: Final = 3
"""the oldest version that this peer speaks. A network changes version host by host, and peers of version 4 write frames
of version 3"""

MAX_HEADER: Final = 4096
"""bytes of one header frame"""
MAX_FRAMES: Final = 64
"""frames of one message, header included"""
MAX_BUFFER: Final = 4 << 20
"""bytes of one raw buffer"""

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
PeerId = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The peer's Ed25519 public key."""
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
PRINTABLE: Final = (
    r"\A[^\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*\Z"
)
"""Text without control and format characters: text of another peer can change neither a line nor a terminal."""
UNSIGNED: Final = bytes(64)
"""placeholder for a signature that is not made yet; it verifies for no key"""
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Name = Annotated[str, Meta(max_length=48, pattern=PRINTABLE)]
MAX_ADDRESS: Final = 80
"""characters of ``host:port``"""
Address = Annotated[str, Meta(max_length=MAX_ADDRESS, pattern=PRINTABLE)]
"""``host:port``, one that leads through a relay (`through`), or "" for a peer that can only dial out."""
Place = Annotated[str, Meta(min_length=1, max_length=MAX_ADDRESS, pattern=PRINTABLE)]
"""``host:port``, or one that leads through a relay"""
Reason = Annotated[str, Meta(max_length=80, pattern=PRINTABLE)]
CodecName = Annotated[str, Meta(max_length=16, pattern=PRINTABLE)]
Weight = Annotated[float, Meta(ge=0.0, le=1.0)]
Pull = Annotated[float, Meta(ge=0.0, le=100.0)]
"""kappa / alpha, the movement of v against that of a; or 0"""
Rate = Annotated[float, Meta(ge=125e3)]
"""bytes a second each way, at least 1 Mbit/s; infinity: no limit"""
SLOWEST_RATE: Final = 1e-6
FASTEST_RATE: Final = 1e6
StepRate = Annotated[float, Meta(ge=0.0)]
"""steps a second; outside of `SLOWEST_RATE` to `FASTEST_RATE` the sender does not train"""
LARGEST_LOSS: Final = 1e30
Loss = Annotated[float, Meta(ge=-LARGEST_LOSS, le=LARGEST_LOSS)]
"""a loss as a training script reports it; NaN fails the comparison"""
Norm = Annotated[float, Meta(ge=0.0)]
"""A non-negative norm. Infinity means that no bound is known yet. NaN fails the comparison."""


class Lane(enum.IntEnum):
    """The two connections of a link. A payload on DATA never delays a ping on CONTROL."""

    CONTROL = 0
    DATA = 1


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""


def printable(text: str) -> str:
    """`text`, which another peer may have written, without characters that could change a log or a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def short(peer: bytes) -> str:
    """Eight hexadecimal digits of a peer id, as logs and tables show it."""
    return peer[:4].hex()


CARRIES: Final = "@"
RELAY: Final = "@relay"
"""One stands among a member's addresses if it carries for others, and the other if it does nothing else: it has no
model. Earlier versions take them for addresses that are never met."""


def through(relay: bytes, peer: bytes) -> str:
    """The address of `peer` where `relay` carries to it. No other peer has the same one."""
    return f"@{relay.hex()}/{short(peer)}"


def relay_of(address: str) -> bytes:
    """The relay of an address made by `through`; b"" for a ``host:port``."""
    if not address.startswith("@"):
        return b""
    try:
        relay = bytes.fromhex(address[1:].partition("/")[0])
    except ValueError:
        return b""
    return relay if len(relay) == 32 else b""


# -- membership ----------------------------------------------------------------------------------------------------


MAX_RECORDS: Final = 40
"""member records in one message; fewer if they are long, because all of them must fit the header"""
DIGEST_BYTES: Final = 256
"""bytes of one part of a view's digest, or of a list of marks"""
MAX_DIGEST: Final = 8
"""parts of a digest in one message"""
MAX_OTHERS: Final = 3
"""addresses of one member beside its first one; a liar may name that many hosts to dial"""
MAX_ACCUSERS: Final = 8
"""accusers of one suspect; a message takes fewer records that name many"""


class State(enum.IntEnum):
    """What the network believes of a member (SWIM, Das et al. 2002, section 4.2)."""

    ALIVE = 0
    SUSPECT = 1
    FAILED = 2
    LEFT = 3


class Phase(enum.IntEnum):
    """How far a member is with the end of its run (`finishing`)."""

    RUNNING = 0
    """it trains, or may"""
    WAITING = 1
    """its training is over, and it waits for the other members"""
    CLOSING = 2
    """it exchanges with the members whose training is over, until all hold their mean"""
    DONE = 3
    """it holds that mean"""


class Member(Struct, frozen=True, array_like=True):
    """One member as gossiped. A later (incarnation, refutation), compared as a pair, overrides an earlier one.

    `incarnation` counts starts of the peer and names its state. `refutation` counts refuted suspicions within one
    incarnation, so that a refutation never disturbs an exchange.

    The member signs its own statement: that it is alive, or that it leaves (`signatures`). Other members may only add a
    suspicion or a failure to a statement of life. They pass on its signature.
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
    """of a suspect: the members that got no answer from it themselves; empty in all other states"""
    signature: Signature = UNSIGNED
    phase: Phase = Phase.RUNNING
    calls: bool = False
    """it asks all members to end their training"""
    others: Annotated[tuple[Place, ...], Meta(max_length=MAX_OTHERS)] = ()
    """further addresses at which the member may be dialled, void without `address`; and `CARRIES` or `RELAY`"""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses at which the member may be reached; empty if it only dials out, and no relay carries to it."""
        return (self.address, *(each for each in self.others if each not in (CARRIES, RELAY))) if self.address else ()

    @property
    def carries(self) -> bool:
        """It offers to carry what others send to members that cannot be dialled."""
        return CARRIES in self.others or RELAY in self.others

    @property
    def only_carries(self) -> bool:
        """It has no model, and never trains."""
        return RELAY in self.others

    @property
    def own_addresses(self) -> tuple[str, ...]:
        """Those of them that lead to the member itself."""
        return tuple(address for address in self.addresses if not relay_of(address))

    @property
    def relays(self) -> list[bytes]:
        """Members that carry to this one, the nearest to it first; empty if it can be dialled itself."""
        return [relay for relay in map(relay_of, self.addresses) if relay]

    @property
    def dialable(self) -> bool:
        """Whether the member has an address of its own."""
        return bool(self.address) and not self.relays


class Progress(Struct, frozen=True, array_like=True):
    """Progress of one peer, signed by that peer. Of two reports, the one that is ahead in every count stands."""

    id: PeerId
    clock: U63
    """outer clock in steps: the network's clock when the peer joined, plus its own steps since"""
    steps: U63
    samples: U63
    rounds: U32
    signature: Signature = UNSIGNED
    loss: Loss | None = None
    """the script's last loss when these counts were made; None: unknown"""
    eval_loss: Loss | None = None
    """the same of its evaluation"""


Bucket = Annotated[bytes, Meta(min_length=4, max_length=DIGEST_BYTES)]
Members = Annotated[tuple[Member, ...], Meta(max_length=MAX_RECORDS)]
ProgressReports = Annotated[tuple[Progress, ...], Meta(max_length=8)]


class Ping(Message, frozen=True):
    """Are you alive? Gossip rides on the question and on its answer (SWIM section 4.1)."""

    sequence: U63
    """(incarnation << 32 | counter): a repeated answer to an earlier life of the sender matches no ping"""
    members: Members = ()
    progress: ProgressReports = ()
    speed: StepRate | None = None
    """steps a second that the sender trains, 0 if none or unknown; None: the sender does not tell"""


class Pong(Message, frozen=True):
    """SWIM's ack. It is not named so because `Ack` acknowledges a chunk."""

    sequence: U63
    members: Members = ()
    progress: ProgressReports = ()
    speed: StepRate | None = None
    """as in Ping"""


class PingRequest(Message, frozen=True):
    """Ping `target` for me. Answer with a Pong of the same sequence, or with a Nack."""

    sequence: U63
    target: PeerId
    address: Address


class Nack(Message, frozen=True):
    """I am alive, but the target of your PingRequest did not answer me (Lifeguard section III.A)."""

    sequence: U63


class PushPull(Message, frozen=True):
    """A page of the sender's view, or one step of a comparison of two views."""

    reply: bool
    """the sender asks for records: those that are `listed`, those that differ from `digest`, or the whole view"""
    members: Members = ()
    progress: ProgressReports = ()
    digest: Annotated[tuple[Bucket, ...], Meta(max_length=MAX_DIGEST)] = ()
    """four bytes for each bucket of the sender's view, in order; empty without a digest"""
    listed: bool = False
    """`digest` holds a list of single records instead, the sender's or those it asks for (`digests`)"""


# -- decisions of the operator -------------------------------------------------------------------------------------


MAX_ALLOWED: Final = 16_384
"""peers that a closed network can name, as many as a view has members"""
MAX_HOLDERS: Final = 4096
"""peers for which one decision can seal a new secret"""
MAX_USES: Final = 256
"""hosts that one invite can let in"""
BOX_BYTES: Final = 80
"""bytes of a secret of 32 bytes in a sealed box (libsodium): an ephemeral key, a tag and the secret"""


class Verdict(enum.IntEnum):
    """What a decision says of its subject."""

    NONE = 0
    """of a peer: it is not banned"""
    BANNED = 1
    """of a peer"""
    OPEN = 2
    """of the network: it takes every peer with its secret that is not banned"""
    CLOSED = 3
    """of the network: it takes only the peers that the decision names"""
    INVITED = 4
    """of an invite's key: hosts that hold it may join"""
    REVOKED = 5
    """of an invite's key: the invite is no longer valid"""
    RENEWED = 6
    """of the network's secret: there is a new one"""


class HostInvite(Struct, frozen=True, array_like=True):
    """Whom an invite's key lets in."""

    expires: U63
    """seconds since 1970"""
    uses: Annotated[int, Meta(ge=1, le=MAX_USES)]
    """hosts that it lets in"""
    generation: U63
    """of the network's secret; a later one ends the invite"""


class NewSecret(Struct, frozen=True, array_like=True):
    """A new secret of the network. The number of its decision is its generation."""

    replaces: U63
    """the generation before"""
    until: U63
    """seconds since 1970; so long every peer with the secret before is let in, and then only named ones"""
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """of the secret"""
    boxes: Annotated[
        tuple[Annotated[bytes, Meta(min_length=BOX_BYTES, max_length=BOX_BYTES)], ...], Meta(max_length=MAX_HOLDERS)
    ]
    """the secret, sealed for each peer that the decision names, in their order"""


class Decision(Struct, frozen=True, array_like=True):
    """One decision, signed by the operator. Of two about one subject the one with the higher number stands."""

    number: U63
    verdict: Verdict
    subject: Annotated[bytes, Meta(max_length=32)]
    """a peer's id, or an invite's public key; b"" for the network, `admission.register.SECRET` for its secret"""
    name: Name = ""
    """name of the subject when the operator decided"""
    reason: Name = ""
    time: U63 = 0
    """seconds since 1970 on the operator's clock"""
    allowed: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_ALLOWED)] = ()
    """of the network: the peers that it takes while it is closed; of its secret: those that are to have it"""
    signature: Signature = UNSIGNED
    invite: HostInvite | None = None
    """of an invite's key"""
    secret: NewSecret | None = None
    """of the network's secret"""


class Receipt(Struct, frozen=True, array_like=True):
    """A peer has what a decision gives: an invite has let it in, or it holds the new secret."""

    subject: Annotated[bytes, Meta(max_length=32)]
    """of the decision"""
    number: U63
    """of the decision"""
    peer: PeerId
    signature: Signature = UNSIGNED
    """by the invite's key, or by the peer that holds the secret"""


class Decisions(Message, frozen=True):
    """What the sender has of one operator's decisions.

    A raw buffer behind it may hold decisions, as `admission.packing` writes them.
    """

    operator: PeerId
    digest: Annotated[bytes, Meta(max_length=16)] = b""
    """of all decisions that the sender has; b"": it does not ask for a comparison"""
    reply: bool = False
    """the sender asks for the receiver's decisions if its digest differs"""


# -- exchanges -----------------------------------------------------------------------------------------------------


class Offer(Message, frozen=True):
    """Will you average with me now?"""

    exchange: U63
    """(incarnation << 32 | counter): an initiator never uses the same number twice"""
    schema: Digest
    settings: Digest
    codec: CodecName
    weight: Weight
    pull: Pull
    first: U32
    """the chunk to begin with; it rotates from exchange to exchange"""
    window: Annotated[int, Meta(ge=1, le=256)]
    """chunks that the initiator may have open at once"""
    rate: Rate = float("inf")
    """what the initiator's host wants to spend on an exchange"""


class Accept(Message, frozen=True):
    """Yes: with the finer of the two preferred codecs, and the smaller weight, pull, window and rate."""

    exchange: U63
    codec: CodecName
    weight: Weight
    pull: Pull
    window: Annotated[int, Meta(ge=1, le=256)]
    incarnation: U32 = 0
    """of the sender: the initiator may know only an earlier one"""
    rate: Rate = float("inf")


class Refuse(Message, frozen=True):
    """No."""

    exchange: U63
    reason: Reason
    """busy, done, joining, leaving, idle (no training process), schema, settings, codec, apart, aside (set aside for
    proven faults)"""


class Ranges(Message, frozen=True):
    """Turn 0 of a chunk: the initiator's predicted ranges. Buffers: [ranges]."""

    exchange: U63
    chunk: U32
    incarnation: U32
    """of the responder when it accepted: a repeated message for an earlier incarnation opens no chunk"""


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
    """An odd turn, the responder's last: it has mixed the chunk with `share`. Buffers: codec frames."""

    exchange: U63
    chunk: U32
    turn: Annotated[int, Meta(ge=1, le=16)]
    share: Weight
    """k: the share of delta left by clipping, min(1, tau / ||delta||)"""


class Ask(Message, frozen=True):
    """The initiator has waited long since it sent `turn`: repeat your answer."""

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
    """The sender opens no more chunks of this exchange."""

    exchange: U63
    mine: bool
    """the sender is the initiator; two peers may use the same number for two exchanges"""
    reason: Reason
    """Of the initiator: settled (every chunk is), lost (it may ask for some later), unwanted (it takes its offer back).
    Of the responder: leaving, joining, round, apart, aside, unknown (it remembers nothing of this exchange)."""


# -- transfers of a model ------------------------------------------------------------------------------------------


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
    signature over all of it].
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

    Buffers: one of [bfloat16 values], [fp32 values of buffers], [piece].
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


class StateSketches(StateSample, frozen=True):
    """The same with sketches of all chunks. Buffers: [values; sketch, distance and step per chunk, fp32]."""


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


# -- two sides of a partition --------------------------------------------------------------------------------------


class Line(Struct, frozen=True, array_like=True):
    """The name of one side's model, made by one of its members when it met another side."""

    generation: U32
    """counts reunions; 0 for no line"""
    members: U32
    """members of that side; 0: the maker was told that it is apart, so it represents no side"""
    clock: U63
    rounds: U32
    maker: Annotated[bytes, Meta(max_length=32)]
    trains: bool = True
    """a member of that side trained when the line was made; otherwise all of them held copies"""


class Lineage(Message, frozen=True):
    """The line that the sender holds."""

    incarnation: U32
    """of the sender: a message of an earlier life may come late"""
    number: U63
    """counts the sender's messages of this type: one of this life may come late too"""
    life: U32
    """incarnation of the receiver, as the sender knows it; `apart` says nothing of another one"""
    apart: bool
    """the sender holds the receiver apart: it has trained without it for long"""
    reply: bool
    """the sender asks for the receiver's line"""
    lag: U63
    """steps of the network's clock since the sender's last exchange or transfer; huge while it re-syncs"""
    line: Line


# -- data ----------------------------------------------------------------------------------------------------------


MAX_BLOCKS: Final = 16_384
"""blocks of an epoch of a data set"""
MAX_LEASES: Final = 24
"""open blocks that one peer reports"""
MAX_READERS: Final = 24
"""readers of a data set in one message"""


class Reader(Struct, frozen=True, array_like=True):
    """Which blocks of a data set one peer has open. A later (incarnation, sequence) overrides an earlier one."""

    peer: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """the first bytes of its id"""
    incarnation: U32
    sequence: U32
    """counts its reports in this incarnation"""
    reads: bool
    """it trains on this data set; False: it did before"""
    leases: Annotated[tuple[U32, ...], Meta(max_length=MAX_LEASES)] = ()
    """the epoch's last 16 bits << 16 | block"""


class Coverage(Message, frozen=True):
    """What the sender knows of a data set.

    Buffers: [blocks finished in `epoch`, blocks finished in the next one], as `blocks.pack` writes a set.
    """

    data: Digest
    name: Name
    blocks: Annotated[int, Meta(ge=1, le=MAX_BLOCKS)]
    """blocks of an epoch"""
    epoch: U32
    """the first epoch that is not finished"""
    reply: bool
    """the sender asks what the receiver knows"""
    readers: Annotated[tuple[Reader, ...], Meta(max_length=MAX_READERS)] = ()
