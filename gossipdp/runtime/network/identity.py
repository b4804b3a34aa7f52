"""The key pair of a peer and the secret of a network.

A peer *is* its Ed25519 public key, and its CURVE client key is the same key on Curve25519. All peers of a network
derive one CURVE server key pair from the network secret. So an operator can dial a bare ``host:port``, and a host
without the secret completes no handshake. No socket may stand here, and no secret in any repr.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from nacl import bindings
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey
from nacl.signing import SigningKey, VerifyKey

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime import unix_sockets
from gossipdp.runtime.network.key_files import KEY_BYTES, key_line, read_key, replace_file, write_new

__all__ = [
    "IDENTITY_FILE",
    "OPERATOR_FILE",
    "SECRET_FILE",
    "CurveKeys",
    "Identity",
    "NetworkSecret",
    "curve_public_key",
    "known_curve_keys",
]

IDENTITY_FILE: Final = unix_sockets.KEY
SECRET_FILE: Final = "network.secret"
OPERATOR_FILE: Final = "operator.key"
"""key of the network's operator, on the host that founded the network and wherever the operator keeps a copy"""


class CurveKeys(NamedTuple):
    """A Curve25519 key pair as libzmq takes it: 32 raw bytes each."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"CurveKeys({self.public[:4].hex()}...)"


class Identity:
    """A peer's Ed25519 key pair. `id` is the public key, 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._key = SigningKey(seed)
        self.id: bytes = bytes(self._key.verify_key)
        private = self._key.to_curve25519_private_key()
        self.curve = CurveKeys(bytes(private.public_key), bytes(private))

    def __repr__(self) -> str:
        return f"Identity({short(self.id)})"

    @classmethod
    def generate(cls) -> Identity:
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load(cls, home: Path, name: str = IDENTITY_FILE) -> Identity:
        """The identity kept in `home`. Raises FileNotFoundError: there is none."""
        return cls(read_key(home / name))

    @classmethod
    def create(cls, home: Path, name: str = IDENTITY_FILE) -> Identity:
        """A new identity, on disk before this returns. Raises FileExistsError: there is one already."""
        seed = secrets.token_bytes(KEY_BYTES)
        write_new(home / name, key_line(seed))
        return cls(seed)

    @classmethod
    def load_or_create(cls, home: Path, name: str = IDENTITY_FILE) -> Identity:
        try:
            return cls.load(home, name)
        except FileNotFoundError:
            pass
        try:
            return cls.create(home, name)
        except FileExistsError:  # another process was faster, and its key is the home's
            return cls.load(home, name)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data).signature

    @staticmethod
    def verify(peer: bytes, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is the signature of `peer` over `data`. False for malformed input, too."""
        try:
            VerifyKey(peer).verify(data, signature)
        except (CryptoError, ValueError, TypeError):
            return False
        return True


@functools.lru_cache(maxsize=1 << 16)
def curve_public_key(peer: bytes) -> bytes | None:
    """The Curve25519 form of an Ed25519 peer id. None if `peer` is no point of the curve."""
    try:
        return bindings.crypto_sign_ed25519_pk_to_curve25519(peer)
    except (CryptoError, ValueError, TypeError, RuntimeError):
        return None


class NetworkSecret:
    """32 random bytes that the peers of a network share and keep secret."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        if len(value) != KEY_BYTES:
            raise ConfigError("GD-206", f"a network secret has {KEY_BYTES} bytes", seen=f"{len(value)} bytes")
        self._value = value

    def __repr__(self) -> str:
        return f"NetworkSecret({self.fingerprint})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NetworkSecret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> str:
        raise TypeError("a network secret is not pickled")

    @classmethod
    def generate(cls) -> NetworkSecret:
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load(cls, home: Path) -> NetworkSecret:
        """The secret kept in `home`. Raises FileNotFoundError: there is none."""
        return cls(read_key(home / SECRET_FILE))

    def save(self, home: Path) -> None:
        """Keep the secret in `home`. Raises FileExistsError: there is one already."""
        write_new(home / SECRET_FILE, key_line(self._value))

    def replace(self, home: Path) -> None:
        """Keep the secret in `home` in place of the present one."""
        replace_file(home / SECRET_FILE, key_line(self._value))

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits that operators can compare. They do not reveal the secret."""
        return hashlib.blake2b(self._value, digest_size=4, person=b"gossipdp-finger").hexdigest()

    def curve_server_keys(self) -> CurveKeys:
        """The CURVE server key pair shared by all peers of the network."""
        seed = hashlib.blake2b(self._value, digest_size=KEY_BYTES, person=b"gossipdp-curve-1").digest()
        private = PrivateKey(_clamped(seed))
        return CurveKeys(bytes(private.public_key), bytes(private))

    def reveal(self) -> bytes:
        """The bytes, for an invite or a file."""
        return self._value


def _clamped(seed: bytes) -> bytes:
    """The form of a Curve25519 secret scalar (RFC 7748 section 5)."""
    scalar = bytearray(seed)
    scalar[0] &= 248
    scalar[31] = (scalar[31] & 127) | 64
    return bytes(scalar)


def known_curve_keys(peers: Iterable[bytes]) -> frozenset[bytes]:
    """The Curve25519 forms of `peers`, to look up the key of a connection."""
    return frozenset(key for peer in peers if (key := curve_public_key(peer)) is not None)
