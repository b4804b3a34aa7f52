"""A daemon that claims the widest ranges in its exchanges, for values far off: `python far_ranges.py --home HOME`."""

import sys
from typing import Any

import numpy as np

from gossipdp.codecs.base import ChunkCodec
from gossipdp.codecs.modulo import ModuloCodec
from peers.daemon import main

honest = ModuloCodec.chunk


def far(codec: ModuloCodec, a: Any, predicted: Any, *rest: Any, **options: Any) -> ChunkCodec:
    """The codec of a chunk with the widest range, and values two steps of that range's grid away."""
    return honest(codec, a + np.float32(2 * codec.steps[255]), np.full_like(predicted, 4e9), *rest, **options)


ModuloCodec.chunk = far  # type: ignore[method-assign]
sys.exit(main())
