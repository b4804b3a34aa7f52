"""The signed hello over one connection: who is there, of which network and run. No socket and no clock may stand here.

    dialler                                listener
      HELLO   id, nonce, network, run ...    ->      the claimed id must be the key that CURVE saw
              <-   ANSWER   id, nonce, run, signature
      PROOF   signature                      ->      verified
              <-   WELCOME  once both connections of the link are verified

Both signatures cover network, runs, role, lane, both ids, both nonces and the dialler's CURVE key as each side holds
it (the listener takes it from the connection, never from the message), so that a hello cannot be replayed on
another connection nor passed on to a third peer. Before PROOF the listener changes nothing but counters.

Service messages, these and a few for later, are one frame that starts with 0xc1: the one byte msgpack never uses, so
that no protocol message (`gossipdp.protocol.wire.encoding`) can be taken for one, or the other way round.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import MismatchError, RefusedError, RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import PRINTABLE, PROTOCOL_VERSION, U32, Lane, Name, PeerId, short
from gossipdp.runtime.network.identity import Identity, curve_public_key

MARK: Final = b"\xc1"
MAX_SERVICE: Final = 512
"""bytes of one service message"""

Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Run = Annotated[bytes, Meta(max_length=16)]
Start = Annotated[bytes, Meta(min_length=8, max_length=8)]
"""of each start of a daemon (`identity.draw_start`): by it two that have one identity are told apart"""
Text = Annotated[str, Meta(max_length=160, pattern=PRINTABLE)]
Place = Annotated[str, Meta(min_length=1, max_length=80, pattern=PRINTABLE)]
"""``host:port``"""


class Service(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what transports say to each other."""


class Hello(Service, frozen=True, tag=1):
    version: Annotated[int, Meta(ge=0, le=255)]
    id: PeerId
    nonce: Nonce
    """the same on both connections of a link: it names the link"""
    network: Name
    run: Run
    lane: Annotated[int, Meta(ge=0, le=1)]
    incarnation: U32
    start: Start


class Answer(Service, frozen=True, tag=2):
    id: PeerId
    nonce: Nonce
    run: Run
    incarnation: U32
    start: Start
    signature: Signature


class Proof(Service, frozen=True, tag=3):
    signature: Signature


class Welcome(Service, frozen=True, tag=4):
    """The link is up."""


class Refuse(Service, frozen=True, tag=5):
    """No link: why, for a person to read."""

    code: Annotated[str, Meta(pattern=r"^GD-[0-9]{3}$", max_length=6)]
    reason: Text


class Bye(Service, frozen=True, tag=6):
    """This link is no more; only the dialler can close its connections."""

    reason: Text


class Learned(Service, frozen=True, tag=7):
    """On a link made while one side had no run yet: this is the run."""

    run: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Probe(Service, frozen=True, tag=8):
    """Nothing to say: sent to see whether the connection is still there."""


class DialBack(Service, frozen=True, tag=9):
    """Others are told to dial me at `address`: can you? If so, the link that you bring up is the answer."""

    address: Place


class InVain(Service, frozen=True, tag=10):
    """I dialled `address`, as you asked, and did not meet you. Why is not said: that would make a scanner of me."""

    address: Place


ServiceMessage: TypeAlias = Hello | Answer | Proof | Welcome | Refuse | Bye | Learned | Probe | DialBack | InVain

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ServiceMessage] = msgspec.msgpack.Decoder(ServiceMessage)


def pack(message: ServiceMessage) -> list[Buffer]:
    return [MARK + _encoder.encode(message)]


def is_service(frame: Buffer) -> bool:
    return bytes(frame[:1]) == MARK


def unpack(frames: Sequence[Buffer]) -> ServiceMessage:
    """The service message in `frames`.

    Raises:
        RemoteProtocolError: anything at all is wrong with them.
    """
    if len(frames) != 1 or not 1 < memoryview(frames[0]).nbytes <= MAX_SERVICE or not is_service(frames[0]):
        raise RemoteProtocolError("not a service message")
    try:
        return _decoder.decode(memoryview(frames[0])[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed service message: {type(error).__name__}") from None


@dataclass(slots=True)
class Self:
    """What this peer says of itself, and whom it has links with. `run` is b"" until the peer founds one or learns it.

    allowed: nobody else is admitted; none: anybody is who is not banned.
    """

    identity: Identity
    network: str
    run: bytes
    incarnation: int
    start: bytes
    allowed: frozenset[bytes] = frozenset()
    banned: frozenset[bytes] = frozenset()

    def admits(self, peer: bytes) -> bool:
        return peer not in self.banned and (not self.allowed or peer in self.allowed)


class DiallerHello:
    """The dialling side of one connection. After `answer`: `peer`, `run`, `incarnation` and `start` are verified.

    `peer` may be this very peer: then a copy of it listens there, and is to have the PROOF before it refuses.
    """

    def __init__(self, me: Self, nonce: bytes, lane: Lane) -> None:
        self._me = me
        self._hello = Hello(
            PROTOCOL_VERSION, me.identity.id, nonce, me.network, me.run, int(lane), me.incarnation, me.start
        )
        self.peer = b""
        self.run = b""
        self.incarnation = 0
        self.start = b""

    @property
    def said_run(self) -> bytes:
        return self._hello.run

    def hello(self) -> list[Buffer]:
        return pack(self._hello)

    def answer(self, answer: Answer) -> list[Buffer]:
        """The PROOF to send.

        Raises:
            GossipdpError: the other side is not who it says, or of another run.
        """
        key = self._me.identity.curve.public
        if not Identity.verify(answer.id, _transcript(b"listener", self._hello, answer, key), answer.signature):
            raise RefusedError("GD-202", f"{short(answer.id)} could not prove its identity")
        if not self._me.admits(answer.id):
            raise RefusedError("GD-204", f"{short(answer.id)} is banned here, or not among those allowed")
        check_run(self._me.run, answer.run)
        self.peer, self.run = answer.id, answer.run
        self.incarnation, self.start = answer.incarnation, answer.start
        return pack(Proof(self._me.identity.sign(_transcript(b"dialler", self._hello, answer, key))))


class ListenerHello:
    """The listening side of one connection, whose CURVE key is `client_key`.

    After `hello`: `peer`, `nonce` and `lane` are claims. After `proof`: verified, with `run` and `incarnation`.
    """

    def __init__(self, me: Self, client_key: bytes) -> None:
        self._me = me
        self._key = client_key
        self._hello: Hello | None = None
        self._answer: Answer | None = None
        self.proven = False

    @property
    def claims(self) -> Hello:
        assert self._hello is not None
        return self._hello

    @property
    def said_run(self) -> bytes:
        assert self._answer is not None
        return self._answer.run

    def hello(self, hello: Hello) -> list[Buffer]:
        """The ANSWER to send; cheap refusals come before the signature.

        Raises:
            GossipdpError: this peer and that one do not belong together.
        """
        me = self._me
        if hello.version != PROTOCOL_VERSION:
            raise MismatchError("GD-302", f"protocol version {hello.version} there, {PROTOCOL_VERSION} here")
        if hello.network != me.network:
            raise MismatchError("GD-203", f"network {hello.network!r} there, {me.network!r} here")
        check_run(me.run, hello.run)
        if curve_public_key(hello.id) != self._key:
            raise RefusedError("GD-202", f"the identity {short(hello.id)} is not that of the connection's key")
        nonce, unsigned = secrets.token_bytes(32), bytes(64)
        answer = Answer(me.identity.id, nonce, me.run, me.incarnation, me.start, unsigned)
        signature = me.identity.sign(_transcript(b"listener", hello, answer, self._key))
        self._hello, self._answer = hello, msgspec.structs.replace(answer, signature=signature)
        return pack(self._answer)

    def proof(self, proof: Proof) -> None:
        """Whose id this listener has itself is a copy of it, proven.

        Raises:
            GossipdpError: the dialler does not hold the key of the id it claims.
        """
        if self._hello is None or self._answer is None:
            raise RefusedError("GD-202", "a proof before the hello")
        transcript = _transcript(b"dialler", self._hello, self._answer, self._key)
        if not Identity.verify(self._hello.id, transcript, proof.signature):
            raise RefusedError("GD-202", f"{short(self._hello.id)} could not prove its identity")
        self.proven = True


def _transcript(role: bytes, hello: Hello, answer: Answer, client_key: bytes) -> bytes:
    facts = (role, client_key, hello, answer.id, answer.nonce, answer.run, answer.incarnation, answer.start)
    return b"gossipdp hello 1\0" + _encoder.encode(facts)


def check_run(here: bytes, there: bytes) -> None:
    """
    Raises:
        MismatchError: two peers of different runs; a peer that knows none yet belongs to any.
    """
    if here and there and here != there:
        raise MismatchError("GD-203", f"run {there.hex()[:8]} there, {here.hex()[:8]} here")


def check_other(me: bytes, peer: bytes) -> None:
    """
    Raises:
        RefusedError: `peer` is this peer.
    """
    if peer == me:
        raise RefusedError("GD-205", "this identity is already live here: was a home copied?")


def check_alone(peer: bytes, linked: tuple[int, bytes] | None, incarnation: int, start: bytes) -> None:
    """`linked`: incarnation and start of the daemon that there is a link with already, if there is one.

    Raises:
        RefusedError: it is another daemon with the identity of `peer`, and was started no earlier than this one. A peer
            that has really been started again has a higher incarnation.
    """
    if linked is not None and linked[1] != start and linked[0] >= incarnation:
        raise RefusedError("GD-205", f"{short(peer)} is live here already, from another start: was a home copied?")
