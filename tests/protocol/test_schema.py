"""The layout of a model: offsets, canonical bytes, what is refused, what people are told."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.schema import MAX_BYTES, Entry, Frozen, Mismatch, Schema, chunk_parameters, chunk_spans

TENSORS = [
    ("head.weight", (10, 7), "float32", "parameter"),
    ("norm.running_mean", (7,), "float32", "buffer"),
    ("scale", (), "bfloat16", "parameter"),
    ("body.weight", (3, 3, 2), "float16", "parameter"),
    ("norm.running_var", (7,), "float64", "buffer"),
]

tensors = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=20),
        st.lists(st.integers(1, 50), max_size=4).map(tuple),
        st.sampled_from(["bfloat16", "float16", "float32", "float64"]),
        st.sampled_from(["parameter", "buffer"]),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda tensor: tensor[0],
)


def test_parameters_stand_first_and_buffers_from_the_next_block() -> None:
    schema = Schema.of(TENSORS)
    assert [(entry.name, entry.offset) for entry in schema.entries] == [
        ("head.weight", 0),
        ("scale", 70),
        ("body.weight", 71),
        ("norm.running_mean", 256),
        ("norm.running_var", 263),
    ]
    assert (schema.trainable, schema.size) == (256, 270)
    alone = Schema.of(TENSORS[:1])
    assert (alone.trainable, alone.size) == (70, 70), "no buffers: no padding"


@settings(deadline=None, max_examples=50)
@given(tensors)
def test_bytes_and_back(listed: list[tuple[str, tuple[int, ...], str, str]]) -> None:
    schema = Schema.of(listed)
    again = Schema.from_bytes(schema.to_bytes())
    assert again == schema and again.digest == schema.digest and again.to_bytes() == schema.to_bytes()
    assert len(schema.digest) == 16
    ends = [entry.stop for entry in schema.entries]
    assert all(stop <= entry.offset for stop, entry in zip(ends, schema.entries[1:], strict=False))
    assert max(ends) == schema.size
    assert schema.first_difference(again) == ""


FROZEN = [Frozen("embed.weight", b"e" * 16), Frozen("base.weight", b"b" * 16)]


def test_frozen_parameters_have_no_place_in_the_vector_and_none_in_the_digest() -> None:
    bare, schema = Schema.of(TENSORS), Schema.of(TENSORS, FROZEN)
    assert (schema.entries, schema.size, schema.trainable) == (bare.entries, bare.size, bare.trainable)
    assert schema != bare and schema.digest == bare.digest
    assert Schema.from_bytes(schema.to_bytes()) == schema and schema.frozen[0].name == "base.weight"
    assert len(msgspec.msgpack.decode(bare.to_bytes())) == 2, "nothing is said where there is nothing"


def test_different_frozen_parameters_are_named_if_both_sides_list_theirs() -> None:
    network, bare = Schema.of(TENSORS, FROZEN), Schema.of(TENSORS)
    assert not network.first_difference(bare) and not bare.first_difference(network)
    other = Schema.of(TENSORS, [FROZEN[0], Frozen("base.weight", b"B" * 16)])
    said = "frozen parameter base.weight: other values, and so 1 of 2; the others are equal"
    assert network.first_difference(other) == said
    whole = Schema.of(TENSORS, [Frozen(name, b"B" * 16) for name, _ in FROZEN])
    assert network.first_difference(whole).endswith("2 of 2")
    fewer = Schema.of(TENSORS, FROZEN[:1])
    assert network.first_difference(fewer) == "frozen parameter base.weight: only in the network, and so 1 of 2"
    assert fewer.first_difference(network) == "frozen parameter base.weight: only here, and so 1 of 2"
    kinds = [network.mismatch(each) for each in (network, bare, other, whole, fewer, Schema.of(TENSORS[:-1], FROZEN))]
    nothing, all_frozen = Mismatch.NONE, Mismatch.FROZEN
    assert kinds == [nothing, nothing, Mismatch.SOME_FROZEN, all_frozen, all_frozen, Mismatch.TENSORS]


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Schema.from_bytes(data)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_mutated_schema_is_refused_or_is_another_schema(data: st.DataObject) -> None:
    original = Schema.of(TENSORS).to_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255))
    mutated = original[:place] + bytes([byte]) + original[place + 1 :]
    try:
        schema = Schema.from_bytes(mutated)
    except RemoteProtocolError:
        return
    assert schema.to_bytes() == mutated and (mutated == original) == (schema.digest == Schema.of(TENSORS).digest)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ([1, []], "length"),
        ([2, [["a", [1], "float32", "parameter"]]], "enum"),
        ([1, [["a", [0], "float32", "parameter"]]], ">= 1"),
        ([1, [["a", [-4], "float32", "parameter"]]], ">= 1"),
        ([1, [["a", [1 << 37], "float32", "parameter"]]], "<= 68719476736"),
        ([1, [["a", [1 << 30, 1 << 30], "float32", "parameter"]]], "more than"),
        ([1, [["a", [1] * 17, "float32", "parameter"]]], "length"),
        ([1, [["", [1], "float32", "parameter"]]], "length"),
        ([1, [["a", [1], "int8", "parameter"]]], "enum"),
        ([1, [["a", [1], "float32", "frozen"]]], "enum"),
        ([1, [["a", [1], "float32", "parameter"], ["a", [2], "float32", "parameter"]]], "same name"),
        ([1, [["a", [1], "float32", "buffer"], ["b", [2], "float32", "parameter"]]], "canonical"),
        ([1, [["a", [1], "float32", "parameter", ["b"], 5]]], "length"),
        ([1, [["a", [1], "float32", "parameter", []]]], "canonical"),
        ([1, [["a", [1], "float32", "parameter", ["a"]]]], "same name"),
        ([1, [["a", [1.5], "float32", "parameter"]]], "int"),
        ([1, [["a", [1], "float32", "parameter"]], []], "canonical"),
        ([1, [["a", [1], "float32", "parameter"]], [["f", b"short"]]], "length"),
        ([1, [["a", [1], "float32", "parameter"]], [["f", bytes(16)], ["f", bytes(16)]]], "same name"),
        ([1, [["a", [1], "float32", "parameter"]], [["g", bytes(16)], ["f", bytes(16)]]], "canonical"),
    ],
)
def test_invalid_schema_is_refused(written: object, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        Schema.from_bytes(msgspec.msgpack.encode(written))


def test_a_schema_past_its_limit_is_refused_unread() -> None:
    with pytest.raises(RemoteProtocolError, match="limit"):
        Schema.from_bytes(bytes(MAX_BYTES + 1))
    with pytest.raises(ValueError, match="limit"):
        Schema.of((f"{number:0>1000}", (1,), "float32", "parameter") for number in range(4300))


@pytest.mark.parametrize("offset", [0, 3, 5, 256])
def test_entries_may_neither_overlap_nor_leave_a_gap(offset: int) -> None:
    with pytest.raises(ValueError, match="stands at"):
        Schema((Entry("a", (4,), "float32", "parameter", 0), Entry("b", (1,), "float32", "parameter", offset)))


def test_the_first_difference_names_both_sides() -> None:
    network = Schema.of(TENSORS)
    other = [*TENSORS]
    other[2] = ("scale", (3,), "float32", "parameter")
    assert network.first_difference(Schema.of(other)) == (
        "parameter 1: scale () bfloat16 in the network, scale (3,) float32 in this model"
    )
    assert network.first_difference(Schema.of(TENSORS[:-1])) == (
        "5 tensors in the network, 4 in this model; "
        "the first that only the network has is buffer norm.running_var (7,) float64"
    )
    thawed = Schema.of([*TENSORS, ("embed.weight", (4,), "float32", "parameter")])
    frozen = Schema.of(TENSORS, FROZEN)
    told = "embed.weight is {} in the network and {} here: set requires_grad before attach"
    assert told.format("frozen", "trained") in frozen.first_difference(thawed)
    assert told.format("trained", "frozen") in thawed.first_difference(frozen)
    assert "only this model has is buffer" in Schema.of(TENSORS[:-1]).first_difference(network)


@pytest.mark.parametrize(
    ("size", "width", "chunks"),
    [
        (1, 8_192, 1),
        (8_193, 8_192, 2),
        (131_072, 8_192, 16),
        (131_073, 8_448, 16),
        (250_000, 15_872, 16),
        (8_388_608, 524_288, 16),
        (25_000_000, 1_048_576, 24),
        (1_000_000_000, 1_048_576, 954),
    ],
)
def test_chunks_of_a_model(size: int, width: int, chunks: int) -> None:
    assert (chunk_parameters(size), len(chunk_spans(size, size, width))) == (width, chunks)
    assert width % 256 == 0


def test_other_names_of_a_tensor_travel_and_are_not_compared() -> None:
    tensors = [("a", (4,), "float32", "parameter"), ("b", (2,), "float32", "parameter")]
    plain, tied = Schema.of(tensors), Schema.of(tensors, also={"a": ("c", "d")})  # type: ignore[arg-type]
    assert Schema.from_bytes(tied.to_bytes()) == tied != plain
    assert Schema.from_bytes(tied.to_bytes()).entries[0].also == ("c", "d")
    assert tied.digest == plain.digest and tied.first_difference(plain) == ""
    with pytest.raises(ValueError, match="same name"):
        Schema.of(tensors, also={"a": ("b",)})  # type: ignore[arg-type]
