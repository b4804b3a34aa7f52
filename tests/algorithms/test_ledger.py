"""The ledger (algorithms section 1): at every instant x + pending - a = inner progress since the last snapshot."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.algorithms.ledger import Ledger, block_max, in_memory, state_hash

SIZE, TRAINABLE, WIDTH = 700, 512, 256
CHUNKS = 3
TOLERANCE = 2e-5
"""fp32, values of about 1, some hundred additions"""


class Host:
    """A ledger, its training process in fp32, and that process's own progress in fp64."""

    def __init__(self, keep=in_memory):
        self.ledger = Ledger(SIZE, TRAINABLE, WIDTH, keep)
        self.rng = np.random.default_rng(1)
        self.ledger.a[:] = self.rng.standard_normal(SIZE)
        self.sealed = 0
        self.attach()

    def attach(self):
        self.region = np.full((2, SIZE), np.nan, np.float32)
        self.ledger.bind((self.region[0], self.region[1]))
        for chunk in range(CHUNKS):
            self.ledger.attach(chunk)
        self.x = self.region[0].copy()
        self.since = np.zeros(SIZE)
        self.at_submit = None
        self.stepped = set()
        self.applied = self.sealed = 0
        self.unreleased = 0

    def inner_step(self):
        before = self.x.astype(np.float64)
        self.x += self.rng.standard_normal(SIZE).astype(np.float32) * np.float32(0.01)
        self.since += self.x - before

    def submit(self):
        if self.at_submit is None:
            self.drain()
            self.release()
            self.ledger.x[:] = self.x
            self.at_submit, self.stepped = (self.since.copy(), self.applied), set()

    def outer_step(self, chunk, lr, momentum):
        if self.at_submit is None or chunk in self.stepped:
            return
        progress, applied = self.at_submit
        span = self.ledger.span(chunk)
        self.ledger.outer_step(chunk, lr, momentum, applied)
        self.since[span] -= progress[span]
        self.stepped.add(chunk)
        if len(self.stepped) == CHUNKS:
            self.at_submit = None

    def land(self, chunk, scale):
        """Apply one chunk of an exchange: the same numbers to a and to pending."""
        span = self.ledger.span(chunk)
        delta = (self.rng.standard_normal(span.stop - span.start) * scale).astype(np.float32)
        self.ledger.a[span] += delta
        pending = self.ledger.pending(chunk)
        pending += delta

    def rest(self, chunk):
        self.ledger.rest(chunk)

    def seal(self):
        if self.at_submit is not None:
            return  # a snapshot stands in the buffer that would become the open one
        sealed = self.ledger.seal()
        if sealed.chunks:
            self.sealed, self.chunks = sealed.slot, sealed.chunks

    def drain(self):
        if self.sealed > self.applied:
            for chunk in self.chunks:
                span = self.ledger.span(chunk)
                self.x[span] += self.region[self.sealed % 2][span]
            self.applied = self.unreleased = self.sealed

    def release(self):
        if self.unreleased and self.at_submit is None:
            self.ledger.release(self.unreleased)
            self.unreleased = 0

    def error(self):
        total = sum((np.abs(self.gap(chunk)).max() for chunk in range(CHUNKS)), start=0.0)
        return total

    def gap(self, chunk):
        span = self.ledger.span(chunk)
        x = self.x[span].astype(np.float64)
        return x + self.ledger.outstanding(chunk, self.applied) - self.ledger.a[span] - self.since[span]


CHUNK = st.integers(0, CHUNKS - 1)
EVENTS = st.one_of(
    st.just(("inner_step",)),
    st.just(("inner_step",)),
    st.just(("submit",)),
    st.tuples(st.just("outer_step"), CHUNK, st.sampled_from([0.4, 0.7, 1.0]), st.sampled_from([0.0, 0.5, 0.8])),
    st.tuples(st.just("outer_step"), CHUNK, st.sampled_from([0.4, 0.7, 1.0]), st.sampled_from([0.0, 0.5, 0.8])),
    st.tuples(st.just("land"), CHUNK, st.sampled_from([0.0, 0.01, 1.0])),
    st.tuples(st.just("rest"), CHUNK),
    st.just(("seal",)),
    st.just(("drain",)),
    st.just(("release",)),
    st.just(("attach",)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, min_size=10, max_size=80))
def test_invariant_holds_after_every_event_whatever_the_order(events):
    """Chunks land across outer steps, slots are drained late, training processes die and attach anew."""
    host = Host()
    for name, *arguments in events:
        getattr(host, name)(*arguments)
        assert host.error() < TOLERANCE, name


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_lone_peer_is_the_bare_optimizer_bit_for_bit(seed, rounds):
    """lr 1 and mu 0 put nothing into pending and change no bit of x; the anchor is x itself."""
    host = Host()
    host.rng = np.random.default_rng(seed)
    for _ in range(rounds):
        host.inner_step()
        host.submit()
        snapshot = host.x.copy()
        for chunk in range(CHUNKS):
            host.outer_step(chunk, 1.0, 0.0)
        host.seal()
        host.drain()
        assert (host.x == snapshot).all() and (host.ledger.a == snapshot).all()
        assert host.sealed == 0 and host.ledger.seal().chunks == () and not host.ledger.v.any()


def test_outer_step_is_nesterov_and_buffers_are_plain():
    host = Host()
    rng = np.random.default_rng(2)
    host.ledger.v[:TRAINABLE] = rng.standard_normal(TRAINABLE)
    a, v = host.ledger.a.astype(np.float64), host.ledger.v.astype(np.float64)
    host.region[0] = rng.standard_normal(SIZE)
    d = a - host.region[0]
    steps = [host.ledger.outer_step(chunk, 0.7, 0.8, 0) for chunk in range(CHUNKS)]
    velocity = 0.8 * v + d
    step = -0.7 * (d + 0.8 * velocity)
    np.testing.assert_allclose(host.ledger.a[:TRAINABLE], (a + step)[:TRAINABLE], atol=1e-5)
    np.testing.assert_allclose(host.ledger.v[:TRAINABLE], velocity[:TRAINABLE], atol=1e-5)
    assert (host.ledger.a[TRAINABLE:] == host.region[0][TRAINABLE:]).all() and not host.ledger.v[TRAINABLE:].any()
    moved = [(host.ledger.a - a)[host.ledger.span(chunk)] for chunk in range(CHUNKS)]
    assert [each.movement2 for each in steps] == pytest.approx([float(np.dot(part, part)) for part in moved], rel=1e-5)
    parts = [d[host.ledger.span(chunk)] for chunk in range(CHUNKS)]
    assert [each.pseudo_gradient2 for each in steps] == pytest.approx([float(np.dot(p, p)) for p in parts], rel=1e-5)
    for step, part in zip(steps, moved, strict=True):
        np.testing.assert_allclose(step.largest, block_max(part.astype(np.float32)), rtol=1e-4)


def test_rest_takes_the_lookahead_of_each_chunks_last_outer_step_out_once():
    host = Host()
    host.region[0] = host.rng.standard_normal(SIZE)
    host.ledger.outer_step(0, 1.0, 0.3, 0)
    for chunk, (lr, momentum) in enumerate([(0.7, 0.8), (0.9, 0.5), (0.7, 0.8)]):
        host.ledger.outer_step(chunk, lr, momentum, 0)
    host.ledger.outer_step(1, 1.0, 0.6, 0, made=0.75)
    before = host.ledger.a.copy()
    moved = [host.ledger.rest(chunk) for chunk in range(CHUNKS)]
    for chunk, ahead in enumerate([0.7 * 0.8, 0.6 + 0.25, 0.0]):
        span = host.ledger.span(chunk)
        np.testing.assert_allclose(host.ledger.a[span] - before[span], ahead * host.ledger.v[span], atol=1e-6)
        np.testing.assert_allclose(moved[chunk], ahead * np.abs(host.ledger.v[span]).max(), rtol=1e-6)
    point = host.ledger.a.copy()
    assert not any(host.ledger.rest(chunk).any() for chunk in range(CHUNKS)) and (host.ledger.a == point).all()


def test_rest_changes_no_bit_before_the_first_outer_step_and_after_one_without_momentum():
    host = Host()
    before = host.ledger.a.copy()
    for chunk in range(CHUNKS):
        host.ledger.rest(chunk)
    assert (host.ledger.a == before).all()
    host.region[0] = host.rng.standard_normal(SIZE)
    for momentum in (0.8, 0.0):
        for chunk in range(CHUNKS):
            host.ledger.outer_step(chunk, 1.0, momentum, 0)
    before = host.ledger.a.copy()
    for chunk in range(CHUNKS):
        host.ledger.rest(chunk)
    assert (host.ledger.a == before).all()


def test_rest_of_an_adopted_chunk_changes_nothing():
    host = Host()
    host.region[0] = host.rng.standard_normal(SIZE)
    host.ledger.outer_step(0, 0.7, 0.8, 0)
    payload, digest = host.ledger.freeze(0).payload, host.ledger.freeze(0).hash
    assert host.ledger.adopt(0, payload, digest)
    before = host.ledger.a.copy()
    host.ledger.rest(0)
    assert (host.ledger.a == before).all()


def test_outer_step_counts_only_slots_past_the_snapshots():
    host = Host()
    host.land(0, 1.0)
    host.seal()
    host.drain()
    host.land(1, 1.0)
    host.submit()
    steps = [host.ledger.outer_step(chunk, 1.0, 0.0, host.applied) for chunk in range(CHUNKS)]
    # Slot 1 is inside x and slot 2 is not. In both cases nothing was trained.
    assert max(step.pseudo_gradient2 for step in steps) < 1e-9


def test_seal_waits_until_the_other_buffer_is_released():
    host = Host()
    host.land(0, 1.0)
    assert host.ledger.seal().chunks == (0,)
    host.land(1, 1.0)
    assert host.ledger.seal().chunks == ()
    host.ledger.release(1)
    assert host.ledger.seal() == type(host.ledger.seal())(2, (1,))


@pytest.mark.parametrize("slot", [0, 2, 7])
def test_release_of_a_slot_that_is_not_out_changes_nothing(slot):
    host = Host()
    host.land(0, 1.0)
    host.ledger.seal()
    host.ledger.release(slot)
    assert host.ledger.outstanding(0, 0).any()


def test_corrections_without_a_training_process_are_not_kept():
    host = Host()
    host.land(0, 1.0)
    host.ledger.unbind()
    host.land(1, 1.0)
    assert host.ledger.seal().chunks == ()
    assert not host.ledger.outstanding(1, 0).any()


def test_freeze_and_adopt_keep_bfloat16_and_refuse_damage():
    giver, taker = Host().ledger, Ledger(SIZE, TRAINABLE, WIDTH)
    taker.v[:] = 1.0
    for chunk in range(CHUNKS):
        frozen = giver.freeze(chunk)
        damaged = bytearray(frozen.payload)
        damaged[3] ^= 1
        assert not taker.adopt(chunk, damaged, frozen.hash)
        assert not taker.adopt(chunk, bytes(frozen.payload)[:-2], state_hash(bytes(frozen.payload)[:-2]))
        infinite = (b"\x00\x00\x80\x7f" if giver.averaged(chunk) else b"\x80\x7f") + bytes(frozen.payload)[4:]
        infinite = infinite.ljust(len(frozen.payload), b"\0")
        assert not taker.adopt(chunk, infinite, state_hash(infinite))
        assert taker.adopt(chunk, frozen.payload, frozen.hash)
    assert (np.abs(taker.a - giver.a) <= np.abs(giver.a) * 2.0**-8).all() and not taker.v.any()
    assert taker.a[TRAINABLE:].tobytes() == giver.a[TRAINABLE:].tobytes(), "buffers keep every bit"


def test_copies_for_joiners_lie_where_the_ledger_is_told_to_keep_them():
    kept, plain = [], Host().ledger
    ledger = Host(lambda payload: kept.append(bytes(payload)) or kept[-1]).ledger
    for chunk in range(CHUNKS):
        frozen = ledger.freeze(chunk)
        assert frozen.payload is kept[-1] and frozen.payload == plain.freeze(chunk).payload
        assert frozen.hash == plain.freeze(chunk).hash


def test_no_chunk_holds_both_parameters_and_buffers():
    ledger = Ledger(1000, 512, 256)
    assert [(ledger.span(c).start, ledger.span(c).stop) for c in range(ledger.chunks)] == [
        (0, 256),
        (256, 512),
        (512, 768),
        (768, 1000),
    ]
    assert [ledger.averaged(c) for c in range(4)] == [False, False, True, True]
    assert ledger.chunks_of((511, 512, 999, 0)) == [0, 1, 2, 3]


def test_found_refuses_a_model_that_is_not_finite():
    host = Host()
    host.region[0] = 1.0
    host.region[0, 300] = np.nan
    assert host.ledger.found(0) and not host.ledger.found(1) and host.ledger.found(2)
    assert not host.ledger.check(1) and host.ledger.check(2)


@pytest.mark.parametrize("weight", [3e38, -3e38])
def test_snapshot_or_state_with_values_near_the_end_of_fp32_is_refused(weight):
    """They are finite, but one outer step would make the anchor infinite."""
    host = Host()
    host.region[0] = 0.0
    host.region[0, 300] = weight
    assert host.ledger.check(0) and not host.ledger.check(1)
    other = Ledger(SIZE, TRAINABLE, WIDTH)
    other.a[300] = weight
    frozen = other.freeze(1)
    assert not host.ledger.adopt(1, frozen.payload, frozen.hash)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 700])
def test_block_max_is_the_largest_magnitude_of_each_block(size):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    expected = [np.abs(values[start : start + 256]).max() for start in range(0, size, 256)]
    assert block_max(values).tolist() == expected


@pytest.mark.parametrize(("size", "trainable", "width"), [(0, 0, 256), (10, 11, 256), (10, -1, 256), (10, 5, 100)])
def test_impossible_sizes_are_refused(size, trainable, width):
    with pytest.raises(ValueError):
        Ledger(size, trainable, width)


# -- following another side ------------------------------------------------------------------------------------


def frozen(value=3.0):
    other = Ledger(SIZE, TRAINABLE, WIDTH)
    other.a[:] = value + np.arange(SIZE, dtype=np.float32) / 64
    return other, [other.freeze(chunk) for chunk in range(CHUNKS)]


def test_resync_moves_x_with_the_anchor_and_forgets_the_momentum():
    host = Host()
    other, chunks = frozen()
    host.ledger.v[:] = 1.0
    host.inner_step()
    before = host.x.copy()
    for chunk, part in enumerate(chunks):
        assert host.ledger.resync(chunk, part.payload, part.hash)
    assert np.abs(host.ledger.a - other.a).max() <= 2.0**-8 * np.abs(other.a).max() and not host.ledger.v.any()
    outstanding = np.concatenate([host.ledger.outstanding(chunk, 0) for chunk in range(CHUNKS)])
    assert np.abs(before + outstanding - host.ledger.a - host.since).max() < TOLERANCE * 10


def test_resync_without_a_training_process_is_an_adoption():
    host = Host()
    _, chunks = frozen()
    host.ledger.unbind()
    twin = Ledger(SIZE, TRAINABLE, WIDTH)
    for chunk, part in enumerate(chunks):
        assert host.ledger.resync(chunk, part.payload, part.hash) and twin.adopt(chunk, part.payload, part.hash)
    assert (host.ledger.a == twin.a).all() and (host.ledger.v == twin.v).all()


def elsewhere(payload):
    """Keeps a copy that cannot be written, as on disk."""
    return memoryview(bytes(payload))


@pytest.mark.parametrize("keep", [in_memory, elsewhere])
@pytest.mark.parametrize("times", [1, 2])
def test_resync_taken_back_leaves_only_the_later_steps(times, keep):
    host = Host(keep)
    _, chunks = frozen(100.0)
    _, later = frozen(-90.0)
    host.ledger.a[:] = host.x[:] = np.linspace(-1, 1, SIZE, dtype=np.float32)
    before = host.ledger.a.copy()
    for parts in (chunks, later)[:times]:
        assert host.ledger.resync(0, parts[0].payload, parts[0].hash)
    span = host.ledger.span(0)
    fetched = host.ledger.a[span].copy()
    assert np.abs(fetched - before[span]).min() > 5.0
    host.land(0, 1.0)
    step = np.full(span.stop, 0.25, np.float32)
    host.ledger.a[span] += step
    moved = host.ledger.a[span] - fetched
    host.ledger.conclude(0, back=True)
    assert np.abs(host.ledger.a[span] - before[span] - moved).max() < 1e-4
    gap = host.x[span] + host.ledger.outstanding(0, 0) + step - host.ledger.a[span]
    assert np.abs(gap).max() < 1e-4
    anchor = host.ledger.a.copy()
    host.ledger.conclude(0, back=True)
    host.ledger.conclude(1, back=True)
    assert (host.ledger.a == anchor).all(), "once"


def test_resync_that_is_concluded_stays():
    host = Host()
    other, chunks = frozen()
    assert host.ledger.resync(0, chunks[0].payload, chunks[0].hash)
    for back in (False, True):
        host.ledger.conclude(0, back=back)
    span = host.ledger.span(0)
    assert np.abs(host.ledger.a[span] - other.a[span]).max() <= 2.0**-8 * np.abs(other.a).max()


@pytest.mark.parametrize("fault", ["hash", "length", "nan"])
def test_resync_with_a_payload_that_is_not_a_frozen_chunk_changes_nothing(fault):
    host = Host()
    other, chunks = frozen()
    if fault == "nan":
        other.a[5] = np.nan
        chunks = [other.freeze(0)]
    payload, digest = chunks[0].payload, chunks[0].hash
    payload, digest = {"hash": (payload, bytes(16)), "length": (payload[:-2], digest), "nan": (payload, digest)}[fault]
    anchor = host.ledger.a.copy()
    assert not host.ledger.resync(0, payload, digest)
    assert (host.ledger.a == anchor).all() and host.ledger.seal().chunks == ()


def test_buffer_of_an_old_snapshot_serves_again_from_zero():
    host = Host()
    for chunk in (0, 1, 0, 2):
        host.inner_step()
        host.submit()
        for each in range(CHUNKS):
            host.outer_step(each, 0.7, 0.7)
        host.land(chunk, 1.0)
        host.seal()
        assert host.error() < TOLERANCE
        host.drain()
        host.release()
        assert host.error() < TOLERANCE
    assert host.sealed == 4


def test_snapshots_without_corrections_use_one_buffer():
    host = Host()
    first = host.ledger.x
    for _ in range(2):
        host.submit()
        for chunk in range(CHUNKS):
            host.outer_step(chunk, 1.0, 0.0)
        host.seal()
        assert host.ledger.x is first
    host.land(1, 1.0)
    host.seal()
    assert host.ledger.x is not first


def test_attach_tells_how_far_what_it_replaces_was_from_the_anchor():
    host = Host()
    span = host.ledger.span(1)
    a = host.ledger.a[span].astype(np.float64)
    host.region[0][span] = 3.0 * host.ledger.a[span]
    replaced = host.ledger.attach(1)
    assert (replaced.difference2, replaced.anchor2) == pytest.approx((4.0 * (a @ a), a @ a), rel=1e-6)
    host.region[0][span] = np.inf
    assert host.ledger.attach(1).difference2 == math.inf


def test_attach_clears_pending_because_x_then_holds_it():
    host = Host()
    for chunk in range(CHUNKS):
        host.land(chunk, 1.0)
        host.ledger.attach(chunk)
    assert (host.region[0] == host.ledger.a).all() and not host.ledger.outstanding(0, 0).any()
    assert host.ledger.seal().chunks == ()
