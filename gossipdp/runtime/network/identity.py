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
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from nacl import bindings
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox
from nacl.signing import SigningKey, VerifyKey

from gossipdp.errors import ConfigError
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime import unix_sockets
from gossipdp.runtime.network.key_files import (
    KEY_BYTES,
    damaged,
    key_line,
    read_key,
    read_keys,
    replace_file,
    write_new,
)

__all__ = [
    "IDENTITY_FILE",
    "OPERATOR_FILE",
    "SECRET_FILE",
    "CurveKeys",
    "Identity",
    "NetworkSecret",
    "curve_public_key",
    "digest_of",
    "known_curve_keys",
]

IDENTITY_FILE: Final = unix_sockets.KEY
SECRET_FILE: Final = "network.secret"
OPERATOR_FILE: Final = "operator.key"
"""key of the network's operator, on the host that founded the network and wherever the operator keeps a copy"""


KEPT: Final = 4
"""generations of a renewed secret that a peer keeps"""


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

    def reveal(self) -> bytes:
        """The seed (32 bytes) of the key."""
        return bytes(self._key)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data).signature

    def unseal(self, box: bytes) -> bytes | None:
        """What is in a box that was sealed for this peer; None if it was not."""
        try:
            return SealedBox(PrivateKey(self.curve.secret)).decrypt(box)
        except (CryptoError, ValueError, TypeError):
            return None

    @staticmethod
    def seal(peer: bytes, data: bytes) -> bytes:
        """`data` in a box that only `peer` can open. Raises ValueError: `peer` is no public key."""
        key = curve_public_key(peer)
        if key is None:
            raise ValueError(f"{short(peer)} is no public key")
        return SealedBox(PublicKey(key)).encrypt(data)

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
    """What the peers of a network share and keep secret.

    All peers derive the keys of CURVE from the first 32 bytes, which the network keeps for good. A renewed secret adds
    32 bytes that a peer proves in the hello. The last generations of them are kept, so that peers with an older one can
    be let in for a time.

    Args:
        value: 32 bytes.
        generations: number of each renewal, ascending, and its 32 bytes; empty if there was none.
    """

    __slots__ = ("_generations", "_value")

    def __init__(self, value: bytes, generations: Mapping[int, bytes] = MappingProxyType({})) -> None:
        for each in (value, *generations.values()):
            if len(each) != KEY_BYTES:
                raise ConfigError("GD-206", f"a network secret has {KEY_BYTES} bytes", seen=f"{len(each)} bytes")
        self._value, self._generations = value, dict(sorted(generations.items())[-KEPT:])

    def __repr__(self) -> str:
        return f"NetworkSecret({self.fingerprint})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NetworkSecret) and hmac.compare_digest(self._whole, other._whole)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> str:
        raise TypeError("a network secret is not pickled")

    @classmethod
    def generate(cls) -> NetworkSecret:
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load(cls, home: Path) -> NetworkSecret:
        """The secret kept in `home`.

        Raises:
            FileNotFoundError: there is none.
            ConfigError: GD-206.
        """
        value, *rest = read_keys(home / SECRET_FILE)
        if len(rest) % 2:
            raise damaged(home / SECRET_FILE)
        pairs = zip(rest[::2], rest[1::2], strict=True)
        return cls(value, {int.from_bytes(number): secret for number, secret in pairs})

    def save(self, home: Path) -> None:
        """Keep the secret in `home`. Raises FileExistsError: there is one already."""
        write_new(home / SECRET_FILE, self._lines())

    def replace(self, home: Path) -> None:
        """Keep the secret in `home` in place of the present one."""
        replace_file(home / SECRET_FILE, self._lines())

    def _lines(self) -> bytes:
        """A line for the value, then two for each generation."""
        rest = ((number.to_bytes(KEY_BYTES), secret) for number, secret in self._generations.items())
        return b"".join(map(key_line, (self._value, *chain.from_iterable(rest))))

    @property
    def _whole(self) -> bytes:
        return self._lines()

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits that operators can compare. They do not reveal the secret."""
        newest = self._generations.get(self.generation, b"")
        return hashlib.blake2b(self._value + newest, digest_size=4, person=b"gossipdp-finger").hexdigest()

    @property
    def generation(self) -> int:
        """Number of the newest generation; 0 before the first renewal."""
        return max(self._generations, default=0)

    @property
    def older(self) -> tuple[int, ...]:
        """The older generations that are kept, the newest first."""
        return tuple(sorted(self._generations, reverse=True)[1:])

    def renewed(self, number: int, secret: bytes) -> NetworkSecret:
        """This secret with a new generation."""
        return NetworkSecret(self._value, self._generations | {number: secret})

    def with_generations_of(self, other: NetworkSecret) -> NetworkSecret:
        """This secret with all generations of `other`, too."""
        return NetworkSecret(self._value, self._generations | other._generations)

    def founded_with(self, other: NetworkSecret) -> bool:
        """Whether `other` is a secret of the same network, perhaps of another generation."""
        return hmac.compare_digest(self._value, other._value)

    def hello_key(self, generation: int) -> bytes | None:
        """What a peer proves in the hello; b"" for generation 0, None for a generation that is not kept."""
        if generation == 0:
            return b""
        secret = self._generations.get(generation)
        return secret and hashlib.blake2b(secret, digest_size=KEY_BYTES, person=b"gossipdp-hello-4").digest()

    def curve_server_keys(self) -> CurveKeys:
        """The CURVE server key pair shared by all peers of the network."""
        seed = hashlib.blake2b(self._value, digest_size=KEY_BYTES, person=b"gossipdp-curve-1").digest()
        private = PrivateKey(_clamped(seed))
        return CurveKeys(bytes(private.public_key), bytes(private))

    def reveal(self) -> bytes:
        """The value, for an invite or a file."""
        return self._value

    def reveal_generation(self) -> bytes:
        """The bytes of the newest generation, for an invite; b"" before the first renewal."""
        return self._generations.get(self.generation, b"")


def digest_of(secret: bytes) -> bytes:
    """32 bytes by which a peer recognizes a new secret. They do not reveal it."""
    return hashlib.blake2b(secret, digest_size=KEY_BYTES, person=b"gossipdp-renewed").digest()


def _clamped(seed: bytes) -> bytes:
    """The form of a Curve25519 secret scalar (RFC 7748 section 5)."""
    scalar = bytearray(seed)
    scalar[0] &= 248
    scalar[31] = (scalar[31] & 127) | 64
    return bytes(scalar)


def known_curve_keys(peers: Iterable[bytes]) -> frozenset[bytes]:
    """The Curve25519 forms of `peers`, to look up the key of a connection."""
    return frozenset(key for peer in peers if (key := curve_public_key(peer)) is not None)
