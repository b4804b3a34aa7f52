"""The invite: one word of text with all that a host needs to join. No secret may stand in a repr."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages.base import MAX_ADDRESS
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.identity import NetworkSecret
from gossipdp.runtime.network.key_files import KEY_BYTES

__all__ = ["MAX_SEEDS", "Invite"]

MAX_SEEDS: Final = 16
_INVITE_PREFIX: Final = "gdp1_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")


class _InviteBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    network: Annotated[str, msgspec.Meta(min_length=1, max_length=48)]
    secret: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    seeds: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS)], ...], msgspec.Meta(max_length=MAX_SEEDS)
    ]
    operator: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)] | None = None


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
        if not _NAME.fullmatch(self.network):
            raise ConfigError(
                "GD-206",
                "a network's name has 1 to 48 letters, digits, dots, dashes and underscores",
                seen=repr(self.network[:60]),
            )
        if len(self.seeds) > MAX_SEEDS:
            raise ConfigError("GD-206", f"an invite names at most {MAX_SEEDS} seeds", seen=f"{len(self.seeds)} seeds")
        for seed in self.seeds:
            split_address(seed)

    def encode(self) -> str:
        """One word of text. It holds the secret: hand it over like a password."""
        # Without an operator it is an invite of version 3, which older hosts can read.
        operator = [self.operator] if self.operator else []
        body = msgspec.msgpack.encode([self.network, self.secret.reveal(), self.seeds, *operator])
        return _INVITE_PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Invite:
        """Read what `encode` wrote. White space and line breaks do not matter.

        Raises:
            ConfigError: GD-206, for any damage. The message never repeats the text.
        """
        token = "".join(text.split())
        if not token.startswith(_INVITE_PREFIX):
            raise _damaged(f"it does not start with {_INVITE_PREFIX}")
        token = token[len(_INVITE_PREFIX) :]
        if len(token) > 4096:
            raise _damaged(f"{len(token)} characters")
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _damaged("a character that no invite has, or one too few") from None
        body, checksum = raw[:-4], raw[-4:]
        if _checksum(body) != checksum:
            raise _damaged("the checksum does not fit")
        try:
            read = msgspec.msgpack.decode(body, type=_InviteBody)
        except (msgspec.MsgspecError, ValueError):
            raise _damaged("the content is not that of an invite") from None
        return cls(read.network, NetworkSecret(read.secret), tuple(read.seeds), read.operator or b"")


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=4, person=b"gossipdp-invite").digest()


def _damaged(seen: str) -> ConfigError:
    return ConfigError(
        "GD-206",
        "this is not a whole invite",
        seen=seen,
        do="copy it again, all of it; `gossipdp invite --show` prints it",
    )
