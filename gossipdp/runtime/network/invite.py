"""Invites: one word of text with all that a host needs to join. No secret may stand in a repr.

An `Invite` holds the network's secret. A `HostInvite` holds a key that members let in for a time and a number of hosts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

import msgspec

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import MAX_ADDRESS, U63, Decision
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.key_files import KEY_BYTES

__all__ = ["MAX_SEEDS", "HostInvite", "Invite", "decode_invite"]

MAX_SEEDS: Final = 16
_INVITE_PREFIX: Final = "gdp1_"
_HOST_PREFIX: Final = "gdh1_"
T = TypeVar("T")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")


_Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Network = Annotated[str, msgspec.Meta(min_length=1, max_length=48)]
_Seeds = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS)], ...], msgspec.Meta(max_length=MAX_SEEDS)]


class _InviteBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    network: _Network
    secret: _Key
    seeds: _Seeds
    operator: _Key | None = None
    generation: U63 = 0
    renewed: _Key | None = None


class _HostInviteBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    network: _Network
    seeds: _Seeds
    operator: _Key
    curve: _Key
    digest: _Key
    key: _Key
    decision: Decision


@dataclass(frozen=True, slots=True)
class Invite:
    """What a host needs to join: the network's name, its secret, the first addresses to dial, and whom to follow.

    operator: public key (32 bytes) of the network's operator; b"" if the inviting host knows none.
    """

    network: str
    secret: NetworkSecret = field(repr=False)
    seeds: tuple[str, ...] = ()
    operator: bytes = b""

    def __post_init__(self) -> None:
        _check(self.network, self.seeds)

    def encode(self) -> str:
        """One word of text. It holds the secret: hand it over like a password."""
        # Without an operator it is an invite of version 3, which older hosts can read.
        operator = [self.operator or None] if self.operator or self.secret.generation else []
        renewed = [self.secret.generation, self.secret.reveal_generation()] if self.secret.generation else []
        return _encode(_INVITE_PREFIX, [self.network, self.secret.reveal(), self.seeds, *operator, *renewed])

    @classmethod
    def decode(cls, text: str) -> Invite:
        """Read what `encode` wrote. White space and line breaks do not matter.

        Raises:
            ConfigError: GD-206, for any damage. The message never repeats the text.
        """
        read = _decode(_INVITE_PREFIX, text, _InviteBody)
        if (read.renewed is None) != (read.generation == 0):
            raise _damaged("the content is not that of an invite")
        renewed = {} if read.renewed is None else {read.generation: read.renewed}
        return cls(read.network, NetworkSecret(read.secret, renewed), tuple(read.seeds), read.operator or b"")


@dataclass(frozen=True, slots=True)
class HostInvite:
    """What one host, or a few, need to join. It holds no secret of the network.

    operator: public key (32 bytes) of the network's operator.
    curve: the network's public CURVE key (32 bytes).
    digest: of the network's secret, by which the host recognizes it.
    key: the invite's own secret key (32 bytes).
    decision: of the operator, about that key.
    """

    network: str
    seeds: tuple[str, ...]
    operator: bytes
    curve: bytes
    digest: bytes
    key: bytes = field(repr=False)
    decision: Decision

    def __post_init__(self) -> None:
        _check(self.network, self.seeds)

    @property
    def generation(self) -> int:
        """Of the network's secret that the host gets."""
        return 0 if self.decision.invite is None else self.decision.invite.generation

    def encode(self) -> str:
        """One word of text: hand it over like a password."""
        about = self.network, self.seeds, self.operator, self.curve, self.digest, self.key, self.decision
        return _encode(_HOST_PREFIX, about)

    @classmethod
    def decode(cls, text: str) -> HostInvite:
        """Read what `encode` wrote. White space and line breaks do not matter.

        Raises:
            ConfigError: GD-206, for any damage. The message never repeats the text.
        """
        read = _decode(_HOST_PREFIX, text, _HostInviteBody)
        if read.decision.invite is None or Identity(read.key).id != read.decision.subject:
            raise _damaged("the content is not that of an invite")
        about = read.operator, read.curve, read.digest, read.key, read.decision
        return cls(read.network, tuple(read.seeds), *about)


def decode_invite(text: str) -> Invite | HostInvite:
    """Read an invite of either kind. Raises ConfigError GD-206."""
    if "".join(text.split()).startswith(_HOST_PREFIX):
        return HostInvite.decode(text)
    return Invite.decode(text)


def _check(network: str, seeds: tuple[str, ...]) -> None:
    if not _NAME.fullmatch(network):
        raise ConfigError(
            "GD-206",
            "a network's name has 1 to 48 letters, digits, dots, dashes and underscores",
            seen=repr(network[:60]),
        )
    if len(seeds) > MAX_SEEDS:
        raise ConfigError("GD-206", f"an invite names at most {MAX_SEEDS} seeds", seen=f"{len(seeds)} seeds")
    for seed in seeds:
        split_address(seed)


def _encode(prefix: str, content: object) -> str:
    body = msgspec.msgpack.encode(content)
    return prefix + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")


def _decode(prefix: str, text: str, kind: type[T]) -> T:
    token = "".join(text.split())
    if not token.startswith(prefix):
        raise _damaged(f"it does not start with {prefix}")
    token = token[len(prefix) :]
    if len(token) > 4096:
        raise _damaged(f"{len(token)} characters")
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _damaged("it holds a wrong character, or one is missing") from None
    body, checksum = raw[:-4], raw[-4:]
    if _checksum(body) != checksum:
        raise _damaged("the checksum does not match")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _damaged("the content is not that of an invite") from None


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=4, person=b"gossipdp-invite").digest()


def _damaged(seen: str) -> ConfigError:
    return ConfigError(
        "GD-206",
        "this is not a complete invite",
        seen=seen,
        do="copy all of it again; `gossipdp invite --show` prints it",
    )
