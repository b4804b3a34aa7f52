"""The signed hello over one connection: the peer there, its network and its run. No socket or clock may stand here.

    dialler                                listener
      HELLO   id, nonce, network, run ...    ->      the claimed id must match the key that CURVE saw
              <-   ANSWER   id, nonce, run, signature
      PROOF   signature                      ->      verified
              <-   WELCOME  once both connections of the link are verified

Both signatures cover the network's name and renewed secret, runs, role, lane, both ids, both nonces and the dialler's
CURVE key, or the binding of a relayed connection (`sealing`). Each side takes that from the connection, never from a
message. So a hello cannot be replayed on another connection or passed on to a third peer. Before PROOF the listener
changes only counters.

A service message is one frame that starts with 0xc1, the one byte msgpack never uses. So no service message can be
taken for a protocol message (`gossipdp.protocol.wire.encoding`), or the other way round.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import MismatchError, RefusedError, RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    OLDEST_VERSION,
    PRINTABLE,
    PROTOCOL_VERSION,
    U32,
    Decision,
    Lane,
    Name,
    PeerId,
    Place,
    short,
)
from gossipdp.runtime.network.identity import Identity, curve_public_key
from gossipdp.runtime.network.key_files import KEY_BYTES
from gossipdp.runtime.network.local_peer import LocalPeer

MARK: Final = b"\xc1"
RENEWABLE: Final = 4
"""the first protocol version whose peers can renew the network's secret"""
MAX_SERVICE: Final = 512
"""bytes of one service message"""
MAX_FILLER: Final = 256 << 10
"""bytes of filler that may follow a `Measure` or a `Measured` in a frame of its own"""

Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Run = Annotated[bytes, Meta(max_length=16)]
Start = Annotated[bytes, Meta(min_length=8, max_length=8)]
"""mark of one start of a daemon (`identity.draw_start`): it tells two daemons with one identity apart"""
Generation = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Text = Annotated[str, Meta(max_length=160, pattern=PRINTABLE)]


class Service(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the messages between transports."""


class Hello(Service, frozen=True, tag=1):
    version: Annotated[int, Meta(ge=0, le=255)]
    """the oldest protocol version that the sender speaks"""
    id: PeerId
    nonce: Nonce
    """the same on both connections of a link: it names the link"""
    network: Name
    run: Run
    lane: Annotated[int, Meta(ge=0, le=1)]
    incarnation: U32
    start: Start


class GenerationHello(Hello, frozen=True, tag=14):
    """The hello in a network whose secret was renewed. Both signatures cover the renewed secret, too."""

    generation: Generation


class Answer(Service, frozen=True, tag=2):
    id: PeerId
    nonce: Nonce
    run: Run
    incarnation: U32
    start: Start
    signature: Signature
    seen: Annotated[str, Meta(max_length=45, pattern=PRINTABLE)] = ""
    """the IP address from which the dialler came, "" if unknown"""


class Proof(Service, frozen=True, tag=3):
    signature: Signature


class Welcome(Service, frozen=True, tag=4):
    """The link is up."""


class Refuse(Service, frozen=True, tag=5):
    """No link. The reason is for a person to read."""

    code: Annotated[str, Meta(pattern=r"^GD-[0-9]{3}$", max_length=6)]
    reason: Text


class Bye(Service, frozen=True, tag=6):
    """The link is over. Only the dialler can close its connections."""

    reason: Text


class Learned(Service, frozen=True, tag=7):
    """The network's run, on a link made while one side had none."""

    run: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Probe(Service, frozen=True, tag=8):
    """Empty: sent to find out whether the connection still exists."""


class DialBack(Service, frozen=True, tag=9):
    """Please find out whether the sender is met at the `address` it advertises, if it is of the sender's own host."""

    address: Place


class InVain(Service, frozen=True, tag=10):
    """The sender did not meet the asker at `address`. The cause is not told: a peer is no port scanner."""

    address: Place
    tried: bool
    """The sender dialled it: it is an address of the host that the asker's link comes from, and a route leads there."""


class Met(Service, frozen=True, tag=11):
    """The sender dialled `address`, as asked, and the asker has proven its identity there."""

    address: Place


class Measure(Service, frozen=True, tag=12):
    """Please answer with `back` bytes of filler, and the time of your clock."""

    number: U32
    """the answer repeats it"""
    back: Annotated[int, Meta(ge=0, le=MAX_FILLER)]


class Measured(Service, frozen=True, tag=13):
    """The answer to a `Measure`, on the same connection."""

    number: U32
    clock: Annotated[float, Meta(ge=0.0)]
    """seconds since 1970, as the sender's system clock has it"""
    received: Annotated[int, Meta(ge=0, le=MAX_FILLER)]
    """bytes of filler that came with the question"""


class Redeem(Service, frozen=True, tag=15):
    """Please let the sender in: it holds an invite. Sent in place of a hello."""

    version: Annotated[int, Meta(ge=0, le=255)]
    id: PeerId
    network: Name
    decision: Decision
    """of the operator, about the invite's key"""
    proof: Signature
    """of the receipt, by the invite's key"""


class Granted(Service, frozen=True, tag=16):
    """The network's secret, for a host with a valid invite."""

    value: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    generation: Generation
    secret: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]

    def __repr__(self) -> str:
        return f"Granted(generation={self.generation})"


class Attend(Service, frozen=True, tag=17):
    """Please carry to the sender what other members send it through you, from now on or no more."""

    wanted: bool


class Attended(Service, frozen=True, tag=18):
    """The answer to an `Attend`."""

    taken: bool
    reason: Text


class Carry(Service, frozen=True, tag=19):
    """Please carry the frames behind this one to `to`, as a `Carried` on the same lane."""

    to: PeerId


class Carried(Service, frozen=True, tag=20):
    """The frames behind this one are from `origin`, which the sender has a link with."""

    origin: PeerId


class NotCarried(Service, frozen=True, tag=21):
    """What was sent for `to` is not carried. The reason is for a person to read.

    once: one message alone was not, because too many wait.
    """

    to: PeerId
    reason: Text
    once: bool = False


ServiceMessage: TypeAlias = (
    Hello
    | Answer
    | Proof
    | Welcome
    | Refuse
    | Bye
    | Learned
    | Probe
    | DialBack
    | InVain
    | Met
    | Measure
    | Measured
    | GenerationHello
    | Redeem
    | Granted
    | Attend
    | Attended
    | Carry
    | Carried
    | NotCarried
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ServiceMessage] = msgspec.msgpack.Decoder(ServiceMessage)


def pack(message: ServiceMessage) -> list[Buffer]:
    return [MARK + _encoder.encode(message)]


def is_service(frame: Buffer) -> bool:
    return bytes(frame[:1]) == MARK


def unpack(frames: Sequence[Buffer]) -> ServiceMessage:
    """The service message in `frames`.

    Raises:
        RemoteProtocolError: the frames are anything else.
    """
    if len(frames) != 1 or not 1 < memoryview(frames[0]).nbytes <= MAX_SERVICE or not is_service(frames[0]):
        raise RemoteProtocolError("not a service message")
    try:
        return _decoder.decode(memoryview(frames[0])[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed service message: {type(error).__name__}") from None


class DiallerHello:
    """The dialling side of one connection. After `answer`, `peer`, `run`, `incarnation` and `start` are verified.

    `generation` is that of the network's secret which both sides prove.

    If `peer` is this peer's own id, a copy of it listens there. The copy gets the PROOF before it refuses.
    """

    def __init__(self, me: LocalPeer, nonce: bytes, lane: Lane, generation: int) -> None:
        self._me, self.generation = me, generation
        about = me.identity.id, nonce, me.network, me.run, int(lane), me.incarnation, me.start
        version = max(OLDEST_VERSION, RENEWABLE if generation else 0)
        self._hello = GenerationHello(version, *about, generation) if generation else Hello(version, *about)
        self._secret = me.secret.hello_key(generation) or b""
        self._key = me.identity.curve.public
        """that the listener sees the connection come with"""
        self.peer = b""
        self.run = b""
        self.incarnation = 0
        self.start = b""
        self.seen = ""
        """the IP address of this peer, as the listener sees it"""

    @property
    def said_run(self) -> bytes:
        return self._hello.run

    def bind(self, key: bytes) -> None:
        """The connection is relayed, and this is its binding (`sealing`)."""
        self._key = key

    def hello(self) -> list[Buffer]:
        return pack(self._hello)

    def answer(self, answer: Answer) -> list[Buffer]:
        """The PROOF to send.

        Raises:
            GossipdpError: the other side has not proven its id, is not admitted, or is of another run.
        """
        transcript = _transcript(b"listener", self._hello, answer, self._key, self._secret)
        if not Identity.verify(answer.id, transcript, answer.signature):
            raise RefusedError("GD-202", f"{short(answer.id)} could not prove its identity")
        self._me.check_admitted(answer.id, self.generation)
        check_run(self._me.run, answer.run)
        self.peer, self.run = answer.id, answer.run
        self.incarnation, self.start, self.seen = answer.incarnation, answer.start, answer.seen
        return pack(
            Proof(self._me.identity.sign(_transcript(b"dialler", self._hello, answer, self._key, self._secret)))
        )


class ListenerHello:
    """The listening side of one connection.

    Args:
        key: the CURVE key of the connection, or the binding of a relayed one.
        expected: of a relayed connection, the peer that it is from, as the relay says; b"" of any other.

    After `hello`: `peer`, `nonce` and `lane` are claims. After `proof`: verified, with `run` and `incarnation`.
    """

    def __init__(self, me: LocalPeer, key: bytes, expected: bytes = b"") -> None:
        self._me, self._key, self._expected = me, key, expected
        self._hello: Hello | None = None
        self._answer: Answer | None = None
        self._secret = b""
        self.proven = False

    @property
    def claims(self) -> Hello:
        assert self._hello is not None
        return self._hello

    @property
    def generation(self) -> int:
        """The generation of the network's secret that both sides prove."""
        return self._hello.generation if isinstance(self._hello, GenerationHello) else 0

    @property
    def said_run(self) -> bytes:
        assert self._answer is not None
        return self._answer.run

    def hello(self, hello: Hello, origin: str = "") -> list[Buffer]:
        """The ANSWER to send. Cheap refusals come before the signature.

        Args:
            origin: the IP address from which the dialler came.

        Raises:
            GossipdpError: another protocol version, network or run, or an id that does not match the key.
        """
        me = self._me
        if not OLDEST_VERSION <= hello.version <= PROTOCOL_VERSION:
            here = f"{OLDEST_VERSION} to {PROTOCOL_VERSION} here"
            raise MismatchError("GD-302", f"protocol version {hello.version} there, {here}")
        if hello.network != me.network:
            raise MismatchError("GD-203", f"network {hello.network!r} there, {me.network!r} here")
        check_run(me.run, hello.run)
        known = hello.id == self._expected if self._expected else curve_public_key(hello.id) == self._key
        if not known:
            raise RefusedError("GD-202", f"identity {short(hello.id)} does not match the key of the connection")
        self._hello = hello
        me.check_admitted(hello.id, self.generation)
        self._secret = me.secret.hello_key(self.generation) or b""
        nonce, unsigned = secrets.token_bytes(32), bytes(64)
        answer = Answer(me.identity.id, nonce, me.run, me.incarnation, me.start, unsigned, origin[:45])
        signature = me.identity.sign(_transcript(b"listener", hello, answer, self._key, self._secret))
        self._answer = msgspec.structs.replace(answer, signature=signature)
        return pack(self._answer)

    def proof(self, proof: Proof) -> None:
        """Verify the dialler's signature. A proven dialler with this peer's own id is a copy of it.

        Raises:
            GossipdpError: the dialler does not hold the key of the id it claims, or is not admitted.
        """
        if self._hello is None or self._answer is None:
            raise RefusedError("GD-202", "a proof before the hello")
        transcript = _transcript(b"dialler", self._hello, self._answer, self._key, self._secret)
        if not Identity.verify(self._hello.id, transcript, proof.signature):
            raise RefusedError("GD-202", f"{short(self._hello.id)} could not prove its identity")
        self._me.check_admitted(self._hello.id, self.generation)
        self.proven = True


def _transcript(role: bytes, hello: Hello, answer: Answer, client_key: bytes, secret: bytes) -> bytes:
    facts = (
        role,
        client_key,
        hello,
        answer.id,
        answer.nonce,
        answer.run,
        answer.incarnation,
        answer.start,
        answer.seen,
    )
    if secret:
        return b"gossipdp hello 4\0" + secret + _encoder.encode(facts)
    return b"gossipdp hello 3\0" + _encoder.encode(facts)


def check_run(here: bytes, there: bytes) -> None:
    """Check that two peers are of one run. A peer without a run fits any.

    Raises:
        MismatchError: GD-203, the runs differ.
    """
    if here and there and here != there:
        raise MismatchError("GD-203", f"run {there.hex()[:8]} there, {here.hex()[:8]} here")


def check_other(me: bytes, peer: bytes) -> None:
    """Check that `peer` is not this peer.

    Raises:
        RefusedError: GD-205, it is.
    """
    if peer == me:
        raise RefusedError("GD-205", "this identity is already live here: was a home copied?")


def check_alone(peer: bytes, linked: tuple[int, bytes] | None, incarnation: int, start: bytes) -> None:
    """Check that no other daemon with the identity of `peer` is linked.

    A peer that was started again has a higher incarnation than its earlier start.

    Args:
        linked: incarnation and start of the daemon at the other end of the present link; None without a link.
        incarnation: of the daemon that asks for a link.
        start: of the daemon that asks for a link.

    Raises:
        RefusedError: GD-205, another daemon is linked, and its incarnation is not lower.
    """
    if linked is not None and linked[1] != start and linked[0] >= incarnation:
        raise RefusedError("GD-205", f"{short(peer)} is live here already, from another start: was a home copied?")
