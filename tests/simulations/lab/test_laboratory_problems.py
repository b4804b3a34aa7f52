"""The laboratory's problems: losses differentiate correctly, data are drawn as stated, and models learn."""

import math
import os

import numpy as np
import pytest
import torch

from simulations.lab.core import Lab, Setting
from simulations.lab.data import Mixture, digits, draws, held_out, normal, sources, text
from simulations.lab.problems import PROBLEMS, ByteMlp, ByteTransformer, Consensus, DigitsCnn, DigitsMlp, Quadratic

SMALL = {
    "byte-mlp": ByteMlp(batch=4, held_out=64),
    "byte-transformer": ByteTransformer(batch=2, context=16, width=32, held_out=4),
    "consensus": Consensus(peers=3, size=16),
    "digits-cnn": DigitsCnn(batch=4),
    "digits-mlp": DigitsMlp(batch=4),
    "quadratic": Quadratic(size=64, curvature=0.5),
}
PEERS, STEPS = np.arange(3), np.array([0, 5, 2])


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_batched_gradients_equal_those_of_each_replica(name):
    problem = SMALL[name]
    lab = Lab(problem, Setting(peers=3, every=1, rounds=1))
    lab.x.add_(0.01 * torch.randn(lab.x.shape, generator=torch.Generator().manual_seed(1)))
    lab.steps[:] = STEPS
    found = lab.gradients()
    batch = problem.batches(PEERS, STEPS, 0)
    for peer in PEERS:
        x = lab.x[peer].clone().requires_grad_()
        problem.loss(x, *[rows[peer] for rows in batch]).backward()
        torch.testing.assert_close(found[peer], x.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_data_depend_on_seed_peer_and_step_only(name):
    problem = SMALL[name]
    whole, again = problem.batches(PEERS, STEPS, 3), problem.batches(PEERS[1:2], STEPS[1:2], 3)
    for rows, row in zip(whole, again, strict=True):
        assert torch.equal(rows[1], row[0])
    if name != "consensus":
        others = [problem.batches(PEERS, STEPS, 4), problem.batches(PEERS, STEPS + 1, 3)]
        assert not any(torch.equal(whole[0], other[0]) for other in others)
        assert not torch.equal(whole[0][0], whole[0][1])


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_start_depends_on_the_seed_and_fits_the_shapes(name):
    problem = PROBLEMS[name]()
    assert problem.name == name
    start = problem.start(1)
    assert start.shape[-1] == problem.parameters == sum(math.prod(shape) for shape in problem.shapes)
    assert torch.equal(start, problem.start(1)) and start.dtype == torch.float32
    assert all(0 <= place < len(problem.shapes) for place in problem.embeddings)


def test_models_have_the_documented_sizes():
    sizes = {name: make().parameters for name, make in PROBLEMS.items()}
    assert (sizes["byte-mlp"], sizes["byte-transformer"]) == (51_584, 252_384)
    assert (sizes["digits-mlp"], sizes["digits-cnn"]) == (9_610, 6_090)


@pytest.mark.parametrize("name", ["byte-mlp", "byte-transformer"])
def test_language_model_begins_near_chance_and_learns(name):
    problem = ByteMlp(batch=16, held_out=512) if name == "byte-mlp" else SMALL[name]
    lab = Lab(problem, Setting(peers=2, every=1, rounds=1, lr=1e-2))
    before = problem.evaluate(lab.x[0])
    assert before.loss == pytest.approx(math.log(256), abs=0.7) and math.isnan(before.accuracy)
    lab.train(40)
    assert problem.evaluate(lab.x[0]).loss < before.loss - 1.0


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn"])
def test_digits_are_classified_after_some_steps(name):
    problem = PROBLEMS[name](batch=32)
    lab = Lab(problem, Setting(peers=2, every=1, rounds=1, lr=1e-2))
    assert problem.evaluate(lab.x[0]).accuracy < 0.3
    lab.train(40)
    score = problem.evaluate(lab.x[0])
    assert score.accuracy > 0.8 and score.loss < 0.7


def test_transformer_never_looks_ahead():
    """Two windows that differ from some byte on have equal losses before it."""
    problem = SMALL["byte-transformer"]
    x = problem.start(0)
    window = text().held_out(1, 17)
    other = window.clone()
    other[0, 9] = (other[0, 9] + 7) % 256

    def gradient_of_positions(windows):
        """Positions whose embeddings affect the loss of the first eight predictions."""
        at = x.clone().requires_grad_()
        problem.loss(at, windows[:, :9]).backward()
        return at.grad

    assert torch.equal(gradient_of_positions(window), gradient_of_positions(other))
    moved = x.clone().requires_grad_()
    problem.loss(moved, window).backward()
    positions = moved.grad[256 * 32 : 256 * 32 + 16 * 32].view(16, 32)
    assert (positions.abs().sum(1) > 0).all()
    # Only the total loss minus that of the first eight predictions may depend on later bytes.
    whole = [16 * float(problem.loss(x, windows)) for windows in (window, other)]
    first = [8 * float(problem.loss(x, windows[:, :9])) for windows in (window, other)]
    longer = [9 * float(problem.loss(x, windows[:, :10])) for windows in (window, other)]
    assert first[0] == first[1] and longer[0] != longer[1] and whole[0] != whole[1]


# -- data ----------------------------------------------------------------------------------------------------------


def test_draws_are_uniform_and_streams_independent():
    found = draws(np.arange(64), np.full(64, 3), 0, 2048)
    assert found.min() >= 0.0 and found.max() < 1.0
    counts = np.histogram(found, 16, (0.0, 1.0))[0]
    assert abs(counts / found.size - 1 / 16).max() < 4 * (1 / 16 / found.size) ** 0.5
    correlations = np.corrcoef(found)[np.triu_indices(64, 1)]
    assert abs(correlations).max() < 5 / 2048**0.5
    # Peer and step are not interchangeable.
    assert not np.array_equal(draws(np.array([1]), np.array([2]), 0, 4), draws(np.array([2]), np.array([1]), 0, 4))
    assert not np.array_equal(draws(np.array([1]), np.array([2]), 5, 4), draws(np.array([1]), np.array([2]), 6, 4))


def test_normal_draws_are_normal():
    found = normal(np.arange(8), np.zeros(8, np.int64), 0, 4097)
    assert found.shape == (8, 4097)
    moments = [float((found**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0.0, 1.0, 0.0, 3.0], abs=0.1)


@pytest.mark.parametrize("dirichlet", [math.inf, 0.3])
def test_mixture_draws_every_part_by_the_peers_share(dirichlet):
    sizes = (100, 300, 50, 550)
    mixture = Mixture(sizes, dirichlet)
    places = mixture.places(np.arange(3), np.zeros(3, np.int64), 1, 40_000)
    assert places.min() >= 0 and places.max() < 1000
    stops = np.cumsum(sizes)
    for peer, row in enumerate(places):
        counts = np.bincount(np.searchsorted(stops, row, side="right"), minlength=4) / row.size
        np.testing.assert_allclose(counts, mixture.shares(peer, 1), atol=0.01)
        # Within a part every index is equally likely.
        largest = int(np.argmax(mixture.shares(peer, 1)))
        inside = row[np.searchsorted(stops, row, side="right") == largest] - (stops[largest] - sizes[largest])
        assert inside.mean() == pytest.approx((sizes[largest] - 1) / 2, rel=0.03)


def test_peers_together_draw_as_one_peer_would():
    mixture = Mixture((100, 300, 600), 0.1)
    shares = np.array([mixture.shares(peer, 0) for peer in range(3000)])
    np.testing.assert_allclose(shares.mean(0), (0.1, 0.3, 0.6), atol=0.03)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    assert np.median(shares.max(1)) > 0.95


def test_mixture_refuses_empty_parts_and_bad_concentrations():
    for sizes, dirichlet in [((), 1.0), ((1, 0), 1.0), ((1, 2), 0.0)]:
        with pytest.raises(ValueError):
            Mixture(sizes, dirichlet)


def test_sources_do_not_depend_on_how_a_file_system_lists_them(tmp_path, monkeypatch):
    content = b"x = 1\n" * 400
    for name in ("b.py", "a/z.py", "a/c.py", "test/no.py", "a/__pycache__/no.py", "site-packages/no.py", "b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "short.py").write_bytes(b"x = 1\n")
    found = sources(tmp_path)
    assert [name for name, _ in found] == ["a/c.py", "a/z.py", "b.py"] and found[0][1] == content
    walk = os.walk

    def backwards(folder, *_):
        for place, folders, files in walk(folder):
            folders.sort(reverse=True)
            yield place, folders, sorted(files, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    assert sources(tmp_path) == found


def test_a_tenth_of_the_files_is_held_out_by_name():
    chosen = [held_out(f"package/module{number}.py") for number in range(2000)]
    assert 150 < sum(chosen) < 250
    assert held_out("package/module1.py") == chosen[1]


def test_text_is_read_once_and_split_by_file():
    assert text() is text()
    parts = text()
    assert sum(parts.sizes) == len(parts.train) > 10 * min(parts.sizes) and len(parts.validation) > 100_000
    windows = parts.windows(np.array([[0, 5]]), 4)
    assert windows.shape == (1, 2, 4) and windows[0, 1].tolist() == parts.train[5:9].tolist()
    assert parts.held_out(3, 8)[-1].tolist() == parts.validation[-8:].tolist()


def test_no_window_reaches_past_the_end():
    mixture = text().mixture(65, math.inf)
    places = mixture.places(np.arange(4), np.zeros(4, np.int64), 0, 50_000)
    assert int(places.max()) + 65 <= len(text().train)


def test_digits_are_sorted_by_class_and_split_by_image():
    data = digits()
    assert sum(data.sizes) == len(data.labels) == 1437 and len(data.held_out_labels) == 360
    assert (data.labels.diff() >= 0).all() and data.pixels.min() == 0 and data.pixels.max() == 1


def test_peers_of_a_small_dirichlet_see_few_classes():
    alike, apart = DigitsMlp(batch=200), DigitsMlp(batch=200, dirichlet=0.1)
    peers, steps = np.arange(8), np.zeros(8, np.int64)
    (_, all_labels), (_, few) = alike.batches(peers, steps, 0), apart.batches(peers, steps, 0)
    largest = [max(torch.bincount(row, minlength=10)).item() / 200 for row in few]
    assert np.mean(largest) > 0.6 and all(len(row.unique()) == 10 for row in all_labels)
