"""Golden frames: one example of every message type encodes to the same bytes as before.

`frames.txt` holds one line a message type: its name and the SHA-256 of its frames. A line changes only together with
`PROTOCOL_VERSION`. `python -m tests.protocol.wire.test_frames` prints the lines.
"""

import hashlib
import zlib
from pathlib import Path

import msgspec
import pytest

from gossipdp.protocol.wire.encoding import decode, encode
from gossipdp.protocol.wire.table import BUFFERS, MESSAGES

GOLDEN = Path(__file__).with_name("frames.txt")


def value(kind, name):
    """A value that the type `kind` allows; `name`, the field's, makes it differ from that of other fields."""
    number = zlib.crc32(name.encode())
    match kind:
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType(ge=least, le=most):
            return least + number % min(most - least + 1, 1 << 31)
        case msgspec.inspect.FloatType(ge=least, le=most):
            return least + (number % 64) / 64 * (1.0 if most is None else most - least)
        case msgspec.inspect.StrType(max_length=most):
            return f"{name} é"[:most]
        case msgspec.inspect.BytesType(min_length=least, max_length=most):
            size = most if least is None else least
            return hashlib.shake_128(name.encode()).digest(size)
        case msgspec.inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case msgspec.inspect.UnionType(types=types):
            return value(next(each for each in types if not isinstance(each, msgspec.inspect.NoneType)), name)
        case msgspec.inspect.VarTupleType(item_type=item):
            return tuple(value(item, f"{name}{place}") for place in range(2))
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: value(field.type, f"{name}.{field.name}") for field in fields})
    raise TypeError(f"no example of {kind}")


def example(kind):
    """A message of type `kind` with all fields set, and its raw buffers."""
    least, _ = BUFFERS.get(kind, (0, 0))
    message = value(msgspec.inspect.type_info(kind), kind.__name__)
    return message, [f"buffer {number}".encode() for number in range(least)]


def fingerprint(kind):
    """Hash of the example's frames, each with its length before it."""
    joined = hashlib.sha256()
    for frame in encode(*example(kind)):
        joined.update(len(frame).to_bytes(4, "big") + bytes(frame))
    return joined.hexdigest()


def golden():
    return dict(line.split() for line in GOLDEN.read_text().splitlines())


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=lambda kind: kind.__name__)
def test_example_of_every_message_type_encodes_to_the_golden_frames(kind):
    assert fingerprint(kind) == golden()[kind.__name__]


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=lambda kind: kind.__name__)
def test_example_of_every_message_type_survives_the_way_back(kind):
    message, buffers = example(kind)
    assert decode(encode(message, buffers)) == (message, buffers)


def test_golden_frames_cover_every_message_type_and_no_other():
    assert set(golden()) == {kind.__name__ for kind in MESSAGES.values()}


if __name__ == "__main__":
    for each in MESSAGES.values():
        print(each.__name__, fingerprint(each))
