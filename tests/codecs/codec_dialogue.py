"""Two sides of one chunk that take turns as in `protocol.pairwise.exchange`."""

from typing import Any, NamedTuple

import numpy as np

from gossipdp.codecs import CODECS
from gossipdp.codecs.blocks import BLOCK, Blocks


class Dialogue(NamedTuple):
    low: Any
    high: Any
    sent: dict[str, list[list[bytes]]]
    """by side: its ranges, then the frames of each emit"""


def converse(
    codec: str,
    low: np.ndarray,
    high: np.ndarray,
    predicted: float | np.ndarray | tuple[Any, Any],
    *,
    seed: int = 1,
    lower_starts: bool = True,
    blocks: Blocks | None = None,
    limited: bool = False,
) -> Dialogue:
    """Run the turns until neither side emits anything. Both must then be complete."""
    ranges = predicted if isinstance(predicted, tuple) else (predicted, predicted)
    count = -(-len(low) // BLOCK) if blocks is None else len(blocks)
    first, second = (np.broadcast_to(np.float32(r), count).copy() for r in ranges)
    sides = {
        "low": CODECS[codec].chunk(low, first, blocks, lower=True, seed=seed, limited=limited),
        "high": CODECS[codec].chunk(high, second, blocks, lower=False, seed=seed, limited=limited),
    }
    names = ["low", "high"] if lower_starts else ["high", "low"]
    initiator, responder = names
    sent = {name: [[bytes(b) for b in side.ranges()]] for name, side in sides.items()}
    sides[responder].open(sent[initiator][0][0])
    frames = [bytes(b) for b in sides[responder].emit()]
    sent[responder].append(frames)
    sides[initiator].open(sent[responder][0][0])
    speaker, listener = responder, initiator
    while frames:
        assert len(sent["low"]) + len(sent["high"]) < 12, "the dialogue does not end"
        sides[listener].absorb(frames)
        speaker, listener = listener, speaker
        frames = [bytes(b) for b in sides[speaker].emit()]
        if frames:
            sent[speaker].append(frames)
    assert all(side.complete for side in sides.values())
    assert not sides["low"].emit() and not sides["high"].emit()
    return Dialogue(sides["low"], sides["high"], sent)


def delta(side: Any, size: int) -> np.ndarray:
    """The correction of a mix with share 1."""
    a, pending = np.zeros(size, np.float32), np.zeros(size, np.float32)
    side.mix(1.0, a, pending, None, 0.0)
    assert np.array_equal(a, pending)
    return a


def block_max(values: np.ndarray) -> np.ndarray:
    return np.maximum.reduceat(np.abs(values), np.arange(0, len(values), BLOCK)).astype(np.float32)
