"""Adapters on a frozen base: what travels, and a base that is not the network's."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.scripts.pair import Pair

pytestmark = pytest.mark.processes


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
def test_a_joiner_with_another_base__it_is_refused_by_name_and_with_the_networks_base_only_adapters_travel(
    tmp_path: Path,
) -> None:
    with Pair(tmp_path) as pair:
        founder, joiner = pair.run("adapter_of_peft.py")
    refused, last = joiner.said
    assert refused["code"] == "GD-301"
    assert "base_model.model.transformer" in refused["seen"], "a parameter that differs is named"
    assert "otherwise load them from one file" in refused["do"]
    for said in (founder.last, last):
        assert said["parameters"] == said["trained"] == 2 * (4 * 48 + 3 * 48 * 4)
        assert said["exchanged"] <= said["trained"] < said["all"] / 30
        assert said["bytes"] < 2.5 * said["trained"]
