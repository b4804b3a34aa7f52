"""Epochs that are settled by the mean or by a robust rule (algorithms section 4)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gossipdp.protocol import jobs
from tests.algorithms.epidemic.epidemic_peer import CHUNKS, SIZE, TOLERANCE, TRAINABLE, Message, Peer


def contributions(count, compressor="topk256", seed=0):
    made = []
    for number in range(count):
        peer = Peer((seed, number))
        peer.train()
        made.append(peer.publish(compressor, weight=1 / count)[0])
    return made


def epoch(peer, messages, rule, *, lr=1.0, rows=None, weights=None, own=(), scales=None):
    """Judge an epoch of messages.

    Args:
        rows: the contributor of each message; by default each has its own.
        own: indices of the messages in the peer's lead.
        scales: share of each movement that counts.
    """
    scales = [1.0] * len(messages) if scales is None else scales
    rows = list(range(len(messages))) if rows is None else rows
    if weights is None:
        weights = [0.0] * (max(rows) + 1)
        for row, message in zip(rows, messages, strict=True):
            weights[row] += message.weight
    terms = [
        tuple(
            jobs.Term(row, message.compressor, message.payloads[chunk], lr, message.weight, scale)
            for row, message, scale in zip(rows, messages, scales, strict=True)
        )
        for chunk in range(CHUNKS)
    ]
    for chunk in range(CHUNKS):
        peer.algorithm.run(jobs.MeasureEpoch(chunk, tuple(weights), terms[chunk]))
    leads = [tuple((message.compressor, message.payloads[chunk]) for message in own) for chunk in range(CHUNKS)]
    return [
        peer.algorithm.run(jobs.ApplyEpoch(chunk, tuple(weights), terms[chunk], rule, leads[chunk]))
        for chunk in range(CHUNKS)
    ]


@pytest.mark.parametrize("compressor", ["topk256", "whole"])
def test_epoch_by_its_mean_equals_its_messages_one_by_one_but_for_rounding(compressor):
    messages = contributions(5, compressor)
    cut = Message(tuple(b"short" for _ in range(CHUNKS)), 0.2, compressor, 1.0)
    whole, single = Peer(1), Peer(1)
    done = epoch(whole, [*messages, cut], "mean")
    assert all(one.counted == (True,) * 5 + (False,) for one in done)
    for message in messages:
        single.apply(Message(message.payloads, message.weight, compressor, 1.0))
    moved = np.abs(single.ledger.fixed - Peer(1).ledger.fixed).max()
    assert np.abs(whole.ledger.fixed - single.ledger.fixed).max() < 1e-6 * moved or whole.state() == single.state()
    assert whole.state() != Peer(1).state()
    assert max(whole.error(), single.error()) < TOLERANCE


@pytest.mark.parametrize("rule", ["mean", "nnm-trimmed", "median"])
def test_own_increments_lead_until_their_epoch_is_settled(rule):
    """The shared state and its digests do not contain them. Taken out again they leave no trace."""
    others, peer, bystander = contributions(5), Peer((0, 9)), Peer(1)
    before, rounds = peer.state()[:2], []
    for _ in range(2):
        peer.train()
        message, said = peer.publish(weight=1 / 6, lead=True)
        rounds.append(message)
        assert peer.state()[:2] == before and all(one.fingerprint == 0 for one in said)
        assert peer.error() < TOLERANCE
    led = sum(peer.decode(message) for message in rounds)
    assert np.abs(peer.ledger.fixed * 2.0**-32 - led - peer.ledger.a).max() < 1e-6
    fingerprint = sum(peer.algorithm.run(jobs.Fingerprint(chunk)).value for chunk in range(CHUNKS))
    done = epoch(peer, [*others, rounds[0]], rule, own=rounds[:1])
    epoch(bystander, [*others, rounds[0]], rule)
    assert peer.state()[:2] == bystander.state()[:2] != before
    after = sum(peer.algorithm.run(jobs.Fingerprint(chunk)).value for chunk in range(CHUNKS))
    assert (after - fingerprint - sum(one.fingerprint for one in done)) % 2**64 == 0
    epoch(peer, rounds[1:], rule, own=rounds[1:])
    epoch(bystander, rounds[1:], rule)
    assert peer.state() == bystander.state() and not peer.ledger.lead.any()
    assert peer.error() < TOLERANCE


@pytest.mark.parametrize("back", [False, True])
def test_state_taken_over_while_training_ends_the_lead_unless_it_is_taken_back(back):
    peer, giver = Peer((0, 9)), Peer(1)
    epoch(giver, contributions(5), "median")
    frozen = [giver.algorithm.run(jobs.Freeze(chunk)) for chunk in range(CHUNKS)]
    peer.train()
    peer.publish(lead=True)
    before = peer.state()
    for chunk, one in enumerate(frozen):
        assert peer.algorithm.run(jobs.Resync(chunk, one.payload, one.hash)) == jobs.Checked(True)
    assert peer.state()[:2] == giver.state()[:2] and peer.ledger.lead.any()
    for chunk in range(CHUNKS):
        peer.algorithm.run(jobs.Conclude(chunk, back))
    assert peer.state() == (before if back else giver.state())
    assert peer.ledger.lead.any() == back and peer.error() < TOLERANCE


def test_two_messages_of_one_contributor_have_one_vote():
    """They count as their sum, bit for bit."""
    messages = contributions(5, "whole")
    halves = [Message(messages[0].payloads, 0.1, "whole", 1.0)] * 2
    one, two = Peer(1), Peer(1)
    epoch(one, messages, "nnm-trimmed")
    epoch(two, [*halves, *messages[1:]], "nnm-trimmed", rows=[0, 0, 1, 2, 3, 4])
    assert np.abs(one.ledger.fixed - two.ledger.fixed).max() < 2**10


def test_contributor_without_weight_counts_nothing():
    messages = contributions(6, "whole")
    with_, without = Peer(1), Peer(1)
    done = epoch(with_, messages, "nnm-median", weights=[1 / 6] * 5 + [0.0])
    epoch(without, messages[:5], "nnm-median")
    assert all(one.counted == (True,) * 5 + (False,) for one in done)
    assert with_.state() == without.state()


@pytest.mark.parametrize("rule", ["nnm-trimmed", "nnm-median", "median"])
def test_robust_rule_holds_where_the_mean_fails(rule):
    """Eight of ten peers agree but for noise. Two send the opposite, a hundred times as long."""
    count, bad = 10, 2
    direction = np.random.default_rng(5).standard_normal(SIZE) * 0.01
    messages = []
    for number in range(count):
        peer = Peer((3, number))
        toward = direction if number >= bad else -100.0 * direction
        peer.x += (toward + peer.random.standard_normal(SIZE) * 0.002).astype(np.float32)
        messages.append(peer.publish("whole", weight=1 / count)[0])
    judged, lost, wanted = Peer(1), Peer(1), Peer(1)
    a = wanted.ledger.a.astype(np.float64)
    done = epoch(judged, messages, rule)
    epoch(lost, messages, "mean")
    assert all(one.counted == (True,) * count for one in done)
    away = np.linalg.norm(judged.ledger.a - a - direction) / np.linalg.norm(direction)
    assert away < 0.2
    assert np.linalg.norm(lost.ledger.a - a - direction) > 10 * np.linalg.norm(direction)
    assert judged.error() < TOLERANCE


def test_contributor_malformed_in_one_chunk_counts_in_no_chunk():
    messages = contributions(6, "whole")
    broken = Message((*messages[2].payloads[:3], b""), 1 / 6, "whole", 1.0)
    without, with_ = Peer(1), Peer(1)
    done = epoch(with_, [*messages[:2], broken, *messages[3:]], "nnm-median")
    kept = [Message(m.payloads, 1 / 6, "whole", 1.0) for m in messages[:2] + messages[3:]]
    epoch(without, kept, "nnm-median")
    assert all(one.counted == (True, True, False, True, True, True) for one in done)
    assert with_.state() == without.state()


def test_robust_rule_does_not_believe_weights_that_sum_to_more_than_one():
    messages = contributions(6, "whole")
    greedy = [Message(m.payloads, 1.0, "whole", 1.0) for m in messages]
    one, other = Peer(1), Peer(1)
    epoch(one, messages, "nnm-median")
    epoch(other, greedy, "nnm-median")
    assert np.abs(one.ledger.a - other.ledger.a).max() < 1e-6


def test_one_weight_near_one_does_not_move_a_small_epoch_by_all():
    messages = contributions(3, "whole")
    small = [Message(m.payloads, 1 / 16, "whole", 1.0) for m in messages]
    greedy = [*small[:2], Message(messages[2].payloads, 1.0, "whole", 1.0)]
    start, one, other = Peer(1).ledger.a, Peer(1), Peer(1)
    epoch(one, small, "median")
    epoch(other, greedy, "median")
    moved = [np.linalg.norm(peer.ledger.a - start) for peer in (one, other)]
    assert moved[1] < 3.0 * moved[0]


def test_buffers_do_not_count_in_the_distances():
    """One of ten honest peers has a running variance of another scale. Its distances are unchanged."""
    count, messages = 10, []
    for number in range(count):
        peer = Peer((3, number))
        peer.train()
        peer.x[TRAINABLE:] += np.float32(1e4 if number == 4 else 0.0)
        messages.append(peer.publish("whole", weight=1 / count)[0])
    before = [
        Message(tuple(m.payloads[:2]) + plain.payloads[2:], m.weight, "whole", 1.0)
        for m, plain in zip(messages, contributions(count, "whole", 3), strict=True)
    ]
    results = []
    for sent in (messages, before):
        judged = Peer(1)
        epoch(judged, sent, "nnm-median")
        results.append(judged.ledger.fixed[:TRAINABLE].copy())
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("rule", ["nnm-trimmed", "nnm-median", "median"])
def test_near_parameters_do_not_vouch_for_buffers(rule):
    """Two of ten send honest parameters and running averages that are far off."""
    count, bad, honest = 10, 2, contributions(10, "whole", 3)
    messages = []
    for number in range(count):
        peer = Peer((3, number))
        peer.train()
        peer.x[TRAINABLE:] += np.float32(1e4 if number < bad else 0.0)
        messages.append(peer.publish("whole", weight=1 / count)[0])
    start, judged, wanted = Peer(1).ledger.a[TRAINABLE:], Peer(1), Peer(1)
    epoch(judged, messages, rule)
    epoch(wanted, honest, rule)
    assert (judged.ledger.fixed[:TRAINABLE] == wanted.ledger.fixed[:TRAINABLE]).all()
    moved = np.abs(judged.ledger.a[TRAINABLE:] - start)
    assert 0.0 < moved.max() < max(np.abs(Peer((3, one)).decode(honest[one])[TRAINABLE:]).max() for one in range(count))


HUGE = [(1e25, 0.25), (1e25, 1e-36)]
"""values and weight: beyond the largest movement of a message, or so light that the movement rounds to zero"""


@pytest.mark.parametrize(("value", "weight"), HUGE)
@pytest.mark.parametrize("rule", ["mean", "nnm-trimmed", "nnm-median", "median"])
def test_cut_movement_is_no_longer_for_being_huge_or_light(rule, value, weight):
    """With fewer than five contributors the cut is the only guard. It uses the measured lengths."""
    honest, liar = contributions(3, "whole"), Peer(9)
    values = (value * liar.random.standard_normal(SIZE)).astype(np.float32)
    payloads = (liar.algorithm._encode(chunk, "whole", values[liar.ledger.span(chunk)], 0) for chunk in range(CHUNKS))
    messages = [*honest, Message(tuple(payloads), weight, "whole", 1.0)]
    lengths = [
        math.hypot(
            *(
                liar.algorithm.run(jobs.CheckIncrement(chunk, "whole", one.payloads[chunk], 1.0, one.weight)).movement
                for chunk in range(CHUNKS)
            )
        )
        for one in messages
    ]
    usual = max(length / one.weight for length, one in zip(lengths[:3], honest, strict=True))
    longest = 4.0 * usual * weight
    scales = [1.0, 1.0, 1.0, longest / lengths[3] if lengths[3] > longest else 1.0]
    peer = Peer(1)
    start = peer.ledger.a.astype(np.float64)
    epoch(peer, messages, rule, scales=scales)
    assert np.linalg.norm(peer.ledger.a - start) <= 4.0 * usual


def test_alpha_moves_parameters_and_not_buffers():
    messages = contributions(5, "whole")
    once, twice = Peer(1), Peer(1)
    start = once.ledger.a.copy()
    epoch(once, messages, "mean", lr=1.0)
    epoch(twice, messages, "mean", lr=2.0)
    assert np.allclose(
        twice.ledger.a[:TRAINABLE] - start[:TRAINABLE], 2 * (once.ledger.a - start)[:TRAINABLE], atol=1e-6
    )
    assert np.array_equal(twice.ledger.a[TRAINABLE:], once.ledger.a[TRAINABLE:])


def test_robust_rule_needs_every_chunk_measured_in_order():
    messages, peer = contributions(3), Peer(1)
    weights = (0.3,) * 3
    terms = tuple(jobs.Term(row, "topk256", message.payloads[0], 1.0, 0.3) for row, message in enumerate(messages))
    with pytest.raises(ValueError, match="measured"):
        peer.algorithm.run(jobs.ApplyEpoch(0, weights, terms, "median"))
    peer.algorithm.run(jobs.MeasureEpoch(0, weights, terms))
    with pytest.raises(ValueError, match="measured"):
        peer.algorithm.run(jobs.MeasureEpoch(2, weights, terms))
    with pytest.raises(ValueError, match="measured"):
        peer.algorithm.run(jobs.MeasureEpoch(1, (0.3,) * 4, terms))
    with pytest.raises(ValueError, match="measured"):
        peer.algorithm.run(jobs.ApplyEpoch(0, weights, terms, "median"))
