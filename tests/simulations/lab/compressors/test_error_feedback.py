"""Error feedback around every compressor: nothing is lost, and the residual stays bounded."""

import numpy as np
import pytest

from simulations.lab.compressors import COMPRESSORS
from simulations.lab.compressors.error_feedback import ErrorFeedback

every = pytest.mark.parametrize("name", COMPRESSORS)
SIZE = 4096 + 300


def _increments(rounds: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(SIZE).astype(np.float32) * np.float32(0.01) for _ in range(rounds)]


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


@every
@pytest.mark.parametrize("beta", [1.0, 0.95])
def test_sent_plus_residual_is_residual_before_plus_increment(name: str, beta: float) -> None:
    """Exact where nothing or a number within a factor of two was sent (Sterbenz), else to the last place."""
    feedback, before = ErrorFeedback(COMPRESSORS[name], beta), np.zeros(SIZE, np.float32)
    for round_, increment in enumerate(_increments(8)):
        wanted = np.float32(beta) * before + increment
        payload, sent = feedback.compress(increment, seed=round_)
        e = feedback.residual
        assert np.array_equal(sent, COMPRESSORS[name].decode(payload, SIZE))
        exact = (
            (sent == 0.0)
            | ((sent / 2 <= wanted) & (wanted <= 2 * sent))
            | ((2 * sent <= wanted) & (wanted <= sent / 2))
        )
        assert np.array_equal((sent + e)[exact], wanted[exact])
        last = np.spacing(np.maximum(np.abs(sent), np.abs(wanted)))
        assert (np.abs(sent.astype(np.float64) + e - wanted) <= last).all()
        assert feedback.norm() == pytest.approx(_norm(e), rel=1e-12)
        before = e


@every
def test_nothing_is_lost_over_many_rounds(name: str) -> None:
    feedback, total = ErrorFeedback(COMPRESSORS[name]), np.zeros(SIZE)
    increments = _increments(20)
    for round_, increment in enumerate(increments):
        total += feedback.compress(increment, seed=round_)[1]
    given = np.sum(increments, axis=0, dtype=np.float64)
    largest = max(1.0, float(np.abs(feedback.residual).max()))
    np.testing.assert_allclose(total + feedback.residual, given, atol=20 * 2.0**-22 * largest)


@every
def test_mean_of_anchor_and_residuals_moves_by_the_mean_increment(name: str) -> None:
    """mean(a) - alpha mean(e) moves by -alpha mean(D)."""
    alpha, senders = 0.7, [ErrorFeedback(COMPRESSORS[name]) for _ in range(4)]
    increments = [_increments(6, seed) for seed in range(4)]
    a = start = np.random.default_rng(9).standard_normal(SIZE)
    for round_ in range(6):
        sent = [
            s.compress(d[round_], seed=10 * round_ + i)[1]
            for i, (s, d) in enumerate(zip(senders, increments, strict=True))
        ]
        a = a - alpha * np.mean(sent, axis=0, dtype=np.float64)
        e = np.mean([s.residual for s in senders], axis=0, dtype=np.float64)
        given = np.sum([d[: round_ + 1] for d in increments], axis=(0, 1), dtype=np.float64) / 4
        largest = max(1.0, *(float(np.abs(s.residual).max()) for s in senders))
        np.testing.assert_allclose(a - alpha * e, start - alpha * given, atol=2.0**-20 * largest)


@every
@pytest.mark.parametrize("beta", [1.0, 0.95])
def test_residual_of_a_contractive_compressor_stays_bounded(name: str, beta: float) -> None:
    """For increments of one direction and the promised delta."""
    feedback, d = ErrorFeedback(COMPRESSORS[name], beta), COMPRESSORS[name].contraction
    increment = _increments(1)[0]
    bound = np.sqrt(1 - d) * _norm(increment) / (1 - beta * np.sqrt(1 - d))
    norms = []
    for round_ in range(400 if name == "topk128" else 60):
        feedback.compress(increment, seed=round_)
        norms.append(feedback.norm())
        assert norms[-1] <= bound
    if name == "topk128":
        assert max(norms[200:]) <= 1.02 * max(norms[:200]), "it has not levelled off"


def test_residual_saved_and_restored_goes_on_with_the_same_bytes() -> None:
    first, increments = ErrorFeedback(COMPRESSORS["topk64"], 0.95), _increments(6)
    for round_ in range(3):
        first.compress(increments[round_], seed=round_)
    saved = first.residual.tobytes()
    second = ErrorFeedback(COMPRESSORS["topk64"], 0.95)
    second.residual = np.frombuffer(saved, np.float32)
    for round_ in range(3, 6):
        one, two = (sender.compress(increments[round_], seed=round_)[0] for sender in (first, second))
        assert bytes(one) == bytes(two)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4e38])
def test_increment_that_is_not_finite_leaves_the_residual_as_it_was(bad: float) -> None:
    feedback = ErrorFeedback(COMPRESSORS["topk64"])
    feedback.compress(np.full(SIZE, 3e38, np.float32), seed=1)
    before, increment = feedback.residual.copy(), _increments(1)[0]
    increment[7] = bad
    with pytest.raises(ValueError, match="not finite"):
        feedback.compress(increment, seed=2)
    assert np.array_equal(feedback.residual, before)


def test_increment_of_another_length_is_refused() -> None:
    feedback = ErrorFeedback(COMPRESSORS["sign"])
    feedback.compress(np.ones(300, np.float32), seed=1)
    for length in (301, 1):
        with pytest.raises(ValueError, match="the residual"):
            feedback.compress(np.ones(length, np.float32), seed=1)


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
def test_beta_out_of_range_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        ErrorFeedback(COMPRESSORS["sign"], beta)


def test_empty_residual_has_no_norm() -> None:
    assert ErrorFeedback(COMPRESSORS["sign"]).norm() == 0.0
