"""Where blocks begin, what they cost, and how figures of one layout serve another one."""

from itertools import accumulate
from math import prod

import numpy as np
import pytest

from gossipdp.codecs.blocks import BLOCK, Blocks
from tests.codecs.architectures import MODELS


def test_no_block_spans_two_tensors__and_one_element_has_its_own() -> None:
    blocks = Blocks.within(1000, [300, 301, 900])
    assert blocks.starts.tolist() == [0, 256, 300, 301, 557, 813, 900, 1000]
    assert blocks.sizes.tolist() == [256, 44, 1, 256, 256, 87, 100]
    assert blocks.places.tolist() == [0, 256, 304, 312, 568, 824, 912, 1016]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1024])
def test_one_tensor_has_the_blocks_of_earlier_versions__but_for_the_padding(size: int) -> None:
    within, across = Blocks.within(size), Blocks.across(size)
    assert within.starts.tolist() == across.starts.tolist() == [*range(0, size, BLOCK), size]
    assert within.codes == -(-size // 8) * 8 and across.codes == -(-size // BLOCK) * BLOCK


def test_take_lists_the_chosen_blocks_one_after_another() -> None:
    taken = Blocks.within(1000, [300, 301, 900]).take(np.array([1, 2, 5]))
    assert taken.starts.tolist() == [0, 44, 45, 132] and taken.places.tolist() == [0, 48, 56, 144]
    assert taken.spread(np.array([7, 8, 9])).tolist() == [7] * 44 + [8] + [9] * 87


def test_widest_is_the_largest_figure_of_the_blocks_that_overlap() -> None:
    within, across = Blocks.within(1000, [300, 301, 900]), Blocks.across(1000)
    assert across.widest(np.float32([1, 2, 50, 4, 5, 6, 7]), within).tolist() == [1, 50, 5, 7]
    assert within.widest(np.float32([1, 9, 3, 4]), across).tolist() == [1, 9, 9, 9, 4, 4, 4]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_parameters_bytes_grow_by_at_most_one_percent(model: str, bits: int) -> None:
    sizes = [prod(shape) for shape in MODELS[model][0]]
    size = sum(sizes)
    within = Blocks.within(size, list(accumulate(sizes))[:-1])
    new, old = ((blocks.codes * bits // 8 + 3 * len(blocks)) for blocks in (within, Blocks.across(size)))
    assert new <= 1.01 * old, f"{model} at {bits} bits: {new} bytes after {old}"
    assert (within.sizes <= BLOCK).all() and set(accumulate(sizes)) <= set(within.starts.tolist())
