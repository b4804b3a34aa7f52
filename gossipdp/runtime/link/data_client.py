"""Messages between readers of a data set and the daemon of their host, and the readers' end of the connection.

    reader                                    daemon
    Begin                        ->
                                 <-           Pass, once the daemon knows what other peers have read; or Denied
    Next                         ->
                                 <-           Leased; or Over, if the pass has no more blocks
    Used                         ->
    Bye                          ->           it leaves, and has used every block it got

A reader is a process that draws samples: a rank of the training group, or a data loader's process for one. Each reader
has its own connection to HOME/data.sock, so no rank waits for another. All ranks get the same blocks in the same order,
because the daemon remembers its answers (see `data_passes`). A rank's samples of a block follow from its number.
Nothing here may know a sample.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import DataError, RemoteProtocolError
from gossipdp.protocol.wire.messages import MAX_BLOCKS, U32, U63, Digest, Name
from gossipdp.runtime.link.forks import leave_in_forks
from gossipdp.runtime.unix_sockets import address, receive, socket_path, user_of

__all__ = ["DataLink", "DataLost", "Group", "data_path"]

DATA_VERSION: Final = 1
ANSWER_WITHIN: Final = 30.0
"""seconds after which a silent daemon counts as lost"""

T = TypeVar("T")
Slot = Annotated[int, Meta(ge=0, le=1023)]


class _Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages. Fields are append-only; a new one has a default."""


class Begin(_Message, frozen=True, tag="begin"):
    """The reader's next pass over the data begins, or goes on after a restart of the daemon."""

    version: U32
    group: Digest
    """random id of one start of a training group"""
    world: Annotated[int, Meta(ge=1, le=1024)]
    """number of ranks of the group"""
    rank: Annotated[int, Meta(ge=0, le=1023)]
    slot: Slot
    """number of the reader within its rank"""
    data: Digest
    name: Name
    blocks: Annotated[int, Meta(ge=1, le=MAX_BLOCKS)]
    number: U32 = 0
    """number of the pass that goes on; 0 for the next one"""


class Next(_Message, frozen=True, tag="next"):
    """Ask for the next block. Keys count the blocks of a pass. All ranks ask for a key with the same `first`."""

    key: U63
    first: Annotated[int, Meta(ge=-1, lt=MAX_BLOCKS)] = -1
    """take the next block from this number on; -1 for any order"""


class Used(_Message, frozen=True, tag="used"):
    """This rank has used its samples of the block."""

    epoch: U32
    block: U32


class Bye(_Message, frozen=True, tag="bye"):
    """This reader leaves. It has used the blocks it got in a pass that is over."""


class Pass(_Message, frozen=True, tag="pass"):
    number: U32
    epoch: U32
    """epoch of the network, and the last one whose blocks this pass has"""
    readers: U32
    """number of peers that read the same data, this one included"""


class Leased(_Message, frozen=True, tag="leased"):
    key: U63
    epoch: U32
    block: U32


class Over(_Message, frozen=True, tag="over"):
    key: U63


class Denied(_Message, frozen=True, tag="denied"):
    code: Annotated[str, Meta(max_length=16)]
    cause: Annotated[str, Meta(max_length=400)]
    seen: Annotated[str, Meta(max_length=400)] = ""
    do: Annotated[str, Meta(max_length=400)] = ""


FromReader: TypeAlias = Begin | Next | Used | Bye
ToReader: TypeAlias = Pass | Leased | Over | Denied

_encoder = msgspec.msgpack.Encoder()
_from_reader: msgspec.msgpack.Decoder[FromReader] = msgspec.msgpack.Decoder(FromReader)
_to_reader: msgspec.msgpack.Decoder[ToReader] = msgspec.msgpack.Decoder(ToReader)


def encode(message: FromReader | ToReader) -> bytes:
    return _encoder.encode(message)


def decode_from_reader(packet: bytes) -> FromReader:
    """Decode any bytes. Raises RemoteProtocolError if they are no message."""
    try:
        return _from_reader.decode(packet)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"from a reader of data: {error!s:.120}") from None


def data_path(home: Path) -> Path:
    """The path of the socket for readers of data."""
    return socket_path(home, "data.sock")


# -- the reader's end ---------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """A reader and its data set. Fields as in `Begin`."""

    id: bytes
    world: int
    rank: int
    slot: int
    data: bytes
    name: str
    blocks: int


class DataLost(Exception):
    """There is no daemon, or it is gone."""


class DataLink:
    """One reader's connection. Methods wait for the answer of the daemon, which is on this host.

    Raises:
        DataLost: no daemon serves this home.
    """

    def __init__(self, home: Path) -> None:
        path = data_path(home)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)
            with address(path) as where:
                self._socket.connect(where)
            if user_of(self._socket) != os.geteuid():
                raise OSError(f"served by user {user_of(self._socket)}")
        except OSError as error:
            self._socket.close()
            raise DataLost(f"{path}: {error.strerror or error}") from None
        leave_in_forks(self)

    def begin(self, group: Group, number: int = 0) -> Pass:
        """The next pass, or pass `number` again.

        Raises:
            DataError: GD-309, the daemon knows this data set with other numbers.
        """
        answer = self._ask(Begin(DATA_VERSION, group.id, *group[1:], number))
        if not isinstance(answer, Pass):
            raise DataLost(f"{type(answer).__name__} for an answer")
        return answer

    def next(self, key: int, first: int = -1) -> tuple[int, int] | None:
        """Epoch and block, or None once the pass is over."""
        answer = self._ask(Next(key, first))
        match answer:
            case Leased(said, epoch, block) if said == key:
                return epoch, block
            case Over(said) if said == key:
                return None
        raise DataLost(f"{type(answer).__name__} for an answer")

    def used(self, epoch: int, block: int) -> None:
        self._send(Used(epoch, block))

    def bye(self) -> None:
        """Leave. Blocks of a pass that is over count as used."""
        try:
            self._send(Bye())
        except DataLost:
            pass  # there is no daemon to tell
        self.close()

    def close(self) -> None:
        self._socket.close()

    def leave_to_parent(self) -> None:
        """In a forked child: close, so that the daemon notices the parent's death."""
        self.close()

    def _ask(self, message: Begin | Next) -> ToReader:
        self._send(message)
        packet = self._wait(select.POLLIN, lambda: receive(self._socket)[0])
        if not packet:
            self.close()
            raise DataLost("the daemon is gone")
        try:
            answer = _to_reader.decode(packet)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataLost(f"not understood: {error!s:.120}") from None
        if isinstance(answer, Denied):
            self.close()
            raise DataError(answer.code, answer.cause, seen=answer.seen, do=answer.do)
        return answer

    def _send(self, message: FromReader) -> None:
        self._wait(select.POLLOUT, lambda: self._socket.send(encode(message)))

    def _wait(self, ready: int, action: Callable[[], T]) -> T:
        until = time.monotonic() + ANSWER_WITHIN
        poll = select.poll()
        while True:
            try:
                return action()
            except BlockingIOError:
                pass
            except (OSError, ValueError) as error:
                self.close()
                raise DataLost(f"the connection to the daemon broke: {error}") from None
            poll.register(self._socket, ready)
            if time.monotonic() >= until or not poll.poll(1000.0 * (until - time.monotonic())):
                self.close()
                raise DataLost(f"no answer within {ANSWER_WITHIN:.0f} s")
