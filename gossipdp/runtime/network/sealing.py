"""Messages between two peers that a third one carries: it learns their sizes and times, and can only drop them.

A relayed connection begins as one of CURVE does: each end draws a key pair for it alone. The keys of both directions
come from the two pairs by libsodium's `crypto_kx` (X25519 and BLAKE2b). Who is at the other end is proven afterwards,
inside: the signed hello covers `binding`, a hash of both public keys (`signed_hello`). A relay that puts keys of its
own in the middle makes the two bindings differ, so neither signature is valid.

Each frame is a box of XChaCha20-Poly1305. Its nonce holds the number of the message, the place of the frame and the
number of frames. So a frame that is changed, moved or left out opens no message. Numbers only rise: a repeated message,
or one that an attacker held back, is refused. A lost message leaves a gap and nothing else.

References: Bernstein, "Curve25519" (PKC 2006); Arciszewski, draft-irtf-cfrg-xchacha-03; RFC 5056 for channel bindings.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from nacl import bindings
from nacl.exceptions import CryptoError

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["KEY_BYTES", "MOST_MESSAGES", "Ephemeral", "Seal"]

KEY_BYTES: Final = bindings.crypto_kx_PUBLIC_KEY_BYTES
MOST_MESSAGES: Final = 1 << 32
"""messages in one direction, after which the keys are renewed"""
OVERHEAD: Final = bindings.crypto_aead_xchacha20poly1305_ietf_ABYTES
"""bytes by which a box is longer than its frame"""
_NONCE: Final = struct.Struct(">QHH12x")


class Ephemeral:
    """The key pair of one end, for one connection. It is of no use after `dialler` or `listener`."""

    def __init__(self) -> None:
        self.public, self._secret = bindings.crypto_kx_keypair()

    def dialler(self, other: bytes) -> Seal:
        """The seal of the end that began the connection. other: the public key of the other end, 32 bytes.

        Raises:
            RemoteProtocolError: `other` is no usable key.
        """
        return self._seal(bindings.crypto_kx_client_session_keys, other, self.public + other)

    def listener(self, other: bytes) -> Seal:
        """The seal of the other end. Arguments and errors as of `dialler`."""
        return self._seal(bindings.crypto_kx_server_session_keys, other, other + self.public)

    def _seal(self, session_keys: object, other: bytes, transcript: bytes) -> Seal:
        assert callable(session_keys)
        try:
            receives, sends = session_keys(self.public, self._secret, other)
        except (CryptoError, ValueError, TypeError, RuntimeError):
            raise RemoteProtocolError("a key that no key pair has") from None
        self._secret = b""
        binding = hashlib.blake2b(transcript, digest_size=32, person=b"gossipdp-relayed").digest()
        return Seal(sends, receives, binding)


class Seal:
    """Seals what one end sends on a relayed connection, and opens what comes.

    Args:
        sends: key of the messages sent, 32 bytes.
        receives: key of the messages received, 32 bytes.
        binding: 32 bytes that name this connection, equal at both ends.
    """

    def __init__(self, sends: bytes, receives: bytes, binding: bytes) -> None:
        self._sends, self._receives, self.binding = sends, receives, binding
        self._sent = self._received = 0
        """numbers of the last message sent and of the last one opened"""
        self.lost = 0
        """messages that were sent before that one and not opened"""

    def __repr__(self) -> str:
        return f"Seal({self.binding[:4].hex()})"

    @property
    def worn(self) -> bool:
        """The keys of one direction have sealed as many messages as they may."""
        return max(self._sent, self._received) >= MOST_MESSAGES

    def seal(self, frames: Sequence[Buffer]) -> tuple[int, list[Buffer]]:
        """The number of the next message, and its frames as boxes."""
        self._sent += 1
        encrypt, number, count = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt, self._sent, len(frames)
        nonces = (_NONCE.pack(number, place, count) for place in range(count))
        boxes = zip(frames, nonces, strict=True)
        return number, [encrypt(bytes(frame), None, nonce, self._sends) for frame, nonce in boxes]

    def open(self, number: int, boxes: Sequence[Buffer]) -> list[Buffer]:
        """The frames of a message.

        Raises:
            RemoteProtocolError: it is forged, changed, cut or repeated, or later ones have come.
        """
        if number <= self._received:
            raise RemoteProtocolError("a message came again, or too late")
        if not boxes:
            raise RemoteProtocolError("a message that nothing proves")
        decrypt, count = bindings.crypto_aead_xchacha20poly1305_ietf_decrypt, len(boxes)
        frames: list[Buffer] = []
        try:
            for place, box in enumerate(boxes):
                frames.append(decrypt(bytes(box), None, _NONCE.pack(number, place, count), self._receives))
        except (CryptoError, ValueError, TypeError, struct.error):
            raise RemoteProtocolError("a message was changed on its way") from None
        self.lost += number - self._received - 1
        self._received = number
        return frames
