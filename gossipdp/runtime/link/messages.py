"""Messages between a daemon and a training process, in packets of at most 64 KiB.

    training process                          daemon
    Hello + schema file          ->
                                 <-           Region + memory file + token, or Refused
    Ready (buffer 0: its model)  ->
                                 <-           Waiting, repeatedly;  Session (buffer 0: the model to start from)
    WantMoments                  ->           once that is loaded, if the Session offers moments
                                 <-           MomentsGiven (buffer 0: both, encoded)
    Applied (slot 0)             ->           the model is loaded
    Submit, Applied, Report      ->
                                 <-           Pace, Slot, Taken, Closing
    Moments (both, encoded)      ->           between two snapshots
                                 <-           MomentsTaken
                                 <-           Renewed + file, after a re-sync
    Farewell                     ->           it leaves, and has not died

Ready, Submit, Moments and WantMoments pass the free buffer to the daemon, and the token with it (`region`). Session and
MomentsGiven pass it back until Applied; Taken and MomentsTaken set it free.

State carried beside the vector (`protocol.carried_state`) comes as sealed memory files: reference and state with Ready
and Session, the state with Submit and Renewed. If several ranks train one replica, the first is the leader and sends
all of this. Each other rank has its own connection:

    Rank                         ->
                                 <-           Region + memory file, or Refused
    Ready, Copied, Applied,
    Moments                      ->           the leader's message counts once every rank has said its part
    Farewell                     ->           it leaves, and has not died

Every rank, also one that cannot attach, tells a fault of its own over a connection that carries nothing else:

    Reason                       ->

Both sides belong to one user on one host, and may have different versions. Nothing here may hold a socket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.messages import U32, U63, Digest, Steps, Weight

__all__ = [
    "LINK_VERSION",
    "Applied",
    "Closing",
    "Copied",
    "Farewell",
    "FromDaemon",
    "FromTraining",
    "Hello",
    "Moments",
    "MomentsGiven",
    "MomentsTaken",
    "Pace",
    "Rank",
    "Ready",
    "Reason",
    "Refused",
    "RegionReady",
    "Renewed",
    "Report",
    "Session",
    "Settled",
    "Slot",
    "Submit",
    "Taken",
    "Waiting",
    "WantMoments",
    "chunk_bits",
    "decode_from_daemon",
    "decode_from_training",
    "encode",
]

LINK_VERSION: Final = 8
MOST_CHUNKS: Final = 400_000

Count = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Run = Annotated[bytes, Meta(max_length=16)]
Span: TypeAlias = tuple[U32, U32]
"""first and last chunk, both included"""


class _Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages. Fields are append-only; a new one has a default."""


# -- from the training process --------------------------------------------------------------------------------


class Hello(_Message, frozen=True, tag="hello"):
    """The first message. The schema's canonical bytes come with it as a file."""

    version: U32
    pid: U32
    world: Annotated[int, Meta(ge=1, le=65_536)]
    """number of training processes of this replica group"""
    schema: Digest


class Rank(_Message, frozen=True, tag="rank"):
    """The first message of another rank of the group whose leader sent Hello."""

    version: U32
    pid: U32
    leader: U32
    """process id of the leader"""
    rank: Annotated[int, Meta(ge=1, le=65_535)]


class Ready(_Message, frozen=True, tag="ready"):
    """Buffer 0 holds the training process's own model."""

    empty: bool = False
    """its optimizer has made no step and can use moments"""
    run: Run = b""
    """run of the last Session; b"" if there was none and the model is a new process's own"""
    clock: U63 = 0
    """the network's clock of the model, in steps"""
    steps: U63 = 0
    """own steps since the last snapshot that was taken, as far as the process knows"""
    samples: U63 = 0
    """of those steps"""
    carries: bool = False
    """two files come with it: reference and state"""
    loaded: bool = False
    """the script has loaded the model into a process that trained"""


class Submit(_Message, frozen=True, tag="submit"):
    """Buffer `applied` % 2 holds a snapshot with slots up to `applied`. Steps and samples count from the last one."""

    session: U63
    snapshot: Count
    applied: U63
    steps: U63
    samples: U63
    loss: float = math.nan
    whole: bool = False
    """the leader has written all of it"""
    tells: bool = False
    """the state of this snapshot comes with it as a file"""
    eval_loss: float = math.nan


class Copied(_Message, frozen=True, tag="copied"):
    """Another rank has written its part of a snapshot."""

    session: U63
    snapshot: Count


class Moments(_Message, frozen=True, tag="moments"):
    """Buffer `applied` % 2 holds an optimizer's moments after `steps` steps. Another rank says so of its part.

    Each chunk's payload (`codecs.moments`) begins where the chunk's parameters begin in a snapshot.
    """

    session: U63
    number: Count
    steps: Steps
    applied: U63 = 0


class WantMoments(_Message, frozen=True, tag="want"):
    """Buffer 0 is free: write the moments there, as in `Moments`."""

    session: U63


class Applied(_Message, frozen=True, tag="applied"):
    """`slot` is in the live parameters. Slot 0 is the model of the Session, with moments if they were asked for."""

    session: U63
    slot: U63


class Farewell(_Message, frozen=True, tag="farewell"):
    """This rank leaves, and has not died."""


class Reason(_Message, frozen=True, tag="reason"):
    """The first and last message of a connection: an error of gossipdp in the training process."""

    version: U32
    code: Annotated[str, Meta(max_length=16)]
    text: Annotated[str, Meta(max_length=4000)]
    """cause and what was seen"""
    exit: Annotated[int, Meta(ge=0, le=255)] = 0
    """exit code of this error: it ends the process, or its training if it goes on alone. 0: it ends neither"""
    alone: bool = False
    """the process trains on, and nothing of that reaches the network"""
    lost_steps: U63 = 0
    """steps that were trained alone, and told in no other message"""


class Report(_Message, frozen=True, tag="report"):
    """For the metrics. Sums count from the start of the training process. NaN means unknown."""

    session: U63
    loss: float = math.nan
    stall_seconds: float = 0.0
    lost_steps: U63 = 0
    uncounted: bool = False
    """parameters change and no step is counted"""
    eval_loss: float = math.nan
    unpinned: U63 = 0
    """bytes of the shared memory that CUDA has refused to pin"""


# -- from the daemon ------------------------------------------------------------------------------------------


class RegionReady(_Message, frozen=True, tag="region"):
    """The shared memory for vectors of `size` parameters comes with it as a file."""

    size: Count


class Refused(_Message, frozen=True, tag="refused"):
    """The daemon does not serve this training process. The fields are those of a GossipdpError."""

    code: Annotated[str, Meta(max_length=16)]
    cause: Annotated[str, Meta(max_length=400)]
    seen: Annotated[str, Meta(max_length=4000)] = ""
    do: Annotated[str, Meta(max_length=400)] = ""
    mismatch: Annotated[str, Meta(max_length=16)] = ""
    """of GD-301: how the models differ (`Mismatch`)"""


class Waiting(_Message, frozen=True, tag="waiting"):
    """There is no model yet: what the daemon waits for, and the share of it that has arrived."""

    text: Annotated[str, Meta(max_length=400)]
    share: Weight = 0.0


class Session(_Message, frozen=True, tag="session"):
    """Buffer 0 holds the model to start from. Submit every `every` steps. `clock` is the network's, in steps."""

    session: Count
    every: Count
    clock: U63
    chunk_parameters: Count
    mode: Literal["async", "overlap", "sync"] = "async"
    deadline: float = 30.0
    """seconds that training waits for `Settled` with mode sync"""
    moments_every: U32 = 0
    """rounds between two transfers of the optimizer's moments; 0 for never"""
    moments: Steps = 0
    """steps of the optimizer whose moments the daemon offers; 0 if it has none"""
    run: Run = b""
    """the network's run, for `Ready` after a restart of the daemon"""
    kept: bool = False
    """the model is the one written with `Ready`: the process keeps its parameters and loads nothing"""
    heal_after: U32 = 0
    """snapshots refused in a row after which the process attaches again to load the model; 0 for never"""
    carries: bool = False
    """two files come with it: reference and state"""
    apart: float = 0.0
    """distance of the parameters that the process wrote from the model, relative to the model"""


class Pace(_Message, frozen=True, tag="pace"):
    """Submit every `every` steps from now on. `clock` and `samples` are the network's clock, in steps and samples."""

    every: Count
    clock: U63
    samples: U63


class Slot(_Message, frozen=True, tag="slot"):
    """Add buffer `slot` % 2 to the live parameters on these chunks; on others it may hold anything."""

    session: Count
    slot: Count
    chunks: Annotated[bytes, Meta(max_length=MOST_CHUNKS // 8)]
    """bit n % 8 of byte n // 8 for chunk n"""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Runs of consecutive chunks."""
        runs: list[Span] = []
        for chunk in range(8 * len(self.chunks)):
            if self.chunks[chunk // 8] >> chunk % 8 & 1:
                if runs and chunk == runs[-1][1] + 1:
                    runs[-1] = (runs[-1][0], chunk)
                else:
                    runs.append((chunk, chunk))
        return tuple(runs)


class Taken(_Message, frozen=True, tag="taken"):
    """The snapshot is read. refused: "", or why it is not used, an `Unused`."""

    snapshot: Count
    refused: Annotated[str, Meta(max_length=80)] = ""


class MomentsTaken(_Message, frozen=True, tag="kept"):
    """The moments are read."""

    number: Count


class MomentsGiven(_Message, frozen=True, tag="given"):
    """Buffer 0 holds the moments asked for."""


class Settled(_Message, frozen=True, tag="settled"):
    """With mode sync: the slots of this snapshot's round have all been announced."""

    snapshot: Count


class Renewed(_Message, frozen=True, tag="renewed"):
    """The model is another peer's from now on. Its state comes with this as a file."""

    session: Count


class Closing(_Message, frozen=True, tag="closing"):
    """The daemon ends. Training goes on alone."""


FromTraining: TypeAlias = (
    Hello | Rank | Reason | Ready | Submit | Copied | Applied | Report | Farewell | Moments | WantMoments
)
FromDaemon: TypeAlias = (
    RegionReady
    | Refused
    | Waiting
    | Session
    | Pace
    | Slot
    | Taken
    | Settled
    | Closing
    | MomentsTaken
    | MomentsGiven
    | Renewed
)

_encoder = msgspec.msgpack.Encoder()
_from_training: msgspec.msgpack.Decoder[FromTraining] = msgspec.msgpack.Decoder(FromTraining)
_from_daemon: msgspec.msgpack.Decoder[FromDaemon] = msgspec.msgpack.Decoder(FromDaemon)


def encode(message: FromTraining | FromDaemon) -> bytes:
    return _encoder.encode(message)


def decode_from_training(packet: bytes) -> FromTraining:
    """Decode any bytes. Raises RemoteProtocolError if they are no message."""
    try:
        return _from_training.decode(packet)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"from the training process: {error!s:.120}") from None


def decode_from_daemon(packet: bytes) -> FromDaemon:
    """Decode any bytes. Raises RemoteProtocolError if they are no message."""
    try:
        return _from_daemon.decode(packet)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"from the daemon: {error!s:.120}") from None


def chunk_bits(chunks: Sequence[int]) -> bytes:
    """`Slot.chunks` of these chunks, in ascending order."""
    bits = bytearray(chunks[-1] // 8 + 1 if chunks else 0)
    for chunk in chunks:
        bits[chunk // 8] |= 1 << chunk % 8
    return bytes(bits)
