"""Trials keep the promises of `pairwise`: opposite differences, exact sums, true bytes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import CODECS
from gossipdp.codecs.base import PayloadError
from peers.plan.timeline import Link
from simulations.lab.core import Lab, Setting
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Replica
from simulations.lab.problems import Consensus, DigitsMlp
from simulations.lab.runs.runs import METHODS
from simulations.lab.trials.codecs import OutlierChunk, RotatedChunk, rotated
from simulations.lab.trials.group_exchange import GroupExchange
from simulations.lab.trials.groups import GroupGossip, groups_of
from simulations.lab.trials.momentum import MomentumGossip
from simulations.lab.trials.wrapped import OutlierGossip
from tests.simulations.lab.sample_runs import pending

TRIALS = {
    "rotated": ("pairwise-rotated", {}),
    "rotated, fp32": ("pairwise-rotated", {"codec": "fp32"}),
    "outliers": ("pairwise-outliers", {"count": 3}),
    "momentum": ("pairwise-momentum", {"parts": 1}),
    "a part of the momentum": ("pairwise-momentum", {"parts": 2}),
    "groups": ("pairwise-groups", {"size": 4}),
    "groups, drawn": ("pairwise-groups", {"size": 3}),
    "groups, fp32": ("pairwise-groups", {"size": 4, "codec": "fp32"}),
    "groups early": ("pairwise-groups", {"size": 4, "always": False}),
}
SIZE = 2 * 8192 + 700
"""three chunks, the last of which ends within a block"""
SETTING = Setting(peers=8, every=1, rounds=6, inner="sgd", lr=0.01)
SLOW = Link(bandwidth=300_000.0, latency=0.02)
"""an exchange takes less than a round of a second, and lands in it"""
PLAIN = {"lr": 1.0, "momentum": 0.0}


def started(name, options, setting=SETTING, problem=None):
    lab = Lab(problem or Consensus(peers=setting.peers, size=SIZE), setting)
    method = METHODS[name](**{"lr": 0.7, "momentum": 0.7, "bits": 4, "exchanges": 1, **options})
    method.begin(lab)
    return lab, method


def anchors(method):
    return np.array([replica.ledger.a for replica in method.replicas], np.float64)


def momenta(method):
    return np.array([replica.ledger.v for replica in method.replicas], np.float64)


# -- codecs --------------------------------------------------------------------------------------------------------


def heavy(seed, size=1500):
    """Two anchors that are close except in a few values."""
    random = np.random.default_rng(seed)
    first = random.standard_normal(size).astype(np.float32)
    apart = 0.01 * random.standard_normal(size)
    apart[random.choice(size, size // 100, replace=False)] *= 100.0
    return first, (first + apart).astype(np.float32)


def talked(one, other):
    """Run both sides to the end; return all buffers sent, without the ranges."""
    one.open(other.ranges()[0])
    other.open(one.ranges()[0])
    sent = []
    while not (one.complete and other.complete):
        for source, target in ((one, other), (other, one)):
            if buffers := source.emit():
                sent += buffers
                target.absorb(buffers)
    return sent


def test_rotation_is_orthogonal_and_its_own_inverse():
    values = np.random.default_rng(1).standard_normal(512).astype(np.float32)
    np.testing.assert_allclose(rotated(rotated(values)), values, atol=1e-6)
    rows = np.array([rotated(row) for row in np.eye(256, dtype=np.float32)])
    np.testing.assert_allclose(rows @ rows.T, np.eye(256), atol=1e-6)
    np.testing.assert_allclose(np.abs(rows), 1 / 16)
    assert (rotated(-values) == -rotated(values)).all()
    assert rotated(values[:300]).shape == (512,)


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("reach", [0.03, 2.0], ids=["escalating", "within"])
@pytest.mark.parametrize("kind", ["rotated", "outliers"])
def test_wrapped_codec_gives_opposite_differences(kind, reach, bits):
    a, b = heavy(bits)
    places = np.argsort(-np.abs(np.pad(b - a, (0, 36)).reshape(6, 256)), 1)[:, :4].astype(np.uint8)
    sides, predicted = [], np.full(6, reach if kind == "rotated" else 0.6 * reach, np.float32)
    for number, values in enumerate((a, b)):
        terms = {"lower": number == 0, "seed": 7}
        if kind == "rotated":
            sides.append(RotatedChunk(CODECS[f"modulo{bits}"], values, predicted, **terms))
        else:
            own = places[:, 2 * number : 2 * number + 2]
            sides.append(OutlierChunk(CODECS[f"modulo{bits}"], values, predicted, own, **terms))
    talked(*sides)
    delta = sides[0].delta()[0]
    assert (sides[1].delta()[0] == -delta).all()
    assert (sides[0].escalated > 0) == (reach == 0.03) and sides[0].escalated == sides[1].escalated
    step = 2.4 * predicted[0] / (2**bits - 2)
    far = delta - (b - a)
    # An error of one step per parameter before the rotation has a mean of one step after it.
    assert np.sqrt(np.mean(np.square(far))) < step if kind == "rotated" else np.abs(far).max() < step
    assert sides[0].norm2() == pytest.approx(np.sum(np.square(delta, dtype=np.float64)), rel=0.05)
    left, right = a.copy(), b.copy()
    for side, values in zip(sides, (left, right), strict=True):
        corrections, v = np.zeros_like(values), np.zeros_like(values)
        side.mix(0.5, values, corrections, v, 2.0)
        np.testing.assert_allclose(v, -2.0 * corrections)
    np.testing.assert_allclose(left.astype(np.float64) + right, a.astype(np.float64) + b, atol=1e-6)


def test_rotation_spreads_outliers():
    a, b = heavy(3)
    assert np.abs(b - a).max() > 2.0 * np.abs(rotated(b) - rotated(a)).max()


def test_outliers_are_exact_and_cost_as_stated():
    a, b = heavy(5)
    own, theirs = (np.full((6, 1), place, np.uint8) for place in (3, 250))
    predicted = np.full(6, 4.0, np.float32)
    one = OutlierChunk(CODECS["modulo4"], a, predicted, own, lower=True, seed=9)
    other = OutlierChunk(CODECS["modulo4"], b, predicted, theirs, lower=False, seed=9)
    sent = talked(one, other)
    # The last block of 220 parameters has no index 250.
    named = np.union1d(np.arange(6) * 256 + 3, np.arange(5) * 256 + 250)
    assert (one.delta()[0][named] == b[named] - a[named]).all()
    assert len(one.ranges()[0]) == 6 + 6
    assert sum(memoryview(each).nbytes for each in sent) == 2 * (6 * (128 + 2) + 11 * 4)


@pytest.mark.parametrize("frames", [[], [b"\0" * 8], [b"\xff" * 4 * 6, b"", b""]], ids=["none", "short", "not finite"])
def test_malformed_frames_of_outliers_are_refused(frames):
    a, b = heavy(5)
    own, predicted = np.full((6, 1), 3, np.uint8), np.full(6, 4.0, np.float32)
    one, other = (
        OutlierChunk(CODECS["modulo4"], values, predicted, own, lower=values is a, seed=9) for values in (a, b)
    )
    with pytest.raises(PayloadError):
        one.open(b"\0" * 11)
    one.open(other.ranges()[0])
    with pytest.raises(PayloadError):
        one.absorb(frames)


# -- methods -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [Link(), SLOW], ids=["at once", "late"])
@pytest.mark.parametrize("name", TRIALS)
def test_mixing_keeps_the_means_of_anchors_and_momenta(name, link):
    """Without learning, only momentum moves the anchors."""
    method_name, options = TRIALS[name]
    lab, method = started(method_name, options | {"clip": math.inf}, replace(SETTING, link=link))
    distance = lab.distance()
    method.round(lab)
    method.round(lab)
    for number, replica in enumerate(method.replicas):
        replica.ledger.v[:] = 0.01 * np.random.default_rng(number).standard_normal(SIZE)
        replica.alone = 0
    v, expected = momenta(method).mean(0), anchors(method).mean(0)
    for _ in range(4):
        method.round(lab)
        v *= 0.7
        expected -= 0.7 * 0.7 * v
        assert all(replica.alone < 2 for replica in method.replicas), "as if alone it would be another step"
        np.testing.assert_allclose(momenta(method).mean(0), v, atol=2e-6)
        np.testing.assert_allclose(anchors(method).mean(0), expected, atol=1e-5)
    assert lab.distance() < 0.4 * distance
    corrections = np.array([pending(replica) for replica in method.replicas])
    np.testing.assert_allclose(lab.x.numpy() + corrections, anchors(method), atol=5e-5)


def trained(name, options):
    setting, problem = Setting(peers=8, every=4, rounds=5, lr=5e-3), DigitsMlp(hidden=16)
    lab, method = started(name, options, setting, problem)
    for number in range(setting.rounds):
        lab.progress = number / setting.rounds
        method.round(lab)
    assert method.tally.blocks > method.tally.escalated
    return problem.evaluate(method.model(lab)).loss


@pytest.fixture(scope="module")
def of_pairwise():
    return trained("pairwise", {})


@pytest.mark.parametrize("name", ["rotated", "outliers", "momentum", "groups"])
def test_trial_trains_about_as_well_as_pairwise(name, of_pairwise):
    assert trained(*TRIALS[name]) < of_pairwise + 0.1


def test_averaged_momentum_costs_its_share_of_the_bytes():
    # fp32 never escalates.
    received = {}
    for parts in (0, 1, 3):
        options = {"codec": "fp32", "early": 0.0}
        name = "pairwise-momentum" if parts else "pairwise"
        lab, method = started(name, options | ({"parts": parts} if parts else {}))
        method.round(lab)
        before = lab.received.copy()
        for _ in range(3):
            for replica in method.replicas:
                replica.alone = 0
            method.round(lab)
        received[parts] = (lab.received - before).mean()
    assert received[1] == pytest.approx(2.0 * received[0], rel=0.02)
    assert received[3] == pytest.approx(4.0 / 3.0 * received[0], rel=0.02)


def test_whole_averaged_momenta_agree():
    options = {"parts": 1, "kappa": 0.0, "schedule": "base2", "early": 0.0, "exchanges": 3}
    lab, method = started("pairwise-momentum", options)
    method.round(lab)
    for number, replica in enumerate(method.replicas):
        replica.ledger.v[:] = np.random.default_rng(number).standard_normal(SIZE)
        replica.alone = 0
    spread = momenta(method).std(0).mean()
    method.round(lab)
    assert momenta(method).std(0).mean() < 0.1 * spread


# -- groups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("peers", "size", "rounds"), [(16, 4, 2), (16, 8, 2), (8, 2, 3), (64, 8, 2), (4, 4, 1)])
def test_groups_by_bits_connect_all_peers(peers, size, rounds):
    heard = [{peer} for peer in range(peers)]
    for number in range(5, 5 + rounds):
        for group in groups_of(peers, size, number, None):
            assert len(group) == size
            together = set.union(*(heard[peer] for peer in group))
            for peer in group:
                heard[peer] = together
    assert all(len(each) == peers for each in heard)


def test_random_groups_hold_every_peer_once():
    groups = groups_of(14, 4, 1, np.random.default_rng(0))
    assert sorted(peer for group in groups for peer in group) == list(range(14))
    assert sorted(map(len, groups)) == [4, 5, 5]


def circle(codec, count, apart=1e-3):
    """Replicas with nearby anchors, and their group exchange."""
    members = []
    for number in range(count):
        random = np.random.default_rng(number)
        x = np.random.default_rng(99).standard_normal(SIZE) + apart * random.standard_normal(SIZE)
        member = Replica(number, torch.from_numpy(x.astype(np.float32)), Pairwise(clip=float("inf")))
        member.algorithm.range[:] = 4.0 * apart
        members.append(member)
    return GroupExchange(members[0], members[1], 5, codec, 0.5, 0.0, tuple(members)), members


def test_group_average_in_fp32_is_the_mean():
    ring, members = circle("fp32", 5, apart=1.0)
    before = np.array([member.ledger.a for member in members], np.float64)
    for chunk in range(3):
        ring.average(chunk, owner=chunk + 1)
    for member in members:
        np.testing.assert_allclose(member.ledger.a, before.mean(0), atol=2e-6)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_group_average_in_four_bits_is_within_two_steps_of_the_mean(count):
    """The owner is as close as the others, because the remainder of the division is dealt out."""
    ring, members = circle("modulo4", count)
    before = np.array([member.ledger.a for member in members], np.float64)
    for chunk in range(3):
        assert ring.average(chunk, owner=0).escalated < 10 * count
    after = np.array([member.ledger.a for member in members], np.float64)
    np.testing.assert_allclose(after.mean(0), before.mean(0), atol=1e-6)
    step = 4e-3 * 2 ** (1 / 4) / 7  # the range is rounded up by at most 2^(1/4)
    off = np.abs(after - before.mean(0))
    # A target is an fp32 number, which may lie slightly below its grid step.
    assert (off > 2.0 * step).mean() < 1e-3 and off.max() < 4.0 * step
    assert off[0].mean() < 1.3 * off[1:].mean() < 1.3 * step


def test_group_escalates_blocks_beyond_their_ranges():
    ring, members = circle("modulo4", 4)
    before = np.array([member.ledger.a for member in members], np.float64)
    members[2].ledger.a[:256] += 1.0
    before[2, :256] += 1.0
    counted = ring.average(0, owner=1)
    assert counted.escalated >= 2
    span = slice(0, 8192)
    after = np.array([member.ledger.a[span] for member in members], np.float64)
    np.testing.assert_allclose(after.mean(0), before[:, span].mean(0), atol=1e-6)
    assert np.abs(after - before[:, span].mean(0)).max() < 0.01


@pytest.mark.parametrize(("size", "vectors"), [(4, 1.5), (8, 1.75)])
def test_group_receives_two_vectors_less_two_parts_in_g(size, vectors):
    lab, method = started("pairwise-groups", {"size": size, "codec": "fp32", **PLAIN})
    method.round(lab)
    assert lab.received.mean() == pytest.approx(vectors * 4 * SIZE, rel=0.05)
    assert method.tally.exchanges == 8 / size and method.tally.chunks == 3 * 8 / size


def test_group_of_all_peers_agrees_after_one_round():
    lab, method = started("pairwise-groups", {"size": 8, "codec": "fp32", **PLAIN})
    mean, before = lab.mean, lab.distance()
    method.round(lab)
    assert lab.distance() < 1e-5 * before
    torch.testing.assert_close(lab.mean, mean, atol=1e-5, rtol=0)


def test_group_exchange_lasts_as_long_as_the_busiest_member_needs():
    """Of three chunks, two at different owners are under way at a time."""
    link = Link(bandwidth=100_000.0, latency=0.1)
    lab, method = started(
        "pairwise-groups", {"size": 4, "codec": "fp32", **PLAIN}, replace(SETTING, every=10, link=link)
    )
    method.round(lab)
    assert method.tally.exchanges == 0
    method.round(lab)
    # The owner of a whole chunk receives three copies of it and, as a member, the other two averages.
    seconds = 0.7 + (3 * 4 * 8192 + 4 * (8192 + 700)) / 100_000.0
    lasted = method.tally.landing / method.tally.exchanges * 10.0
    assert seconds <= lasted <= seconds + 1.2, "landings are between two steps of a second"
    assert lab.seconds == 20.0


def test_group_leaves_out_unreachable_members():
    lab, method = started("pairwise-groups", {"size": 4, "codec": "fp32", **PLAIN}, replace(SETTING, failing=0.5))
    mean = lab.mean
    for _ in range(6):
        method.round(lab)
    assert 5 < method.tally.failed < 30
    torch.testing.assert_close(lab.mean, mean, atol=1e-5, rtol=0)


def test_groups_of_early_rounds_give_way_to_pairs():
    lab, method = started("pairwise-groups", {"size": 4, "always": False, "early": 0.5})
    counts = []
    for _ in range(6):
        before = method.tally.exchanges
        method.round(lab)
        counts.append(method.tally.exchanges - before)
    assert counts == [2, 2, 2, 4, 4, 4]


def test_short_rounds_before_those_of_groups_are_of_pairs():
    _, method = started("pairwise-groups", {"size": 4, "warmup_steps": 3, "warmup_exchanges": 1})
    # Three rounds of one step, of four pairs each.
    assert method.tally.exchanges == 3 * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupGossip(size=1),
        lambda: GroupGossip(PairwiseOptions(fragments=2), size=4),
        lambda: GroupGossip(size=16).begin(Lab(Consensus(peers=8, size=256), SETTING)),
        lambda: MomentumGossip(parts=0),
        lambda: OutlierGossip(count=0),
        lambda: OutlierGossip(PairwiseOptions(codec="fp32")),
        lambda: METHODS["pairwise-rotated"](warmup_steps=5),
    ],
)
def test_impossible_options_are_refused(make):
    with pytest.raises(ValueError, match=r"\w"):
        make()


def test_trials_do_not_change_pairwise():
    method = PairwiseGossip()
    lab = Lab(Consensus(peers=8, size=SIZE), SETTING)
    method.begin(lab)
    assert {type(replica.algorithm).__name__ for replica in method.replicas} == {"Pairwise"}


def test_alpha_rises_with_the_progress_of_the_run(monkeypatch):
    seen = []
    monkeypatch.setattr(Replica, "outer", lambda self, wanted: seen.append(wanted))
    lab, method = started("pairwise-rising", {"first": 0.4, "last": 0.9, "momentum": 0.6}, replace(SETTING, peers=1))
    lab.start()
    for _ in range(SETTING.rounds):
        method.round(lab)
    alphas = [outer.lr for outer in seen]
    assert alphas == sorted(alphas) and alphas[0] == pytest.approx(0.4) and 0.8 < alphas[-1] <= 0.9
    assert {outer.momentum for outer in seen} == {0.6}
