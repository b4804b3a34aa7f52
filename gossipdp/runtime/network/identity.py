"""Who a peer is and what lets it in: key pair, network secret, invite, incarnation.

A peer *is* its Ed25519 public key; the CURVE client key is that same key on Curve25519. Every peer of a network derives
the same CURVE server key pair from the network secret, so that people can dial a bare ``host:port`` and still nobody
without the secret completes a handshake. Files are written whole and 0600 before their name appears. No socket may
stand here, and no secret in any repr.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import hmac
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from nacl import bindings
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey
from nacl.signing import SigningKey, VerifyKey

from gossipdp.errors import ConfigError, DataError
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.files import reading, unwritable

KEY_BYTES: Final = 32
IDENTITY_FILE: Final = "identity.key"
SECRET_FILE: Final = "network.secret"
INCARNATION_FILE: Final = "incarnation"
_START: Final = struct.Struct(">I4s")
MAX_SEEDS: Final = 16
_INVITE_PREFIX: Final = "gdp1_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")


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
    def load(cls, home: Path) -> Identity:
        """The identity kept in `home`; FileNotFoundError if there is none."""
        return cls(_read_key(home / IDENTITY_FILE))

    @classmethod
    def create(cls, home: Path) -> Identity:
        """A new identity, on disk before it is used; FileExistsError if there is one already."""
        seed = secrets.token_bytes(KEY_BYTES)
        write_new(home / IDENTITY_FILE, key_line(seed))
        return cls(seed)

    @classmethod
    def load_or_create(cls, home: Path) -> Identity:
        try:
            return cls.load(home)
        except FileNotFoundError:
            pass
        try:
            return cls.create(home)
        except FileExistsError:  # another process was faster: its key is this home's
            return cls.load(home)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data).signature

    @staticmethod
    def verify(peer: bytes, data: bytes, signature: bytes) -> bool:
        """Is `signature` that of the peer named `peer` over `data`? False for malformed input too."""
        try:
            VerifyKey(peer).verify(data, signature)
        except (CryptoError, ValueError, TypeError):
            return False
        return True


def curve_public_key(peer: bytes) -> bytes | None:
    """The Curve25519 form of an Ed25519 peer id; None if `peer` is no point of the curve."""
    try:
        return bindings.crypto_sign_ed25519_pk_to_curve25519(peer)
    except (CryptoError, ValueError, TypeError, RuntimeError):
        return None


class NetworkSecret:
    """What every peer of a network knows and nobody else: 32 random bytes."""

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
        """The secret kept in `home`; FileNotFoundError if there is none."""
        return cls(_read_key(home / SECRET_FILE))

    def save(self, home: Path) -> None:
        """Keep the secret in `home`; FileExistsError if there is one already."""
        write_new(home / SECRET_FILE, key_line(self._value))

    def replace(self, home: Path) -> None:
        """Keep the secret in `home` instead of the one that is there."""
        replace_file(home / SECRET_FILE, key_line(self._value))

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits that two operators may compare aloud; they do not tell the secret."""
        return hashlib.blake2b(self._value, digest_size=4, person=b"gossipdp-finger").hexdigest()

    def curve_server_keys(self) -> CurveKeys:
        """The CURVE server key pair shared by all peers of the network."""
        seed = hashlib.blake2b(self._value, digest_size=KEY_BYTES, person=b"gossipdp-curve-1").digest()
        private = PrivateKey(_clamped(seed))
        return CurveKeys(bytes(private.public_key), bytes(private))

    def reveal(self) -> bytes:
        """The bytes themselves, for an invite or a file."""
        return self._value


# -- the invite ------------------------------------------------------------------------------------------------


class _InviteBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    network: Annotated[str, msgspec.Meta(min_length=1, max_length=48)]
    secret: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    seeds: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=80)], ...], msgspec.Meta(max_length=MAX_SEEDS)]


@dataclass(frozen=True, slots=True)
class Invite:
    """All a host needs to join: the network's name, its secret, and where to dial first."""

    network: str
    secret: NetworkSecret = field(repr=False)
    seeds: tuple[str, ...] = ()

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
        """One word of text. It holds the secret: hand it over as you would a password."""
        body = msgspec.msgpack.encode(_InviteBody(self.network, self.secret.reveal(), self.seeds))
        return _INVITE_PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Invite:
        """Read what `encode` wrote; white space around and line breaks within do not matter.

        Raises:
            ConfigError: GD-206, whatever the damage; the text itself is never repeated in the message.
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
        return cls(read.network, NetworkSecret(read.secret), tuple(read.seeds))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and bare and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536) or (
        ":" in bare and bare == host
    ):
        raise ConfigError("usage", "an address is host:port, or [v6]:port", seen=repr(address[:90]))
    return bare, int(port)


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=4, person=b"gossipdp-invite").digest()


def _damaged(seen: str) -> ConfigError:
    return ConfigError(
        "GD-206",
        "this is not a whole invite",
        seen=seen,
        do="copy it again, all of it; `gossipdp invite --show` prints it",
    )


# -- files -----------------------------------------------------------------------------------------------------


def next_incarnation(home: Path) -> int:
    """Count one more start of this peer; the new number is on the disk before it is returned.

    Raises:
        DataError: the counter is damaged. Starting again from 1 would make every peer take this one for its own past.
    """
    path = home / INCARNATION_FILE
    try:
        text = path.read_text("ascii").strip()
        if not text.isdigit() or int(text) >= 0xFFFF_FFFF:
            raise ValueError
        incarnation = int(text) + 1
    except FileNotFoundError:
        incarnation = 1
    except (OSError, ValueError):
        raise DataError(
            "GD-603",
            "the count of this peer's starts is damaged",
            seen=str(path),
            do="write a number into it that is larger than the incarnation `gossipdp members` shows on another host",
        ) from None
    replace_file(path, b"%d\n" % incarnation)
    return incarnation


def draw_start(now: float) -> bytes:
    """The mark of a start at Unix time `now`, 8 bytes: an earlier one compares as less, as far as clocks agree."""
    return _START.pack(int(now) & 0xFFFF_FFFF, secrets.token_bytes(4))


def started_at(start: bytes) -> int:
    """Unix time."""
    at: int = _START.unpack(start)[0]
    return at


def count_from(home: Path, incarnation: int) -> None:
    """The next start's number is greater than this."""
    replace_file(home / INCARNATION_FILE, b"%d\n" % min(incarnation, 0xFFFF_FFFE))


def write_new(path: Path, data: bytes) -> None:
    """Create `path` whole, 0600 and on the disk, or not at all.

    Raises:
        FileExistsError: it is there.
        DataError: GD-602.
    """
    _write(path, data, os.link)  # link, unlike rename, refuses to replace


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by a whole new file, 0600 and on the disk before this returns. Raises DataError GD-602."""
    _write(path, data, Path.rename)


def _write(path: Path, data: bytes, name: Callable[[Path, Path], object]) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with spare():
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise
        raise unwritable(path, error) from error


def _sync_directory(path: Path) -> None:
    with spare():
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def key_line(key: bytes) -> bytes:
    """What a key file holds: the key in hexadecimal digits, and a checksum, so that no other key is taken for it."""
    return f"{key.hex()} {_key_checksum(key)}\n".encode()


def _key_checksum(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=4, person=b"gossipdp-keyfile").hexdigest()


def _read_key(path: Path) -> bytes:
    """The key in a file; one that an earlier version wrote has no checksum. Raises FileNotFoundError: there is none."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no file")
        with reading(path) as file:
            text = file.read(4 * KEY_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        seen, do = f"{path}: {error.strerror}", "see to the file; restore it from a backup if it is lost"
        raise ConfigError("GD-206", "a key file cannot be read", seen=seen, do=do) from None
    mode = stat.S_IMODE(mode)
    if mode & 0o077:
        raise ConfigError(
            "GD-206", "a key file is open to other users", seen=f"{path} has mode {mode:03o}", do=f"chmod 600 {path}"
        )
    key = re.fullmatch(rb"([0-9a-f]{64})(?: ([0-9a-f]{8}))?\s*", text)
    value = b"" if key is None else bytes.fromhex(key[1].decode())
    if key is None or (key[2] is not None and key[2].decode() != _key_checksum(value)):
        raise ConfigError(
            "GD-206",
            "a key file is damaged",
            seen=f"{path}, {len(text)} bytes",
            do="restore it; without it this host joins as a new peer in a new home",
        )
    return value


def _clamped(seed: bytes) -> bytes:
    """RFC 7748 section 5: the form of a Curve25519 secret scalar."""
    scalar = bytearray(seed)
    scalar[0] &= 248
    scalar[31] = (scalar[31] & 127) | 64
    return bytes(scalar)


def known_curve_keys(peers: Sequence[bytes]) -> frozenset[bytes]:
    """The Curve25519 forms of `peers`, for looking up the key of a connection."""
    return frozenset(key for peer in peers if (key := curve_public_key(peer)) is not None)
