"""Rows to aggregate, the rules that tolerate bad ones, and a hash of what all rules give."""

from __future__ import annotations

import hashlib

import numpy as np

from gossipdp.algorithms.epidemic.robust import RULES, Distances, plan

ROBUST = [name for name in RULES if name != "mean"]


def spread(rows):
    """Standard deviation around the mean, of whole vectors."""
    return np.sqrt(np.mean(np.sum((rows - rows.mean(axis=0)) ** 2, axis=1)))


def normal(seed, n, size=50):
    return np.random.default_rng(seed).standard_normal((n, size)).astype(np.float32)


def digest():
    """Hash of every rule's result on rows from integers, in uneven chunks."""
    counts = (np.arange(16 * 9000, dtype=np.int64) * 2654435761 + 12345) % 65537
    rows = (counts.reshape(16, 9000) - 32768).astype(np.float32) / np.float32(1000.0)
    rows *= rows * rows  # The last bits of numpy's ** depend on the processor.
    rows[3] *= np.float32(1e6)
    rows[4] = rows[5]
    weights = [float(1 + n % 5) for n in range(16)]
    chunks = [slice(0, 5000), slice(5000, 8191), slice(8191, 9000)]
    distances = Distances(16)
    for chunk in chunks:
        distances.add(rows[:, chunk])
    found = hashlib.blake2b(distances.squared.tobytes(), digest_size=8)
    for rule in RULES.values():
        decided = plan(rule, distances, weights)
        for chunk in chunks:
            found.update(decided.combine(rows[:, chunk]).tobytes())
    return found.hexdigest()
