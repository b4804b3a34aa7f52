"""Adam's moments as torch encodes and decodes them, beside the same format in numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import MOST_RATIO, check, payload_bytes, places
from gossipdp.training.optimizer_state.encoding import Encoded, decode, encode
from tests.codecs import moments_reference as reference


def padded(values: np.ndarray) -> torch.Tensor:
    return torch.nn.functional.pad(torch.from_numpy(values), (0, -len(values) % BLOCK))


def encoded(m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The payload."""
    size, parts = len(m), encode(padded(v), padded(m))
    payload = np.zeros(payload_bytes(size), np.uint8)
    for place, part in zip(places(size, 0, size), parts, strict=True):
        payload[place] = part.view(torch.uint8).numpy()[: place.stop - place.start]
    return payload


def decoded(payload: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    roots, tops, ratios, scales = (torch.from_numpy(payload[at].copy()) for at in places(size, 0, size))
    pad = -size % BLOCK
    parts = Encoded(
        torch.nn.functional.pad(roots, (0, pad)),
        tops.view(torch.float32),
        torch.nn.functional.pad(ratios, (0, pad)),
        scales.view(torch.float32),
    )
    v, m = (each[:size].numpy() for each in decode(parts))
    return m, v


def adam(size: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Moments whose sizes differ by `spread` powers of ten within a block."""
    random = np.random.default_rng(seed)
    v = 10.0 ** random.uniform(-2 * spread, 0.0, size)
    m = np.sqrt(v) * np.clip(random.standard_normal(size), -7.0, 7.0)
    return m.astype(np.float32), v.astype(np.float32)


SIZES = [1, 2, 255, 256, 257, 1000, 70_000]
SPECIAL = {
    "as trained": adam(5000, 2.5),
    "far apart": adam(5000, 9.0),
    "zeros": (np.zeros(300, np.float32), np.zeros(300, np.float32)),
    "some zeros": tuple(each * (np.arange(5000) % 3 > 0).astype(np.float32) for each in adam(5000, 2.0)),
    "no first": (np.zeros(700, np.float32), adam(700, 2.0)[1]),
    "no second": (adam(700, 2.0)[0], np.zeros(700, np.float32)),
    "denormal": (np.full(600, 1e-40, np.float32), np.full(600, 1e-45, np.float32)),
    "tiny": (np.full(600, 1e-25, np.float32), (10.0 ** np.linspace(-44, -30, 600)).astype(np.float32)),
    "huge": (np.full(600, 3e38, np.float32), np.full(600, 3e38, np.float32)),
    "huge over tiny": (np.full(600, 3e38, np.float32), np.full(600, 1e-38, np.float32)),
    "bfloat16": tuple(torch.from_numpy(each).bfloat16().float().numpy() for each in adam(5000, 2.5)),
}


def same(m: np.ndarray, v: np.ndarray) -> None:
    """The payload is the reference's, but for one step of a code where rounding decides."""
    size, mine, theirs = len(m), encoded(m, v), reference.encoded(m, v)
    assert check(mine.data, size)
    at = places(size, 0, size)
    apart = mine[at.roots].astype(int) - theirs[at.roots]
    assert np.abs(apart).max() <= 1 and (apart != 0).mean() <= 0.001
    tops, scales = ([each[place].copy().view(np.float32) for each in (mine, theirs)] for place in (at.tops, at.scales))
    assert np.allclose(*tops, rtol=1e-6, atol=0.0)
    # A code of s that is one step off moves r by 6 %, and with it perhaps its block's scale.
    still = np.repeat(np.maximum.reduceat(np.abs(apart), np.arange(0, size, BLOCK)) == 0, BLOCK)[:size]
    assert np.allclose(*(each[still[::BLOCK]] for each in scales), rtol=1e-5, atol=0.0)
    codes = [each[at.ratios].view(np.int8).astype(int) for each in (mine, theirs)]
    assert np.abs(codes[0] - codes[1])[still].max(initial=0) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_codes_are_those_of_the_reference(size: int) -> None:
    same(*adam(size, 2.0, size))


@pytest.mark.parametrize("kind", SPECIAL)
def test_codes_of_rare_values_are_those_of_the_reference(kind: str) -> None:
    m, v = SPECIAL[kind]
    same(m, v)
    first, second = decoded(encoded(m, v), len(m))
    assert np.isfinite(first).all() and np.isfinite(second).all()
    assert not first[second == 0.0].any()


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("seed", [None, 0])
def test_any_payload_decodes_as_the_reference_does_bit_for_bit(kind: str, seed: int | None) -> None:
    payload = encoded(*SPECIAL[kind])
    size = len(SPECIAL[kind][0])
    if seed is not None:
        at, random = places(size, 0, size), np.random.default_rng(seed)
        payload[at.roots], payload[at.ratios] = random.integers(0, 256, (2, size))
    for mine, theirs in zip(decoded(payload, size), reference.decoded(payload, size), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("spread", [0.5, 2.5])
def test_update_is_within_the_bound_of_the_format(spread: float) -> None:
    m, v = adam(5000, spread)
    first, second = decoded(encoded(m, v), len(m))
    update = m / np.sqrt(v)
    most = np.repeat(reference.largest(np.abs(update) * 2 ** (1 / 24)), BLOCK)[: len(m)]
    allowed = most / 254 + (2 ** (1 / 24) - 1) * np.abs(update) * 1.001 + 1e-6
    assert (np.abs(first / np.sqrt(second) - update) <= allowed).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-(2.0**127), 2.0**127, width=32), st.floats(0.0, 2.0**127, width=32)),
        min_size=1,
        max_size=300,
    )
)
def test_any_moments_decode_to_bounded_ones(values: list[tuple[float, float]]) -> None:
    m, v = (np.array(column, np.float32) for column in zip(*values, strict=True))
    payload = encoded(m, v)
    first, second = decoded(payload, len(m))
    assert check(payload.data, len(m)) and ((v > 0.0) == (second > 0.0)).all()
    assert (np.abs(first.astype(np.float64)) <= 1.001 * MOST_RATIO * np.sqrt(second.astype(np.float64))).all()


@pytest.mark.parametrize("place", [0, 300, 999])
@pytest.mark.parametrize(
    ("which", "value"), [("v", np.nan), ("v", np.inf), ("v", -1e-30), ("m", np.nan), ("m", np.inf), ("m", -np.inf)]
)
def test_impossible_moments_are_refused_also_where_the_other_one_is_zero(which: str, value: float, place: int) -> None:
    for kept in (0.0, 1.0):
        m, v = (np.full(1000, kept, np.float32) for _ in range(2))
        (m if which == "m" else v)[place] = value
        assert not check(encoded(m, v).data, 1000)
